"""The application that a front end serves: it passes each request on to the server's process."""

from __future__ import annotations

import itertools
from functools import partial
from json import dumps as dumps_json
from pickle import dumps
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.loops.this_loop import parking_of_this_loop
from shoal.http.direct_call import TRACE
from shoal.http.front_ends.passed_request import PassedRequest
from shoal.http.front_ends.wire import (
    HEARTBEATS,
    NUMBER,
    REFUSAL,
    FrontKind,
    Refusal,
    RequestHead,
    sendable,
)
from shoal.http.requests.problem import PROBLEM_JSON, ended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from shoal.http.direct_call import DirectCall
    from shoal.http.front_ends.channel import Channel
    from shoal.observe.connections import ConnectionTotals

_MOST_HEADS: Final = 1024
_LONGEST_KEPT: Final = 4096
_PASSED_ON: Final = frozenset({"websocket.http.response"})


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
        # The headers of heads that were sent, with the number of each. Requests with the same
        # headers object have the same head, and come by the same connection.
        self._heads: dict[int, tuple[object, int]] = {}
        self._head_ids = itertools.count(1)

    def answer_directly(self, call: DirectCall) -> Awaitable[None] | None:
        """Answers a request of this package's server; see `shoal.http.direct_call`."""
        if self._channel.is_closed:
            call.answer(503, self._refusal.lines, self._refusal.body)
            return None
        number = self._head_of(call)
        body = call.whole_body()
        id_, request = self._new(call, {})
        if body is None:
            self._channel.post(FrontKind.OPEN, id_, NUMBER.pack(number))
            return request.run(call.receive, call.send)
        self._channel.post(FrontKind.REQUEST, id_, NUMBER.pack(number), body)
        request.wait(call)
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as an ASGI application; it has no lifespan."""
        extensions: Mapping[str, Any] = scope.get("extensions") or {}
        number = next(self._head_ids)
        head = RequestHead(
            scope.get("method", ""),
            scope["path"],
            dict(scope["headers"]),
            sendable(scope),
            _PASSED_ON.intersection(extensions),
            is_kept=False,
        )
        kind = "websocket.http" if scope["type"] == "websocket" else "http"
        offered = {
            **extensions.get("shoal.disconnect", {}),
            "note_trace": partial(scope.__setitem__, TRACE),  # where the access log looks
        }
        id_, request = self._new(None, offered, kind)
        self._channel.post(FrontKind.HEAD, number, dumps(head, 5))
        self._channel.post(FrontKind.OPEN, id_, NUMBER.pack(number))
        if self._channel.is_closed:
            request.lose()
        await request.run(receive, send)

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

    def _new(
        self, call: DirectCall | None, offered: Mapping[str, Any], kind: str = "http"
    ) -> tuple[int, PassedRequest]:
        id_ = next(self._ids)
        self._requests[id_] = request = PassedRequest(
            self._parking, self._channel, id_, self._ended, self._refusal, call, offered, kind
        )
        return id_, request

    def _ended(self, id_: int) -> None:
        self._requests.pop(id_, None)

    def _head_of(self, call: DirectCall) -> int:
        """Returns the number of a request's head, which is sent first if it is a new one."""
        headers = call.headers
        key = id(headers)
        known = self._heads.get(key)
        if known is not None and known[0] is headers:
            return known[1]
        number = next(self._head_ids)
        line = call.line
        is_kept = sum(len(name) + len(value) for name, value in headers.items()) <= _LONGEST_KEPT
        if is_kept:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
                self._channel.post(FrontKind.FORGET)
            self._heads[key] = headers, number
        scope = sendable(call.scope())
        offers = frozenset({HEARTBEATS})
        head = RequestHead(line.method, line.path, dict(headers), scope, offers, is_kept)
        self._channel.post(FrontKind.HEAD, number, dumps(head, 5))
        return number
