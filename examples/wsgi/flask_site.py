"""Flask, whose views share batches; see gunicorn_config.py for how to run it."""

from flask import Flask, Response, request

from examples.wsgi.model import embed
from shoal.errors import ShoalError
from shoal.integrations.error_responses import ErrorResponses

app = Flask(__name__)
responses = ErrorResponses()


@app.post("/embed")
def embed_text() -> list[float]:
    return embed.from_thread(request.get_json()["text"])


@app.errorhandler(ShoalError)
def explain(error: ShoalError) -> Response:
    request_id = request.headers.get("X-Request-ID")
    status, headers, body = responses.of(error, request_id=request_id)
    return Response(body, status, headers)
