"""A Starlette request whose body has been read already; it can be sent to another process.

Only data is sent: the method, the URL, the headers, the client, the path parameters and the body.
Access to other attributes in that process, such as the application, raises an error.

A form costs its parser more than its size says: the parser looks at each parameter of a header
several times, so a part with thousands of semicolons in a header takes milliseconds. A text of many
short fields is as slow. Both are bounded before a parser sees the body, with fast searches.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, cast

import anyio
from starlette.requests import Request

from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Message, Receive, Scope

_DATA: Final = (
    *("type", "method", "scheme", "http_version", "path", "raw_path", "root_path", "query_string"),
    *("headers", "client", "server", "path_params"),
)
_MOST_PARAMETERS: Final = 32
_MOST_HEADER_BYTES: Final = 2**16
_MOST_FIELDS: Final = 1000
_parser_log: Final = logging.getLogger("python_multipart")
_URL_ENCODED: Final = b"application/x-www-form-urlencoded"


class _RequestWithBody(Request):
    # Its is_disconnected() is always false: a disconnect cancels the call, which the handler sees
    # in current_batch().requests.

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope, _receive_of(body))
        self._whole_body = body

    def stream(self) -> AsyncGenerator[bytes, None]:
        """Returns the whole body, and an empty chunk as its end."""
        # No async generator: older versions of Starlette leave it suspended if a parser raises.
        return cast("AsyncGenerator[bytes, None]", _Chunks([self._whole_body, b""]))

    def __reduce__(self) -> tuple[Any, ...]:
        data = {name: self.scope[name] for name in _DATA if name in self.scope}
        return RequestFromElsewhere, (data, self._whole_body)


class WholeRequest(_RequestWithBody):
    """A request with its whole body; raises `Refused` for a form that costs too much to read."""

    def __init__(self, scope: Scope, body: bytes) -> None:
        for name, value in scope["headers"]:
            if name == b"content-type":
                _check_form(value, body)
        super().__init__(scope, body)


class _Chunks:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = iter(chunks)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        for chunk in self._chunks:
            return chunk
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Does nothing; newer versions of Starlette close the stream."""


def _receive_of(body: bytes) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await anyio.sleep_forever()
        return messages.pop()

    return receive


def _unavailable(name: str) -> Any:
    """Returns a property that raises, for an attribute that is not sent."""

    def refuse(_request: Request) -> NoReturn:
        raise RuntimeError(
            f"request.{name} is in the server's process, and this code runs in another one: only "
            "the request's data is sent. Use placement='task', or pass what is needed in a header"
        )

    return property(refuse)


class RequestFromElsewhere(_RequestWithBody):
    app: Any = _unavailable("app")  # pyright: ignore[reportIncompatibleMethodOverride]
    state: Any = _unavailable("state")  # pyright: ignore[reportIncompatibleMethodOverride]
    session: Any = _unavailable("session")  # pyright: ignore[reportIncompatibleMethodOverride]
    user: Any = _unavailable("user")  # pyright: ignore[reportIncompatibleMethodOverride]
    auth: Any = _unavailable("auth")  # pyright: ignore[reportIncompatibleMethodOverride]


def _check_form(content_type: bytes, body: bytes) -> None:
    """Checks the cost of reading a form; ignores other bodies."""
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == _URL_ENCODED and body.count(b"&") + body.count(b";") >= _MOST_FIELDS:
        raise _too_complex(f"it has more than {_MOST_FIELDS} fields")
    if not media_type.startswith(b"multipart/"):
        return
    _check_parameters(content_type)
    try:
        from python_multipart.multipart import parse_options_header
    except ModuleNotFoundError:  # then nobody can read it
        return
    if _parser_log.level == logging.NOTSET:  # it warns of each malformed form
        _parser_log.setLevel(logging.ERROR)
    line = b"--" + parse_options_header(content_type)[1].get(b"boundary", b"")
    size = 0
    at = 0 if body.startswith(line) else body.find(b"\r\n" + line)
    while at >= 0:
        end = body.find(b"\r\n\r\n", at, at + _MOST_HEADER_BYTES)
        header = body[at : end if end >= 0 else at + _MOST_HEADER_BYTES]
        _check_parameters(header)
        size += len(header)
        if size > _MOST_HEADER_BYTES:
            raise _too_complex(f"its parts have more than {_MOST_HEADER_BYTES} bytes of headers")
        at = body.find(b"\r\n" + line, at + 2)


def _check_parameters(header: bytes) -> None:
    if header.count(b";") > _MOST_PARAMETERS:
        raise _too_complex(f"a header has more than {_MOST_PARAMETERS} parameters")


def _too_complex(detail: str) -> Refused:
    title = "The form is not accepted"
    return Refused(Problem(413, "body-too-complex", title, f"The form: {detail}."))
