"""The forms of a stream in Shoal's own protocol, and the choice of one by ``Accept``.

==========================  ====================================================================
``text/event-stream``       server-sent events, for browsers and clients that read each item
``application/x-ndjson``    a line of JSON for each item, for programs
``application/json``        one array of all items, for clients without support for streams
==========================  ====================================================================

The first two have three distinct messages: an item, the end, an error. A stream without one of the
last two is incomplete, and its reader can tell. Server-sent events have names for that
(``event: end``, ``event: error``; items are unnamed). JSON lines have no names, so each line is an
object whose only key is the type of message; with bare items no value could mark the end. An array
ends with its closing bracket. Without it the body is not JSON, so no client takes it for complete.

A browser's `EventSource` reconnects when its response ends, whatever the reason. It then sends the
last id as ``Last-Event-ID``, which gets a 204: it stops, and the handler does not run again. Events
therefore have ids, as does a heartbeat before the first of them. Only a response to ``GET`` has
ids, since `EventSource` uses no other method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from shoal.http.requests.plain import encoded, one_line_json
from shoal.http.requests.problem import Problem, Refused
from shoal.http.requests.protocol import StreamForm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.http.requests.exchange import Exchange

# Tells caches that ``Accept`` chose the form of a response.
VARIES: Final = (b"vary", b"accept")


def weights(header: bytes) -> dict[bytes, float]:
    """Returns weights from 0 to 1 by name, without unreadable parts."""
    weight_of: dict[bytes, float] = {}
    for media_range in header.lower().split(b","):
        name, *parameters = (part.strip() for part in media_range.split(b";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith(b"q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = -1.0
        if name and 0 <= weight <= 1:
            weight_of[name] = weight
    return weight_of


def prefers(accepted: Mapping[bytes, float], other: bytes, usual: bytes) -> bool:
    """Returns whether `other` is named, and not below `usual`; ``*/*`` names nothing."""
    weight = accepted.get(other, 0.0)
    return weight > 0 and weight >= accepted.get(usual, 0.0)


# A browser's EventSource drops an event that has no data.
_END: Final = b"event: end\ndata: {}\n\n"
_DONE: Final = b"data: [DONE]\n\n"


class _Framed(StreamForm):
    """A form whose messages are JSON between constant texts."""

    headers = (VARIES,)
    before_item: ClassVar[bytes]
    before_error: ClassVar[bytes]
    after: ClassVar[bytes]
    last: bytes

    def item(self, value: Any) -> bytes:
        return self.before_item + one_line_json(encoded(value)) + self.after

    def end(self) -> bytes:
        return self.last

    def error(self, problem: Problem, request_id: str) -> bytes:
        members = encoded(problem.members(request_id))
        return self.before_error + one_line_json(members) + self.after


class ServerSentEvents(_Framed):
    """Server-sent events without ids; `last` ends a stream that has not failed."""

    media_type = b"text/event-stream; charset=utf-8"
    heartbeat = b":\n"
    stops_reconnection = True
    before_item = b"data: "
    before_error = b"event: error\ndata: "
    after = b"\n\n"

    def __init__(self, last: bytes) -> None:
        self.last = last


class NumberedEvents(StreamForm):
    """Server-sent events of one stream with ids, for a browser's `EventSource`."""

    media_type = ServerSentEvents.media_type
    heartbeat = ServerSentEvents.heartbeat
    headers = (VARIES,)
    start = b"retry: 1000\n"  # milliseconds
    stops_reconnection = True

    def __init__(self, last: bytes) -> None:
        self._events = ServerSentEvents(last)
        self._number = 0

    def first_heartbeat(self) -> bytes:
        # An event without data is not passed to the page, but the browser remembers its id.
        return b"id: 0\n\n"

    def item(self, value: Any) -> bytes:
        return self._numbered(self._events.item(value))

    def end(self) -> bytes:
        return self._numbered(self._events.end())

    def error(self, problem: Problem, request_id: str) -> bytes:
        return self._numbered(self._events.error(problem, request_id))

    def _numbered(self, event: bytes) -> bytes:
        self._number += 1
        return b"id: %d\n%b" % (self._number, event)


class JsonLinesForm(_Framed):
    """Lines of JSON objects with one key: ``item``, ``end`` or ``error``."""

    media_type = b"application/x-ndjson; charset=utf-8"
    heartbeat = b"\n"
    before_item = b'{"item":'
    before_error = b'{"error":'
    after = b"}\n"
    last = b'{"end":true}\n'


class JsonArray(StreamForm):
    """One JSON array of all items; a failed stream lacks the closing bracket."""

    headers = (VARIES,)
    media_type = b"application/json"
    heartbeat = b"\n"

    def __init__(self) -> None:
        self._before = b"["

    def item(self, value: Any) -> bytes:
        message = self._before + encoded(value)
        self._before = b","
        return message

    def end(self) -> bytes:
        return b"[]" if self._before == b"[" else b"]"

    def error(self, problem: Problem, request_id: str) -> bytes:
        return b""


JSON_LINES: Final = JsonLinesForm()

# The media types of the forms; of equally accepted ones the first wins.
_TYPES: Final = (
    b"application/x-ndjson",
    b"application/ndjson",
    b"text/event-stream",
    b"application/json",
)

_BY_DEFAULT: Final = b"text/event-stream"


def form_for(exchange: Exchange) -> StreamForm:
    """Returns the form of the stream; raises `Refused` if the client accepts none."""
    media_type = accepted(exchange.headers.get(b"accept", b""))
    if media_type is None:
        names = b", ".join(name for name in _TYPES if name != b"application/ndjson").decode()
        raise Refused.of("not-acceptable", f"There are {names}.", (VARIES,))
    if media_type == b"application/json":
        return JsonArray()
    if media_type != b"text/event-stream":
        return JSON_LINES
    last = _DONE if exchange.options.sse_done else _END
    if exchange.scope["method"] in ("GET", "HEAD"):
        return NumberedEvents(last)
    return ServerSentEvents(last)


def accepted(accept: bytes) -> bytes | None:
    """Returns the media type that a client prefers; None if it accepts none."""
    if not accept or accept == b"*/*":
        return _BY_DEFAULT
    weight_of = weights(accept)
    if not any(b"/" in name for name in weight_of):  # nothing of it can be read
        return _BY_DEFAULT
    best, best_rank = None, (0.0, 0, 0)
    for place, media_type in enumerate(_TYPES):
        ranges = (b"*/*", media_type.partition(b"/")[0] + b"/*", media_type)
        named = [nth for nth, each in enumerate(ranges) if each in weight_of]
        if named:  # the most specific one counts
            order = -place if named[-1] == 2 else int(media_type == _BY_DEFAULT)
            rank = weight_of[ranges[named[-1]]], named[-1], order
            if rank[0] > 0 and (best is None or rank > best_rank):
                best, best_rank = media_type, rank
    return best
