"""What a line of a batch job means: an item for a handler, or a request of OpenAI's batch files."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from importlib import import_module
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

import anyio

from shoal.batching.batcher import Batcher
from shoal.core.json_text import json_bytes
from shoal.failures.exceptions import in_one_line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from starlette.types import ASGIApp

_NULL: Final = b"null"
# Statuses of a request that is made again, for as long as `map` does with one that is refused.
_REFUSED: Final = (429, 503)
_MOST_REFUSED_S: Final = 60.0
_FIRST_DELAY_S: Final = 0.05
_MAX_DELAY_S: Final = 5.0


class LineRefused(Exception):
    """A line that is no item; `members` describe the error."""

    def __init__(self, members: Mapping[str, Any], custom_id: object = None) -> None:
        super().__init__(members.get("detail") or members.get("message"))
        self.members = members
        self.custom_id = custom_id


class ItemLines:
    """Items for a handler: a line is decoded and checked as the body of a request would be."""

    def __init__(self, signature: Signature, *, are_values: bool) -> None:
        from shoal.http.requests.plain import encoded, one_line_json

        self.item = _checked(signature, are_values=are_values)
        self._encoded: Callable[[Any], bytes] = lambda value: one_line_json(encoded(value))

    def written(self, number: int, outcome: Any) -> tuple[bytes, bytes | None]:
        if not isinstance(outcome, Exception):
            try:
                return self._encoded(outcome), None
            except Exception as error:  # it can't be written
                outcome = error
        return _NULL, error_line(number, {"error": _described(outcome)})


class OpenAiLines:
    """Requests of OpenAI's batch files: ``custom_id``, ``method``, ``url`` and ``body``."""

    def item(self, line: bytes) -> dict[str, Any]:
        try:
            request: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _refused_request(None, f"the line is not JSON: {error}") from None
        known = cast("dict[str, Any]", request if isinstance(request, dict) else {})
        custom_id = known.get("custom_id")
        if not isinstance(custom_id, str):
            raise _refused_request(None, "the line is no object with a text as custom_id")
        if known.get("method") != "POST":
            raise _refused_request(custom_id, "method must be POST")
        url = known.get("url")
        if not isinstance(url, str) or not url.startswith("/"):
            raise _refused_request(custom_id, "url must be a path, such as /v1/embeddings")
        if not isinstance(known.get("body"), dict):
            raise _refused_request(custom_id, "body must be an object")
        if known["body"].get("stream"):
            raise _refused_request(custom_id, "stream: a batch has no streams; leave it out")
        return known

    def written(self, number: int, outcome: Any) -> tuple[bytes, bytes | None]:
        if isinstance(outcome, Exception):
            refused = outcome
            if not isinstance(refused, LineRefused):
                refused = _refused_request(None, in_one_line(outcome), "request_failed")
            answer = _answer(refused.custom_id, None, refused.members)
        else:
            answer = outcome
        line = _encoded_plainly(answer)
        response = answer["response"]
        if response is not None and response["status_code"] < 400:
            return line, None
        return line, error_line(number, answer)


def error_line(number: int, members: Mapping[str, Any]) -> bytes:
    return _encoded_plainly({"line": number, **members})


@asynccontextmanager
async def open_app(app: ASGIApp, window: int) -> AsyncGenerator[Batcher[Any]]:
    """Runs an application's lifespan, and opens a batcher whose items are requests to it."""
    from shoal.http.app.lifespan import Mounted, lifespans_of

    httpx: Any = import_module("httpx")  # an extra
    mounted = Mounted(app)
    transport = httpx.ASGITransport(mounted)

    async def ask(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        [request] = requests
        try:
            response = await _sent(client, request)
        except Exception as error:
            refused = _refused_request(None, in_one_line(error), "request_failed")
            return [_answer(request["custom_id"], None, refused.members)]
        try:
            body = response.json()
        except ValueError:
            body = response.text
        answered = {
            "status_code": response.status_code,
            "request_id": response.headers.get("x-request-id"),
            "body": body,
        }
        return [_answer(request["custom_id"], answered, None)]

    batcher: Batcher[Any] = Batcher(ask, max_batch_size=1, max_concurrent_batches=window)
    async with (
        lifespans_of([mounted]),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        batcher,
    ):
        yield batcher


async def _sent(client: Any, request: dict[str, Any]) -> Any:
    """Sends a request, again while the application is overloaded."""
    give_up_at, delay_s = anyio.current_time() + _MOST_REFUSED_S, _FIRST_DELAY_S
    while True:
        response = await client.post(request["url"], json=request["body"])
        if response.status_code not in _REFUSED or anyio.current_time() > give_up_at:
            return response
        await anyio.sleep(delay_s)
        delay_s = min(2 * delay_s, _MAX_DELAY_S)


def _answer(custom_id: object, response: Any, error: Any) -> dict[str, Any]:
    name = f"batch_req_{uuid4().hex}"
    return {"id": name, "custom_id": custom_id, "response": response, "error": error}


def _refused_request(custom_id: object, message: str, code: str = "invalid_request") -> LineRefused:
    return LineRefused({"code": code, "message": message}, custom_id)


def _described(error: Exception) -> Mapping[str, Any]:
    if isinstance(error, LineRefused):
        return error.members
    return {"type": type(error).__name__, "title": "The call failed", "detail": in_one_line(error)}


def _encoded_plainly(value: Any) -> bytes:
    try:
        return json_bytes(value, _not_json)
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()


def _not_json(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def _checked(signature: Signature, *, are_values: bool) -> Callable[[Any], Any]:
    """Returns what makes the item of a line, or of a value."""
    from pydantic import ValidationError

    from shoal.http.json.payload import fields_adapter
    from shoal.http.json.validation import adapter_of, finite_validator, problem_of_validation

    parameters = list(signature.parameters.values())
    is_single = len(parameters) == 1
    annotation = parameters[0].annotation if is_single else None
    if annotation is bytes and not are_values:
        return bytes
    if annotation is Parameter.empty:
        annotation = Any
    adapter = adapter_of(annotation) if is_single else fields_adapter(parameters)
    validator = finite_validator(adapter)
    check: Callable[[Any], Any]
    check = validator.validate_python if are_values else validator.validate_json

    def item(line: Any) -> Any:
        try:
            found = check(line)
        except ValidationError as error:
            given = {"value": line} if are_values else {"body": line}
            members = problem_of_validation(error, **given).members("")
            del members["status"], members["instance"]  # there is no request
            raise LineRefused(members) from None
        return found if is_single else tuple(found.get(one.name, one.default) for one in parameters)

    return item
