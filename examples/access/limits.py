"""What a caller may send: requests in a time, by the library `limits`, and bytes in a body.

A WebSocket carries many requests, so both look at each of its messages.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, TypeAlias

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from starlette.exceptions import HTTPException

from examples.access.callers import problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The code that a WebSocket is closed with, and the reason.
Refusal: TypeAlias = tuple[int, str]


class RateLimit:
    """Limits the requests of each caller, such as ``"100/minute"``.

    A caller is known by its name, if `AuthenticationMiddleware` is around this, else by its
    address. Behind a proxy that is its own address only if the server trusts the proxy:
    ``--trusted-peer``.

    Each message of a WebSocket counts as a request; one too many ends the WebSocket.

    Requests are counted in this process. For more processes pass ``limits.storage.RedisStorage``.
    """

    def __init__(self, app: ASGIApp, rate: str) -> None:
        self.app = app
        self._rate: RateLimitItem = parse(rate)
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._policy = f'"caller";q={self._rate.amount};w={self._rate.get_expiry()}'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        caller = _name_of(scope)
        is_allowed = self._limiter.hit(self._rate, caller)
        window = self._limiter.get_window_stats(self._rate, caller)
        left_s = str(max(1, math.ceil(window.reset_time - time.time())))
        # As draft-ietf-httpapi-ratelimit-headers has them.
        headers = {
            "ratelimit-policy": self._policy,
            "ratelimit": f'"caller";r={window.remaining};t={left_s}',
        }
        if not is_allowed:
            headers["retry-after"] = left_s
            refusal = problem(429, "Too Many Requests", "the caller sends too often", headers)
            await refusal(scope, receive, send)
            return
        if scope["type"] == "websocket":

            def refusal_of(_: Message) -> Refusal | None:
                if self._limiter.hit(self._rate, caller):
                    return None
                return 1008, "the caller sends too often"

            await _limited_websocket(self.app, scope, receive, send, refusal_of)
            return
        named = [(name.encode(), value.encode()) for name, value in headers.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *named]}
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _name_of(scope: Scope) -> str:
    user = scope.get("user")
    if user is not None and user.is_authenticated:
        return f"name {user.display_name}"
    return f"address {scope['client'][0]}" if scope["client"] else "unix"


class BodyLimit:
    """Limits bodies of endpoints to fewer bytes than ``max_body_bytes`` of the application.

    One message of a WebSocket is as a body.
    """

    def __init__(self, app: ASGIApp, most: Mapping[str, int]) -> None:
        self.app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = None
        if scope["type"] != "lifespan":
            most = self._most.get(scope["path"].removeprefix(scope.get("root_path", "")))
        if most is None:
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":

            def refusal_of(message: Message) -> Refusal | None:
                sent = message.get("bytes") or (message.get("text") or "").encode()
                return (1009, f"more than {most} bytes") if len(sent) > most else None

            await _limited_websocket(self.app, scope, receive, send, refusal_of)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        # Not all of it: Python refuses to read a number of thousands of digits.
        if not length.isdigit() or int(length[:20]) > most:
            refusal = problem(413, "Content Too Large", f"more than {most} bytes", {})
            await refusal(scope, receive, send)
            return
        received = 0

        async def receive_no_more() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:  # a body in chunks, without a length
                raise HTTPException(413, f"more than {most} bytes")
            return message

        await self.app(scope, receive_no_more, send)


async def _limited_websocket(
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    refusal_of: Callable[[Message], Refusal | None],
) -> None:
    """Closes a WebSocket at the first of its messages that is refused."""
    is_closed = False

    async def receive_no_more() -> Message:
        nonlocal is_closed
        message = await receive()
        refusal = refusal_of(message) if message["type"] == "websocket.receive" else None
        if refusal is None:
            return message
        is_closed = True
        code, reason = refusal
        await send({"type": "websocket.close", "code": code, "reason": reason})
        return {"type": "websocket.disconnect", "code": code}

    async def send_until_closed(message: Message) -> None:
        if not is_closed:
            await send(message)

    await app(scope, receive_no_more, send_until_closed)
