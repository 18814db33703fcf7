"""The application that a front end serves: it passes each request on to the server's process."""

from __future__ import annotations

import itertools
from json import dumps as dumps_json
from pickle import dumps
from typing import TYPE_CHECKING, Final

import anyio

from shoal.asgi.extensions import DISCONNECT
from shoal.front_ends.passed_request import PassedRequest
from shoal.front_ends.wire import (
    NUMBER,
    REFUSAL,
    FrontKind,
    Refusal,
    RequestHead,
)
from shoal.http.requests.problem import PROBLEM_JSON, ended
from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import Receive, Scope, Send

    from shoal.asgi.connections import ConnectionTotals
    from shoal.front_ends.channel import Channel

_MOST_HEADS: Final = 1024
_LONGEST_KEPT: Final = 4096
_MOST_DIGITS: Final = 5  # of the length of a small body
_OF_HEADS: Final = (
    *("type", "method", "http_version", "scheme", "path", "raw_path", "query_string", "root_path"),
    *("client", "server"),
)


class FrontEnd:
    """An ASGI application that passes requests on.

    Args:
        channel: The channel to the server's process.
        connections: Returns the counts of the connections.
        retry_after_s: The ``Retry-After`` of requests that are refused, in seconds.

    Attributes:
        may_serve: Set when clients may be accepted.
        must_drain: Set when the server ends.
        must_end: Set when all connections must be closed by force.
    """

    def __init__(
        self, channel: Channel, connections: Callable[[], ConnectionTotals], retry_after_s: int
    ) -> None:
        self.may_serve = anyio.Event()
        self.must_drain = anyio.Event()
        self.must_end = anyio.Event()
        self._channel = channel
        self._connections = connections
        problem = ended(retry_after_s)
        headers = [(b"content-type", PROBLEM_JSON), *problem.headers]
        members = problem.members("")
        del members["instance"]  # it has no id here
        self._refusal = Refusal(headers, dumps_json(members).encode())
        self._parking = parking_of_this_loop()
        self._requests: dict[int, PassedRequest] = {}
        self._ids = itertools.count(1)
        # The numbers of heads that were sent, which requests of one connection share.
        self._heads: dict[tuple[object, ...], int] = {}
        self._head_ids = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as an ASGI application; it has no lifespan."""
        is_http = scope["type"] == "http"
        offered = scope["extensions"][DISCONNECT]
        first, body = None, None
        if is_http and _comes_at_once(scope["headers"]):
            first = await receive()
            if first["type"] == "http.request" and not first.get("more_body", False):
                body = bytes(first.get("body", b""))
        number = self._head_of(scope)
        id_ = next(self._ids)
        kind = "http" if is_http else "websocket.http"
        request = PassedRequest(self._parking, self._channel, id_, self._refusal, offered, kind)
        self._requests[id_] = request
        try:
            if body is None:
                self._channel.post(FrontKind.OPEN, id_, NUMBER.pack(number))
            else:
                self._channel.post(FrontKind.REQUEST, id_, NUMBER.pack(number), body)
            if self._channel.is_closed:
                request.lose()
            await request.run(receive if body is None else None, send, first)
        finally:
            del self._requests[id_]

    def count_refusal(self, status: int, took_s: float) -> None:
        """Has the server's process count a request that the server here has answered itself."""
        self._channel.post(FrontKind.REFUSED, body=REFUSAL.pack(status, took_s))

    def take(self, kind: FrontKind, id_: int, body: bytes, data: bytes) -> None:
        """Handles a message from the server's process."""
        request = self._requests.get(id_)
        if request is not None:
            request.take(kind, body, data)
        elif kind is FrontKind.SERVE:
            self.may_serve.set()
        elif kind is FrontKind.DRAIN:
            self.may_serve.set()
            self.must_drain.set()
        elif kind is FrontKind.ABORT:
            self.must_end.set()
        elif kind is FrontKind.COUNT:
            self.tell_connections()

    def tell_connections(self) -> None:
        """Tells the server's process the counts of the connections."""
        told = tuple(self._connections())
        self._channel.post(FrontKind.CONNECTIONS, body=dumps(told, 5))

    def lose(self) -> None:
        """Refuses all requests, since the server's process is gone."""
        for request in tuple(self._requests.values()):
            request.lose()

    def _head_of(self, scope: Scope) -> int:
        """Returns the number of a request's head, which is sent first if it is a new one."""
        key = (*(scope.get(name) for name in _OF_HEADS), *scope["headers"])
        number = self._heads.get(key)
        if number is not None:
            return number
        number = next(self._head_ids)
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        is_kept = scope["type"] == "http" and size <= _LONGEST_KEPT
        if is_kept:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
                self._channel.post(FrontKind.FORGET)
            self._heads[key] = number
        has_heartbeats = "heartbeat" in scope["extensions"][DISCONNECT]
        sent = {name: scope[name] for name in scope if name not in ("state", "extensions")}
        head = RequestHead(sent, has_heartbeats, scope["type"] == "websocket", is_kept)
        self._channel.post(FrontKind.HEAD, number, dumps(head, 5))
        return number


def _comes_at_once(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Returns whether a body is small, and is sent without being asked for."""
    for name, value in headers:
        if name == b"content-length":
            if len(value) > _MOST_DIGITS:
                return False
        elif name in (b"expect", b"transfer-encoding"):
            return False
    return True
