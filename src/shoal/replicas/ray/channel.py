"""Frames between a replica and its actor: calls of the code to endpoints, and open batches.

They are the frames of a worker process. An actor can't send by itself, so there is always a call of
the actor under way that returns once it has frames. The other way, frames are sent with calls of
the actor as well, one after the other, so that they can't overtake each other. In both directions,
frames that accumulate are sent together. A generator was rejected: a thread would wait in it all
the time, and Ray crashes when the program ends the generator during such a wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from shoal.errors import Overloaded, ReplicaDied
from shoal.replicas.process.calls import Conversation
from shoal.replicas.process.wire.frames import FrameReader, frames_in
from shoal.replicas.ray.cluster import put_if_large, ray

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.replicas.code.endpoint_call import CallOut
    from shoal.replicas.process.wire.frames import Buffer, Frame
    from shoal.replicas.process.wire.shared_memory import SharedMemory
    from shoal.replicas.ray.link import Link


class ActorChannel:
    """The peer of a replica's `Conversation`, and its connection, in place of a socket's."""

    shared_memory: SharedMemory | None = None

    def __init__(self, link: Link, tag: str) -> None:
        self._link = link
        self._tag = tag
        self._waiting: list[Buffer] = []
        self._has_some = anyio.Event()
        self._reader: FrameReader = FrameReader()
        self._on_invalid_frame: Callable[[Exception], object]

    def connections(self, on_invalid_frame: Callable[[Exception], object]) -> tuple[Any, Any]:
        self._on_invalid_frame = on_invalid_frame
        return self, self

    def kill(self, reason: str | None = None) -> None:
        self._link.finish(f"was killed: {reason}")

    def death(self) -> ReplicaDied:
        return self._link.died()

    def send(self, frame: list[Buffer]) -> None:
        self._waiting += frame
        self._has_some.set()

    send_soon = send

    async def write(self) -> None:
        """Sends frames until the actor has died, which raises `ReplicaDied`."""
        while True:
            await self._has_some.wait()
            self._has_some = anyio.Event()
            frames, self._waiting = b"".join(self._waiting), []
            try:
                load = await put_if_large(frames, [frames], self._tag)
            except Overloaded as error:
                self._link.finish(f"was lost: {error}", error)
                raise self.death() from None
            await self._link.put_frames(load)

    async def read(self, handle: Callable[[Frame], object]) -> None:
        """Passes on the frames of the actor until it has died, which raises `ReplicaDied`."""
        while True:
            frames = await self._link.take_frames()
            try:
                for frame in frames_in(self._reader, frames):
                    handle(frame)
            except Exception as error:
                self._on_invalid_frame(error)
                raise self.death() from None

    def read_available(self, _handle: Callable[[Frame], object]) -> None:
        """Does nothing: what an actor sent is read with its call, or lost."""

    def shut_down(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        self._waiting.clear()
        self._reader.close()


async def converse(
    channel: ActorChannel,
    conversation: Conversation,
    make: Callable[[CallOut], Awaitable[Any]] | None,
) -> None:
    """Exchanges frames until the actor has died; `make` makes the calls of its code."""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(conversation.calls_out.run, make)
            tasks.start_soon(channel.write)
            await channel.read(conversation.handle_control)
    except* ReplicaDied:
        pass
    finally:
        conversation.end()


def conversation_with(channel: ActorChannel, tag: str, cancel_grace_s: float) -> Conversation:
    # As with all that Ray carries, classes of the main script are sent with their code.
    return Conversation(channel, tag, cancel_grace_s, ray.cloudpickle.dumps)
