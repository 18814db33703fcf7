"""The calls of an actor's code to endpoints, which only the program's process can reach.

They are made as those of a worker process are, and their frames are the same. An actor can't send
by itself, so the program iterates over a generator of the actor, which yields what the code sends.
Answers go by calls of the actor, one after the other, so that they can't overtake each other; what
comes up meanwhile is sent together.
"""

from __future__ import annotations

import queue
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from shoal.errors import ReplicaDied
from shoal.replicas.process.endpoint_calls import EndpointCalls
from shoal.replicas.process.wire.frames import Frame, Kind
from shoal.replicas.process.wire.messages import EMPTY, Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from shoal.replicas.code.endpoint_call import CallOut
    from shoal.replicas.ray.link import Link


class Sent(NamedTuple):
    """A frame as Ray carries it.

    Attributes:
        kind: Its kind.
        id: The number of its call.
        body: The pickled content.
        buffers: The buffers of the pickle, which may be written to.
    """

    kind: int
    id: int
    body: bytes
    buffers: tuple[bytearray, ...]

    @classmethod
    def of(cls, kind: Kind, id_: int, message: Message) -> Sent:
        """Makes it of a message."""
        return cls(int(kind), id_, message.body, tuple(map(bytearray, message.buffers)))

    def frame(self) -> Frame:
        """Returns the frame."""
        return Frame(Kind(self.kind), self.id, self.body, list(self.buffers), ())


class ActorCarrier:
    """The actor's end: it is used from all threads of the actor."""

    def __init__(self) -> None:
        self._answer: Callable[[Frame], None] = lambda _: None
        self._frames: queue.SimpleQueue[Sent] = queue.SimpleQueue()

    def answer_by(self, answer: Callable[[Frame], None]) -> None:
        """Sets what is called with each frame from the program."""
        self._answer = answer

    def send(self, kind: Kind, id_: int, message: Message = EMPTY) -> None:
        """Sends a frame."""
        self._frames.put(Sent.of(kind, id_, message))

    def sent(self) -> Generator[list[Sent]]:
        """Yields what is sent, for as long as the actor lives."""
        while True:
            frames = [self._frames.get()]
            while not self._frames.empty():
                frames.append(self._frames.get())
            yield frames

    def answered(self, frames: list[Sent]) -> None:
        """Hands on frames from the program."""
        for one in frames:
            self._answer(one.frame())


class CallsOut:
    """The program's end: it makes the calls of the code of one actor.

    Args:
        link: The connection to the actor.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._calls = EndpointCalls(self._send)
        self._answers: list[Sent] = []
        self._has_some = anyio.Event()

    async def run(self, make: Callable[[CallOut], Awaitable[Any]] | None) -> None:
        """Makes and answers calls until the actor has died.

        Args:
            make: Makes a call; None to refuse them.

        Cancellation: cancels the calls that are under way.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._calls.run, make)
                tasks.start_soon(self._write)
                async with aclosing(self._link.sent()) as sent:
                    async for frames in sent:
                        for one in frames:
                            self._calls.handle(one.frame())
                tasks.cancel_scope.cancel()
        except* ReplicaDied:
            pass

    def _send(self, kind: Kind, id_: int, message: Message) -> None:
        self._answers.append(Sent.of(kind, id_, message))
        self._has_some.set()

    async def _write(self) -> None:
        while True:
            await self._has_some.wait()
            self._has_some = anyio.Event()
            answers, self._answers = self._answers, []
            await self._link.answer(answers)
