"""Makes the item of a request on a WebSocket, as the codec does for a request over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from shoal.http.requests.problem import Refused
from shoal.http.websocket.messages import NewRequest, odd_member, read_text
from shoal.http.websocket.problems import takes_bytes, takes_text

if TYPE_CHECKING:
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.json_codec import JsonCodec
    from shoal.http.websocket.request import SocketRequest

# The kinds of input whose reader parses the text as JSON.
_VALIDATED: Final = frozenset({"json", "array"})


def item_of(codec: JsonCodec, request: SocketRequest, new: NewRequest, text: bytes | None) -> Any:
    """Returns the item of a request.

    Args:
        codec: The codec of its call.
        request: The request.
        new: The client's message.
        text: The whole message, if only a part of it was read yet; see `quickly_read`.

    Raises:
        Refused: The item does not fit the endpoint.
        Violation: The message is not what it seemed to be.
    """
    takes = codec.takes
    if new.is_binary and takes == "json":
        raise Refused(takes_text())
    if not new.is_binary and takes == "bytes":
        raise Refused(takes_bytes())
    exchange = cast("Exchange", request)  # it has all of it that a reader of items uses
    if text is not None and takes not in _VALIDATED:
        new, text = _read_again(new, text, request), None
    try:
        return codec.item(exchange, new.body)
    except Refused as refused:
        if text is None or refused.problem.kind != "invalid-json":
            raise
    return codec.item(exchange, _read_again(new, text, request).body)


def _read_again(new: NewRequest, text: bytes, request: SocketRequest) -> NewRequest:
    """Reads a message as a whole whose item was taken out."""
    again = read_text(text, request.settings.max_json_elements)
    if isinstance(again, NewRequest) and again.refused is not None:
        raise again.refused
    if not isinstance(again, NewRequest) or again._replace(body=new.body) != new:
        raise odd_member()
    return again
