"""The frames of WebSocket that nearly all messages have: one frame a message, which is all there.

wsproto reads and writes all frames, and each costs it as much as all the rest of a small message.
So a whole message in one frame is read here, and a text message is written here. Whatever is not
exactly that is left to wsproto, which knows the whole protocol and all that clients do wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wsproto.connection import ConnectionState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hypercorn.typing import WebsocketReceiveEvent

# The first byte of a frame that is a whole message, without extensions.
_TEXT: Final = 0x81
_BINARY: Final = 0x82
_MASKED: Final = 0x80
# Shorter lengths are in the second byte; in its place stands that they have two bytes more.
_SHORT: Final = 126
_TWO_BYTES: Final = 126
_MEDIUM: Final = 2**16
_MASK: Final = 4


def message_at(data: bytes, at: int, longest: int) -> tuple[WebsocketReceiveEvent, int] | None:
    """Returns a client's message that is one frame, and where that frame ends.

    Args:
        data: What the client has sent; a frame begins there.
        at: Where it begins.
        longest: The largest message, in bytes.

    Returns:
        None if the frame is not all there, is not a whole message, or breaks the protocol.
    """
    size = len(data)
    if size < at + 2 + _MASK:
        return None
    kind, length = data[at], data[at + 1] - _MASKED
    start = at + 2 + _MASK
    if length == _TWO_BYTES:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        start += 2
        if length < _SHORT:
            return None
    elif not 0 <= length < _SHORT:  # it has eight bytes, or there is no mask
        return None
    end = start + length
    if end > size or length > longest:
        return None
    if kind == _TEXT:
        try:
            text = str(_unmasked(data, start, end), "utf-8")
        except UnicodeDecodeError:
            return None
        return {"type": "websocket.receive", "bytes": None, "text": text}, end
    if kind == _BINARY:
        payload = _unmasked(data, start, end)
        return {"type": "websocket.receive", "bytes": payload, "text": None}, end
    return None


def _unmasked(data: bytes, start: int, end: int) -> bytes:
    length = end - start
    mask = data[start - _MASK : start] * (length // _MASK + 1)
    masked = int.from_bytes(data[start:end], "little")
    return (masked ^ int.from_bytes(mask[:length], "little")).to_bytes(length, "little")


def text_frames(texts: Iterable[bytes]) -> bytes:
    """Returns the frames of a server's text messages.

    Args:
        texts: The messages, each valid UTF-8.
    """
    frames: list[bytes] = []
    for text in texts:
        size = len(text)
        if size < _SHORT:
            frames.append(b"\x81%c%b" % (size, text))
        elif size < _MEDIUM:
            frames.append(b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), text))
        else:
            frames.append(b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), text))
    return b"".join(frames)


def is_between_messages(connection: Any) -> bool:
    """Returns whether wsproto holds no part of a message, and the next frame may begin one.

    Args:
        connection: The connection of wsproto.
    """
    # No public API tells this. With a wsproto that stores it elsewhere, that reads all messages.
    frames = getattr(connection, "_proto", None)
    decoder = getattr(frames, "_frame_decoder", None)
    buffer = getattr(getattr(decoder, "buffer", None), "buffer", None)
    messages = getattr(frames, "_message_decoder", None)
    return (
        connection.state is ConnectionState.OPEN
        and buffer == b""
        and getattr(decoder, "header", buffer) is None
        and getattr(messages, "opcode", buffer) is None
    )
