"""The actor's end of the calls that its code makes to endpoints: frames, as Ray carries them."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, NamedTuple

from shoal.replicas.process.wire.frames import Frame, Kind
from shoal.replicas.process.wire.messages import EMPTY, Message

if TYPE_CHECKING:
    from collections.abc import Callable


class Sent(NamedTuple):
    """A frame as Ray carries it; code may write to the buffers."""

    kind: int
    id: int
    body: bytes
    buffers: tuple[bytearray, ...]

    @classmethod
    def of(cls, kind: Kind, id_: int, message: Message) -> Sent:
        return cls(int(kind), id_, b"".join(message.parts), tuple(map(bytearray, message.buffers)))

    def frame(self) -> Frame:
        return Frame(Kind(self.kind), self.id, self.body, None, [*self.buffers], ())


class ActorCarrier:
    """The actor's end: it is used from all threads of the actor."""

    def __init__(self) -> None:
        self._answer: Callable[[Frame], None] = lambda _: None
        self._frames: queue.SimpleQueue[Sent] = queue.SimpleQueue()

    def answer_by(self, answer: Callable[[Frame], None]) -> None:
        """Sets the function that gets each frame from the program."""
        self._answer = answer

    def send(self, kind: Kind, id_: int, message: Message = EMPTY) -> None:
        self._frames.put(Sent.of(kind, id_, message))

    def sent(self) -> list[Sent]:
        """Waits until something is sent, and returns all available frames."""
        frames = [self._frames.get()]
        while not self._frames.empty():
            frames.append(self._frames.get())
        return frames

    def answered(self, frames: list[Sent]) -> None:
        """Forwards frames from the program."""
        for one in frames:
            self._answer(one.frame())
