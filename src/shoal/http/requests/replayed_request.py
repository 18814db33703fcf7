"""A Starlette request whose body has been read already; it can be sent to another process.

Only data is sent: the method, the URL, the headers, the client, the path parameters and the body.
Access to other attributes in that process, such as the application, raises an error.
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

    Its ``is_disconnected()`` is always false: a disconnect cancels the call, which the handler sees
    in ``current_batch().requests``.
    """

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope, _receive_of(body))
        self._whole_body = body

    def __reduce__(self) -> tuple[Any, ...]:
        return _data_of(self, self._whole_body)


def _data_of(request: Request, body: bytes) -> tuple[Any, ...]:
    """Returns the data for pickle to create the request again in another process."""
    data = {name: request.scope[name] for name in _DATA if name in request.scope}
    return RequestFromElsewhere, (data, body)


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


class RequestFromElsewhere(Request):
    """The request as it arrives in another process."""

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope, _receive_of(body))
        self._whole_body = body

    def __reduce__(self) -> tuple[Any, ...]:
        return _data_of(self, self._whole_body)

    app: Any = _unavailable("app")  # pyright: ignore[reportIncompatibleMethodOverride]
    state: Any = _unavailable("state")  # pyright: ignore[reportIncompatibleMethodOverride]
    session: Any = _unavailable("session")  # pyright: ignore[reportIncompatibleMethodOverride]
    user: Any = _unavailable("user")  # pyright: ignore[reportIncompatibleMethodOverride]
    auth: Any = _unavailable("auth")  # pyright: ignore[reportIncompatibleMethodOverride]
