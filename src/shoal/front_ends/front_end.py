"""The application that a front end serves: it passes each request on to the server's process."""

from __future__ import annotations

import itertools
from json import dumps as dumps_json
from typing import TYPE_CHECKING, Final

import anyio

from shoal.asgi.extensions import DISCONNECT
from shoal.front_ends.passed_request import PassedRequest
from shoal.front_ends.wire import Head
from shoal.http.requests.problem import PROBLEM_JSON, ended
from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import Receive, Scope, Send

    from shoal.asgi.connections import ConnectionTotals
    from shoal.front_ends.channel import Channel
    from shoal.front_ends.wire import PassedMessage, Request

_MOST_HEADS: Final = 1024
_LONGEST_KEPT: Final = 4096
_MOST_DIGITS: Final = 5  # of the length of a small body
_ASKED_FOR: Final = frozenset((b"expect", b"transfer-encoding"))
_OF_EACH: Final = ("client", "state", "extensions")  # not of the head


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
        channel: As above.
        parking: The event loop's way to wait.
        refusal: The headers and the body of the answer to requests that the server's process can't
            answer, because it ends or is gone.
    """

    def __init__(
        self, channel: Channel, connections: Callable[[], ConnectionTotals], retry_after_s: int
    ) -> None:
        self.may_serve = anyio.Event()
        self.must_drain = anyio.Event()
        self.must_end = anyio.Event()
        self.channel = channel
        self.parking = parking_of_this_loop()
        self.refusal = _refusal(retry_after_s)
        self._connections = connections
        self._requests: dict[int, PassedRequest] = {}
        self._ids = itertools.count(1)
        # The numbers of the heads that the server's process keeps, from the oldest on.
        self._heads: dict[tuple[object, ...], int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as an ASGI application; it has no lifespan."""
        first, body = None, None
        if scope["type"] == "http" and _comes_at_once(scope["headers"]):
            first = await receive()
            if first["type"] == "http.request" and not first.get("more_body", False):
                body = bytes(first.get("body", b""))
        id_ = next(self._ids)
        self._requests[id_] = request = PassedRequest(self, id_, scope)
        try:
            self.channel.post("request", id_, self._content(scope, body), len(body or b""))
            if self.channel.is_closed:
                request.lose()
            await request.run(receive if body is None else None, send, first)
        finally:
            del self._requests[id_]

    def count_refusal(self, status: int, took_s: float) -> None:
        """Has the server's process count a request that the server here has answered itself."""
        self.channel.post("refused", content=(status, took_s))

    def take(self, messages: Sequence[PassedMessage]) -> None:
        """Handles messages from the server's process."""
        for name, id_, content in messages:
            if id_:
                request = self._requests.get(id_)
                if request is not None:
                    request.take(name, content)
            elif name == "count":
                self.tell_connections()
            elif name == "abort":
                self.must_end.set()
            else:
                self.may_serve.set()
                if name == "drain":
                    self.must_drain.set()

    def tell_connections(self) -> None:
        """Tells the server's process the counts of the connections."""
        self.channel.post("connections", content=tuple(self._connections()))

    def lose(self) -> None:
        """Refuses all requests, since the server's process is gone."""
        for request in tuple(self._requests.values()):
            request.lose()

    def _content(self, scope: Scope, body: bytes | None) -> Request:
        """Returns the content of the message that passes a request on, which is posted at once."""
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        key = (
            *(scope["type"], scope.get("method"), scope["http_version"], scope["scheme"]),
            *(scope["path"], scope["raw_path"], scope["query_string"], scope["root_path"]),
            *(scope["server"], *headers),
        )
        number = self._heads.get(key)
        if number is not None:
            return number, None, scope["client"], body
        number, size = 0, len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(map(len, itertools.chain.from_iterable(headers)))
        if scope["type"] == "http" and size <= _LONGEST_KEPT:
            number = len(self._heads) + 1
            if number > _MOST_HEADS:
                number = self._heads.pop(next(iter(self._heads)))
            self._heads[key] = number
        sent = {name: scope[name] for name in scope if name not in _OF_EACH}
        offered = {*scope["extensions"][DISCONNECT]}
        if scope["type"] == "http":
            offered |= {"compress", "send"}
        head = Head(sent, tuple(offered))
        return number, head, scope["client"], body


def _comes_at_once(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Returns whether a body is small, and is sent without being asked for."""
    given = dict(headers)
    length = given.get(b"content-length", b"")
    return len(length) <= _MOST_DIGITS and _ASKED_FOR.isdisjoint(given)


def _refusal(retry_after_s: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Returns the headers and the body of the answer to a request that can't be passed on."""
    problem = ended(retry_after_s)
    members = problem.members("")
    del members["instance"]  # it has no id here
    body = dumps_json(members).encode()
    length = (b"content-length", b"%d" % len(body))
    return [(b"content-type", PROBLEM_JSON), *problem.headers, length], body
