"""Django in one file, whose views share batches.

gunicorn_config.py says how to run the plain views. The async view needs an ASGI server:

    uvicorn examples.wsgi.django_site:site
"""

import json
from collections.abc import Callable

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.routing import Mount

from examples.wsgi.model import embed
from shoal.errors import ShoalError
from shoal.integrations.error_responses import ErrorResponses
from shoal.integrations.starlette import lifespan

responses = ErrorResponses()


class ShoalErrors:
    """Middleware that responds to Shoal's errors."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, ShoalError):
            return None
        request_id = request.headers.get("X-Request-ID")
        status, headers, body = responses.of(error, request_id=request_id)
        return HttpResponse(body, status=status, headers=headers)


def embed_text(request: HttpRequest) -> JsonResponse:
    return JsonResponse(embed.from_thread(json.loads(request.body)["text"]), safe=False)


async def embed_text_async(request: HttpRequest) -> JsonResponse:
    return JsonResponse(await embed(json.loads(request.body)["text"]), safe=False)


urlpatterns = [path("embed", embed_text), path("embed-async", embed_text_async)]

settings.configure(
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=[f"{__name__}.ShoalErrors"],
    ROOT_URLCONF=__name__,
)
app = get_wsgi_application()

# Django has no lifespan, so Starlette opens the batched functions.
site = Starlette(lifespan=lifespan, routes=[Mount("/", get_asgi_application())])
