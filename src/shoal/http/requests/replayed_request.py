"""A Starlette request whose body has been read already; it can be sent to another process.

What crosses is data: the method, the URL, the headers, the client, the path parameters and the
body. What a request refers to in this process, such as the application, stays here, and whoever
asks for it over there is told so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import anyio
from starlette.requests import Request

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

_DATA: Final = (
    *("type", "method", "scheme", "http_version", "path", "raw_path", "root_path", "query_string"),
    *("headers", "client", "server", "path_params"),
)


class ReplayedRequest(Request):
    """A request with its whole body.

    Its ``is_disconnected()`` is always false: the call is cancelled instead, which the handler sees
    in ``current_batch().requests``.
    """

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope, _giving(body))
        self._whole_body = body

    def __reduce__(self) -> tuple[Any, ...]:
        return _data_of(self, self._whole_body)


def _data_of(request: Request, body: bytes) -> tuple[Any, ...]:
    """Says how to make a request again where it is sent to."""
    data = {name: request.scope[name] for name in _DATA if name in request.scope}
    return RequestFromElsewhere, (data, body)


def _giving(body: bytes) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await anyio.sleep_forever()
        return messages.pop()

    return receive


def _stays(name: str) -> Any:
    """Makes a property of what does not cross."""

    def refuse(_request: Request) -> NoReturn:
        raise RuntimeError(
            f"request.{name} is in the server's process, and this code runs in another one: only "
            "the request's data crosses. Use placement='task', or pass what is needed in a header"
        )

    return property(refuse)


class RequestFromElsewhere(Request):
    """The same in another process."""

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope, _giving(body))
        self._whole_body = body

    def __reduce__(self) -> tuple[Any, ...]:
        return _data_of(self, self._whole_body)

    app: Any = _stays("app")  # pyright: ignore[reportIncompatibleMethodOverride]
    state: Any = _stays("state")  # pyright: ignore[reportIncompatibleMethodOverride]
    session: Any = _stays("session")  # pyright: ignore[reportIncompatibleMethodOverride]
    user: Any = _stays("user")  # pyright: ignore[reportIncompatibleMethodOverride]
    auth: Any = _stays("auth")  # pyright: ignore[reportIncompatibleMethodOverride]
