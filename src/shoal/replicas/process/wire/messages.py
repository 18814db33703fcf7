"""Messages between processes: pickled objects, with their large buffers outside of the pickle.

Pickle's protocol 5 passes out the memory of arrays instead of copying it into the pickle. If there
is shared memory, the buffers are copied into it and only their places are sent.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.failures.held import held
from shoal.replicas.process.wire.frames import MOST_GIVEN_BACK, encoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from enum import IntEnum

    from shoal.replicas.process.wire.frames import Buffer, Frame
    from shoal.replicas.process.wire.shared_memory import Region

_LEAST_BESIDE: Final = 16 * 1024
"""Smaller buffers go into the pickle."""

LEAST_IN_THREAD: Final = 2**20
"""From this size on, copying is done in a thread, not in the event loop."""


@dataclass(slots=True)
class Message:
    """A pickled object.

    Attributes:
        body: The pickle.
        buffers: The pickle's buffers, unless they were copied; they must not change until they
            are sent.
        size: The total size of the buffers, in bytes.
        places: Their places in shared memory; empty if they are not in it.
    """

    body: bytes
    buffers: Sequence[Buffer] = ()
    size: int = 0
    places: Sequence[tuple[int, int]] = ()


EMPTY: Final = Message(b"")


@held
def packed(content: Any) -> Message:
    """Pickles an object.

    Raises:
        Exception: It can't be pickled, for whatever reason.
    """
    buffers: list[memoryview] = []

    def goes_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _LEAST_BESIDE:
            return True
        buffers.append(raw)
        return False

    body = pickle.dumps(content, 5, buffer_callback=goes_inside)
    return Message(body, buffers, sum(buffer.nbytes for buffer in buffers))


@held
def unpickled(data: Buffer, buffers: Iterable[Any] = ()) -> Any:
    """Unpickles an object from the other end of a socket pair.

    Raises:
        Exception: It can't be unpickled, for whatever reason.
    """
    return pickle.loads(data, buffers=buffers)  # noqa: S301 - no other process can write to it


@dataclass(slots=True)
class MessageCodec:
    """Encodes and decodes messages at one end; uses shared memory if there is any.

    Attributes:
        outgoing: The region that this end writes; None for none.
        incoming: The region that this end reads; None for none.
    """

    outgoing: Region | None = None
    incoming: Region | None = None

    def reserve(self, message: Message) -> bool:
        """Reserves shared memory for a message's buffers; returns whether `write` must follow."""
        if message.buffers and self.outgoing is not None:
            message.places = self.outgoing.reserve(message.buffers)
        return bool(message.places)

    def write(self, message: Message, *, pause: bool = False) -> None:
        """Copies a message's buffers to the reserved memory, and drops them."""
        assert self.outgoing is not None
        self.outgoing.write(message.places, message.buffers, pause=pause)
        message.buffers = ()

    def frame(self, kind: IntEnum, id_: int, message: Message = EMPTY) -> list[Buffer]:
        """Encodes a message as a frame, which also gives back memory of the incoming region."""
        return encoded(kind, id_, message.body, message.buffers, message.places, self._given_back())

    def take_back(self, frame: Frame[Any]) -> None:
        """Frees the memory that a frame gives back."""
        if frame.given_back:
            assert self.outgoing is not None
            self.outgoing.free(frame.given_back)

    def unreserve(self, message: Message) -> None:
        """Frees the memory of a message that will not be sent."""
        if message.places:
            assert self.outgoing is not None
            self.outgoing.free([message.places[0][0]])
            message.places = ()

    def drop(self, frame: Frame[Any]) -> None:
        """Gives back the memory of a frame that will not be read."""
        places = places_of(frame)
        if places:
            assert self.incoming is not None
            self.incoming.give_back(places)

    def opened_here(self, frame: Frame[Any]) -> Any:
        """Unpickles a frame's content, whose buffers are views of the shared memory.

        Raises:
            Exception: It can't be unpickled, for whatever reason.
        """
        places = places_of(frame)
        if not places:
            return unpickled(frame.body, frame.buffers)
        assert self.incoming is not None
        return unpickled(frame.body, self.incoming.views(places))

    def copied(self, frame: Frame[Any], *, pause: bool) -> None:
        """Copies a frame's buffers out of the shared memory, and gives that memory back."""
        places = places_of(frame)
        assert self.incoming is not None
        frame.buffers[:] = self.incoming.copies(places, pause=pause)

    def _given_back(self) -> Sequence[int]:
        region = self.incoming
        if region is None or not region.given_back:
            return ()
        count = min(len(region.given_back), MOST_GIVEN_BACK)
        return [region.given_back.popleft() for _ in range(count)]


def places_of(frame: Frame[Any]) -> list[tuple[int, int]]:
    """Returns the places of a frame's buffers in shared memory; empty if they are in the frame."""
    return [buffer for buffer in frame.buffers if isinstance(buffer, tuple)]
