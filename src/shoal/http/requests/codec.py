"""The contract between a protocol and the calls of endpoints.

A codec reads the item of a request, writes a response, writes the messages of a stream and its end,
and writes a problem, all in the form of one protocol. The rest of a call, such as routing,
deadlines and cancellation, is the same for all protocols and lives in `shoal.http.requests.call`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import orjson

from shoal.http.requests.problem import PROBLEM_JSON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem


class StreamForm(ABC):
    """The messages of one stream."""

    media_type: bytes
    # A message that readers skip.
    heartbeat: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    # Sent before the first message.
    start: bytes = b""
    # Whether `item` may run the user's code even for plain items.
    runs_users_code: bool = False
    # Nothing follows the last item: a call that has not ended is cancelled.
    is_over: bool = False
    # A request with ``Last-Event-ID`` gets a 204, which ends the reconnections of an EventSource.
    stops_reconnection: bool = False

    def first_heartbeat(self) -> bytes:
        return self.heartbeat

    @abstractmethod
    def item(self, value: Any) -> bytes:
        """Returns the message of an item, possibly empty; called once for each item."""

    @abstractmethod
    def end(self) -> bytes: ...

    @abstractmethod
    def error(self, problem: Problem, request_id: str) -> bytes: ...


class Codec(ABC):
    """Reads the requests, and writes the responses, of one endpoint's code in one protocol."""

    # Yields the items of a body that has many; None if the protocol has one in each.
    lines: Callable[[Exchange, bytes], Iterator[Any]] | None = None

    @abstractmethod
    def item(self, exchange: Exchange, body: bytes) -> Any:
        """Returns a tuple for several parameters; raises `Refused` if the request does not fit."""

    @abstractmethod
    async def answer(self, exchange: Exchange, result: Any) -> None:
        """Raises TypeError if the result can't be written."""

    @abstractmethod
    def stream(self, exchange: Exchange) -> StreamForm: ...


def problem_json(problem: Problem, request_id: str) -> tuple[bytes, bytes]:
    """Returns the media type and the body of a problem (RFC 9457)."""
    return PROBLEM_JSON, orjson.dumps(problem.members(request_id))
