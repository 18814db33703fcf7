"""Objects on their way through a process border: pickled, with their large buffers beside them.

Pickle's protocol 5 hands out the memory of arrays instead of copying it into the pickle. Where
there is an arena, that memory is copied into it and only its place travels.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.failures.held import held
from shoal.replicas.process.wire.frames import MOST_GIVEN_BACK, encoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.replicas.process.wire.frames import Buffer, Frame, Kind
    from shoal.replicas.process.wire.shared_memory import Region

_LEAST_BESIDE: Final = 16 * 1024
"""A smaller buffer goes into the pickle."""

LEAST_IN_THREAD: Final = 2**20
"""From this size on, copying is no longer done in an event loop."""


@dataclass(slots=True)
class Message:
    """A pickled object.

    Attributes:
        body: The pickle.
        buffers: The memory that it refers to, unless that was copied; it must not change before
            it was sent.
        size: How many bytes these are.
        places: Where they go in shared memory; nothing if they do not.
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
    buffers: list[Buffer] = []

    def goes_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _LEAST_BESIDE:
            return True
        buffers.append(raw)
        return False

    body = pickle.dumps(content, 5, buffer_callback=goes_inside)
    return Message(body, buffers, sum(memoryview(buffer).nbytes for buffer in buffers))


@held
def unpickled(data: Buffer, buffers: Iterable[Any] = ()) -> Any:
    """Unpickles what the other end of a socket pair has pickled.

    Raises:
        Exception: It can't be unpickled, for whatever reason.
    """
    return pickle.loads(data, buffers=buffers)  # noqa: S301 - nobody else can write to it


@dataclass(slots=True)
class MessageCodec:
    """One end's use of the shared memory, where there is any.

    Attributes:
        outgoing: The region that this end writes; None for none.
        incoming: The region that it reads.
    """

    outgoing: Region | None = None
    incoming: Region | None = None

    def reserve(self, message: Message) -> bool:
        """Reserves shared memory for a parcel's buffers; says whether it must be written."""
        if message.buffers and self.outgoing is not None:
            message.places = self.outgoing.reserve(message.buffers)
        return bool(message.places)

    def write(self, message: Message, *, pause: bool = False) -> None:
        """Copies a parcel's buffers to where memory was reserved for them, and lets go of them."""
        assert self.outgoing is not None
        self.outgoing.write(message.places, message.buffers, pause=pause)
        message.buffers = ()

    def frame(self, kind: Kind, id_: int, message: Message = EMPTY) -> list[Buffer]:
        """Makes the frame of a parcel, which takes along what memory is to be given back."""
        return encoded(kind, id_, message.body, message.buffers, message.places, self._given_back())

    def take_back(self, frame: Frame) -> None:
        """Takes back the memory that a frame gives back."""
        if frame.given_back:
            assert self.outgoing is not None
            self.outgoing.free(frame.given_back)

    def unreserve(self, message: Message) -> None:
        """Gives up the memory of a parcel that will not be sent."""
        if message.places:
            assert self.outgoing is not None
            self.outgoing.free([message.places[0][0]])
            message.places = ()

    def drop(self, frame: Frame) -> None:
        """Gives back the memory of a frame that nobody will read."""
        places = places_of(frame)
        if places:
            assert self.incoming is not None
            self.incoming.give_back(places)

    def opened_here(self, frame: Frame) -> Any:
        """Unpickles a frame's content, which works on the shared memory itself.

        Raises:
            Exception: It can't be unpickled, for whatever reason.
        """
        places = places_of(frame)
        if not places:
            return unpickled(frame.body, frame.buffers)
        assert self.incoming is not None
        return unpickled(frame.body, self.incoming.views(places))

    def copied(self, frame: Frame, *, pause: bool) -> None:
        """Copies a frame's buffers out of the shared memory, and gives that back."""
        places = places_of(frame)
        assert self.incoming is not None
        frame.buffers[:] = self.incoming.copies(places, pause=pause)

    def _given_back(self) -> Sequence[int]:
        region = self.incoming
        if region is None or not region.given_back:
            return ()
        count = min(len(region.given_back), MOST_GIVEN_BACK)
        return [region.given_back.popleft() for _ in range(count)]


def places_of(frame: Frame) -> list[tuple[int, int]]:
    """Returns where a frame's buffers lie in shared memory; nothing if they came with it."""
    return [buffer for buffer in frame.buffers if isinstance(buffer, tuple)]
