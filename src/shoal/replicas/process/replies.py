"""The replies of one worker process, or one model server, and the calls that wait for them.

No dedicated task reads the replies. On asyncio a callback of the event loop reads the data channel,
and wakes the task that waits for the reply. On trio only tasks can wait for a socket, so one of the
waiting tasks reads it on behalf of all of them. When that one has its reply, the next one takes
over. In neither case is a reply passed from one task to another, which would be a large part of the
cost of a small call. A model server also sends frames that nobody waits for, so a task of its
replica reads its one connection, on both loops.

Invariant: while a call that may read is waiting, the loop or some task reads, or a task was woken
and will read or wake the next one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.process.wire.frames import Frame, FrameKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.errors import ReplicaDied
    from shoal.replicas.process.wire.connection import FrameConnection

_LAST_FRAMES: Final = frozenset({FrameKind.RESULT, FrameKind.ERROR, FrameKind.END})


class PendingCall:
    """A call, and its received frames. The worker gets calls in the order of their ids."""

    __slots__ = ("frames", "id", "is_over", "reading", "reads", "waiter")

    def __init__(self, id_: int, *, reads: bool) -> None:
        self.id = id_
        # The worker does no more work for it: its last frame was received, or the worker died.
        self.is_over = False
        # Its replies use the data channel, so its task may read that channel.
        self.reads = reads
        # Its task waits on this for a frame, or for its turn to read.
        self.waiter: Any = None
        # To be cancelled if a frame arrives while its task reads.
        self.reading: anyio.CancelScope | None = None
        self.frames: deque[Frame] = deque()

    def pop(self) -> Frame | None:
        return self.frames.popleft() if self.frames else None


class Peer(Protocol):
    """The other end of a conversation: a worker process, a model server, or a Ray actor."""

    def kill(self, reason: str) -> None: ...

    def death(self) -> ReplicaDied: ...


class Replies:
    """The calls under way; kills a worker that outlives its channel by `grace_s`."""

    def __init__(
        self,
        channel: FrameConnection,
        take: Callable[[Frame], object],
        grace_s: float,
        peer: Peer,
        *,
        reads: bool,
    ) -> None:
        self.calls: dict[int, PendingCall] = {}
        self._channel = channel
        # Called with each received frame; passes replies to `put`.
        self._take: Callable[[Frame], object] = take
        self._grace_s = grace_s
        self._peer = peer
        self._parking = parking_of_this_loop()
        # Whether the event loop or a task reads the channel; without `reads` another task does.
        self._is_reading = not reads or channel.begin_reading(take, self._closed)

    def put(self, frame: Frame) -> bool:
        call = self.calls.get(frame.id)
        if call is None or call.is_over:
            return False
        if frame.kind in _LAST_FRAMES:
            call.is_over = True
        call.frames.append(frame)
        self._wake(call)
        return True

    def end(self) -> None:
        for call in self.calls.values():
            call.is_over = True
            self._wake(call)

    def close(self) -> None:
        """Drops the callback, to break a reference cycle."""
        self._take = _ignore

    async def next(self, call: PendingCall) -> Frame:
        """Raises `ReplicaDied` if no frame follows."""
        try:
            while (frame := call.pop()) is None:
                if call.is_over:
                    raise self._peer.death()
                await self._read_or_wait(call)
        finally:
            self._pass_on()
        return frame

    async def see_over(self, call: PendingCall) -> None:
        """Waits until the worker has stopped working on a call."""
        try:
            while not call.is_over:
                # The end may also arrive over the control channel while this task reads the
                # data channel.
                with anyio.CancelScope() as call.reading:
                    await self._read_or_wait(call)
        finally:
            call.reading = None
            self._pass_on()

    async def _read_or_wait(self, call: PendingCall) -> None:
        """Reads the channel if no other task does; otherwise waits."""
        if not call.reads or self._is_reading:
            await self._wait(call)
        elif self._channel.is_closed:
            # The worker is exiting, which takes a moment; or its code has closed the channel.
            with anyio.move_on_after(self._grace_s) as grace:
                await self._wait(call)
            if grace.cancelled_caught:
                self._peer.kill("it had closed its connection")
                await self._wait(call)
        else:
            self._is_reading = True
            try:
                await self._channel.read_once(self._take)
            finally:
                self._is_reading = False

    async def _wait(self, call: PendingCall) -> None:
        if call.is_over:
            return
        call.waiter = self._parking.new_waiter()
        try:
            await call.waiter
        finally:
            call.waiter = None

    def _wake(self, call: PendingCall) -> None:
        if call.waiter is not None:
            self._parking.wake(call.waiter)
        elif call.reading is not None:
            call.reading.cancel()

    def _closed(self) -> None:
        """Makes the tasks handle the end of the channel, after the event loop has read it."""
        self._is_reading = False
        self._pass_on()

    def _pass_on(self) -> None:
        """Wakes a waiting task to read, if no task reads."""
        if self._is_reading:
            return
        for call in self.calls.values():
            if call.waiter is not None and call.reads and not call.is_over:
                self._wake(call)
                return


def _ignore(*_what: object) -> None:
    pass
