"""Many items in one request: a line of JSON for each item, and for each result.

The media type tells that a body has many items. A key such as ``items`` could not, since an item
may itself be a list, or an object with any keys. Each line of the response has the result of the
item in that place, or its problem, so one bad item does not fail the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from anyio.lowlevel import checkpoint

from shoal.http.json.stream_forms import JSON_LINES
from shoal.http.requests.plain import encoded, one_line_json
from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.http.requests.call import EndpointCall
    from shoal.http.requests.exchange import Exchange

LINES: Final = b"application/x-ndjson"
_NAMES: Final = frozenset({LINES, b"application/ndjson", b"application/jsonl"})
_RESULT: Final = b'{"result":%b}\n'
# How many items are read or written in one step of the event loop.
_IN_ONE_STEP: Final = 64


def has_lines(media_type: bytes) -> bool:
    return media_type.partition(b";")[0].strip().lower() in _NAMES


async def respond_with_lines(call: EndpointCall, exchange: Exchange, items: Iterator[Any]) -> None:
    """Makes a call for each item, and responds with a line for each."""
    if call.batcher.streams:
        detail = "This endpoint responds with a stream: send one item, as application/json."
        raise Refused.of("unsupported-media-type", detail)
    outcomes: list[Any] = []
    lines: list[bytes] = []
    try:
        for item in items:
            outcomes.append(item)
            if len(outcomes) % _IN_ONE_STEP == 0:
                await checkpoint()
        if not outcomes:
            raise Refused.of("invalid-item", "The body has no lines, and each item is a line.")
        places = [nth for nth, one in enumerate(outcomes) if not isinstance(one, Refused)]
        if places:
            found = await call.results([outcomes[nth] for nth in places], return_exceptions=True)
            for nth, result in zip(places, found, strict=True):
                outcomes[nth] = result
            found.clear()
        for outcome in outcomes:
            lines.append(_line(exchange, outcome))
            if len(lines) % _IN_ONE_STEP == 0:
                await checkpoint()
    finally:
        outcomes.clear()  # the traceback of an error holds this frame
    await exchange.respond(200, LINES, b"".join(lines))


def _line(exchange: Exchange, outcome: Any) -> bytes:
    if not isinstance(outcome, Exception):
        try:
            return _RESULT % one_line_json(encoded(outcome))
        except Exception as error:  # it can't be written
            outcome = error
    return JSON_LINES.error(exchange.explained(outcome), exchange.request_id)
