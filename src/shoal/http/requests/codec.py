"""The seam between a protocol and the calls of endpoints.

A codec reads the item of a request, writes an answer, writes the messages of a stream and its end,
and writes a problem, all in the form of one protocol. What a call needs else, such as routing,
deadlines and cancellation, is the same for all protocols; see `shoal.http.requests.call`. So a
protocol is one module with a codec and the paths where it is spoken; see
`shoal.http.requests.endpoint_table`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import orjson

from shoal.http.requests.problem import PROBLEM_JSON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem


class StreamForm(ABC):
    """The messages of one stream.

    Attributes:
        media_type: The media type of the answer.
        heartbeat: A message that readers skip.
        headers: Further headers of the answer.
        start: What its body begins with, before the first message.
        runs_users_code: Whether `item` may run code of the user's also for plain items.
        is_over: Whether nothing is to follow the last item. Then the call is cancelled, if it has
            not ended.
        stops_reconnection: Whether a request for it that has a ``Last-Event-ID`` is answered with
            204, which ends the reconnections of an `EventSource`.
    """

    media_type: bytes
    heartbeat: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    start: bytes = b""
    runs_users_code: bool = False
    is_over: bool = False
    stops_reconnection: bool = False

    def first_heartbeat(self) -> bytes:
        """Returns the heartbeat that begins the answer, before any other message."""
        return self.heartbeat

    @abstractmethod
    def item(self, value: Any) -> bytes:
        """Returns the message with an item; empty for none. Called once for each item.

        Raises:
            TypeError: The item can't be written.
        """

    @abstractmethod
    def end(self) -> bytes:
        """Returns the message that the stream has ended."""

    @abstractmethod
    def error(self, problem: Problem, request_id: str) -> bytes:
        """Returns the message that the stream has failed."""


class Codec(ABC):
    """Reads the requests, and writes the answers, of one endpoint's code in one protocol."""

    @abstractmethod
    def item(self, exchange: Exchange, body: bytes) -> Any:
        """Returns the item of a request; a tuple, in order, if the code has several parameters.

        Raises:
            Refused: The request does not fit the code's parameters.
        """

    @abstractmethod
    async def answer(self, exchange: Exchange, result: Any) -> None:
        """Answers a request with the result of its call.

        Raises:
            CallerLeft: The client is gone, or did not read in time.
            TypeError: The result can't be written.
        """

    @abstractmethod
    def stream(self, exchange: Exchange) -> StreamForm:
        """Returns the form of a stream that answers a request."""


def problem_json(problem: Problem, request_id: str) -> tuple[bytes, bytes]:
    """Returns the media type and the body of a problem, as of RFC 9457."""
    return PROBLEM_JSON, orjson.dumps(problem.members(request_id))
