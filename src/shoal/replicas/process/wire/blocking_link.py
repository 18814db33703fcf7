"""A blocking socket's end of the frames: one thread reads, one at a time writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.replicas.process.wire.frames import rest_of

if TYPE_CHECKING:
    import socket

    from shoal.replicas.process.wire.frames import Buffer, Frame, FrameReader

_MOST_PARTS: Final = 512


def send(sock: socket.socket, parts: list[Buffer]) -> None:
    """Sends a frame.

    Raises:
        OSError: The other end is gone.
    """
    while parts:
        parts = rest_of(parts, sock.sendmsg(parts[:_MOST_PARTS]))


def receive(sock: socket.socket, reader: FrameReader) -> Frame | None:
    """Waits for a frame, and returns it; None when the other end is gone."""
    while (frame := reader.next()) is None:
        try:
            count = sock.recv_into(reader.space())
        except OSError:
            count = 0
        if count == 0:
            return None
        reader.came(count)
    return frame
