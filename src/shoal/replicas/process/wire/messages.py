"""Messages between processes: pickled objects, with their large buffers outside of the pickle.

Pickle's protocol 5 passes out the memory of arrays instead of copying it into the pickle. If there
is shared memory, the buffers are copied into it and only their places are sent. A pickle with
large `bytes` in it, such as the bodies of requests, is copied there as well. The `bytes` are not
copied into the pickle first, since a pickler that writes to a file passes them on unchanged.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from shoal.failures.held import held
from shoal.replicas.process.wire.frames import MOST_GIVEN_BACK, Buffer, Frame, encoded
from shoal.replicas.process.wire.shared_memory import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.replicas.process.wire.frames import FrameKind

# Pickles a value, with the arguments of `pickle.dumps`.
Dumps: TypeAlias = "Callable[..., bytes]"

# Types whose values can be pickled and unpickled everywhere.
PLAIN: Final = (str, int, float, bool, bytes, type(None))

# Smaller buffers go into the pickle.
_LEAST_BESIDE: Final = 16 * 1024

# Smaller pickles are sent with their frame, even if there is shared memory.
_LEAST_SHARED: Final = 64 * 1024

# From this size on, copying is done in a thread, not in the event loop.
LEAST_IN_THREAD: Final = 2**23


@dataclass(slots=True)
class Message:
    """A pickled object; buffers and large `bytearray`s must not change until they are sent."""

    parts: Sequence[Buffer] = ()
    buffers: Sequence[Buffer] = ()
    # The sizes of the parts for shared memory: the buffers, and last the pickle if it is large.
    shared: Sequence[int] = ()
    # Their places in shared memory; empty if they are not in it.
    places: Sequence[tuple[int, int]] = ()

    @property
    def size(self) -> int:
        return sum(self.shared)


EMPTY: Final = Message()


def unshared(kind: FrameKind, id_: int, message: Message = EMPTY) -> list[Buffer]:
    """Encodes a message as a frame of a channel without shared memory."""
    return encoded(kind, id_, message.parts, message.buffers)


class _Parts(list[bytes]):
    """A file for a pickler, which stores the written parts unchanged."""

    write = list[bytes].append


def pickled(
    content: Any, beside: Sequence[memoryview] = (), dumps: Dumps = pickle.dumps
) -> Message:
    """Pickles an object. `beside` has buffers of pickles in it."""
    buffers = [*beside]
    parts = _Parts()
    sort = partial(_goes_inside, buffers)
    if dumps is pickle.dumps:
        pickle.Pickler(parts, 5, buffer_callback=sort).dump(content)
    else:
        parts.write(dumps(content, 5, buffer_callback=sort))
    shared = [buffer.nbytes for buffer in buffers] if buffers else []
    # A pickle that was written at once is not large.
    if len(parts) > 1 and (size := sum(map(len, parts))) >= _LEAST_SHARED:
        shared.append(size)
    return Message(parts, buffers, shared)


packed = held(pickled)


def packed_parts(
    content: Any, method: str, name: str, parts: Any, dumps: Dumps = pickle.dumps
) -> Message:
    """Packs an object; the error names the first of its `parts` that can't be pickled."""
    # The name is formatted only then, with the number of the part, and the method.
    try:
        return packed(content, dumps=dumps)
    except Exception as error:
        text = f"{name.format(0, method)} can't be sent between processes: {error}"
        listed: list[Any] = [*parts] if isinstance(parts, (list, tuple)) else [parts]
        for nth, part in enumerate(listed):
            try:
                dumps(part, 5)
            except Exception as own:
                kind = type(part).__qualname__
                text = f"{name.format(nth, method)} can't be sent between processes ({own}): {kind}"
                break
        raise TypeError(text) from error


def _goes_inside(buffers: list[memoryview], buffer: pickle.PickleBuffer) -> bool:
    """Puts large buffers into a list, and leaves others in the pickle."""
    raw = buffer.raw()
    if raw.nbytes < _LEAST_BESIDE:
        return True
    buffers.append(raw)
    return False


class Sealed(NamedTuple):
    """A value that is pickled separately, so that only its request fails where that fails."""

    data: bytes
    # How many of the message's buffers belong to it.
    buffers: int


@held
def sealed(value: Any, buffers: list[memoryview], dumps: Dumps = pickle.dumps) -> Any:
    """Pickles a value unless it is plain, and adds its large buffers to those of the message."""
    if type(value) in PLAIN:
        return value
    own: list[memoryview] = []
    data = dumps(value, 5, buffer_callback=partial(_goes_inside, own))
    buffers += own
    return Sealed(data, len(own))


class Unsealer:
    """Unpickles the sealed values of a message, in the order in which they were sealed."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        self._buffers = buffers
        self._taken = 0

    def open(self, value: Any) -> Any:
        if type(value) is not Sealed:
            return value
        begin, self._taken = self._taken, self._taken + value.buffers
        return unpickled(value.data, self._buffers[begin : self._taken])


@held
def unpickled(data: Buffer, buffers: Iterable[Any] = ()) -> Any:
    """Unpickles an object from the other end of a socket pair; raises only `Exception`s."""
    return pickle.loads(data, buffers=buffers)  # noqa: S301 - no other process can write to it


@dataclass(slots=True)
class MessageCodec:
    """Encodes and decodes messages at one end; uses shared memory where a region has any."""

    outgoing: Region = field(default_factory=Region)
    incoming: Region = field(default_factory=Region)

    def reserve(self, message: Message) -> bool:
        """Reserves shared memory for a message; returns whether `write` must follow."""
        if message.shared:
            message.places = self.outgoing.reserve(message.shared)
        return bool(message.places)

    def write(self, message: Message, *, pause: bool = False) -> None:
        copied: list[Sequence[Buffer]] = [[buffer] for buffer in message.buffers]
        if len(message.places) > len(copied):
            copied.append(message.parts)
            message.parts = ()
        self.outgoing.write(message.places, copied, pause=pause)
        message.buffers = ()

    def frame(self, kind: FrameKind, id_: int, message: Message = EMPTY) -> list[Buffer]:
        """Encodes a message as a frame, which also gives back memory of the incoming region."""
        return encoded(
            kind, id_, message.parts, message.buffers, message.places, self._given_back()
        )

    def take_back(self, frame: Frame) -> None:
        if frame.given_back:
            self.outgoing.free(frame.given_back)

    def unreserve(self, message: Message) -> None:
        if message.places:
            self.outgoing.free([message.places[0][0]])
            message.places = ()

    def drop(self, frame: Frame) -> None:
        places = places_of(frame)
        if places:
            self.incoming.give_back(places)

    def opened_here(self, frame: Frame) -> Any:
        """Unpickles a frame's content; its arrays are views of the shared memory."""
        return unpickled(*self.parts_here(frame))

    def parts_here(self, frame: Frame) -> tuple[Buffer, list[Any]]:
        """Returns a frame's pickle and buffers; those in shared memory are views of it."""
        places = places_of(frame)
        if not places:
            return frame.body, frame.buffers
        views = self.incoming.views(places)
        return frame.body if frame.place is None else views.pop(), views

    def copied(self, frame: Frame, *, pause: bool) -> None:
        """Copies a frame's content out of the shared memory, and gives that memory back."""
        places = places_of(frame)
        copies = self.incoming.copies(places, pause=pause)
        if frame.place is not None:
            frame.body, frame.place = copies.pop(), None
        frame.buffers[:] = copies

    def _given_back(self) -> Sequence[int]:
        unused = self.incoming.given_back
        if not unused:
            return ()
        return [unused.popleft() for _ in range(min(len(unused), MOST_GIVEN_BACK))]


def places_of(frame: Frame) -> list[tuple[int, int]]:
    """Returns the places in shared memory of a frame's buffers, and last that of its pickle."""
    places = [buffer for buffer in frame.buffers if isinstance(buffer, tuple)]
    return places if frame.place is None else [*places, frame.place]
