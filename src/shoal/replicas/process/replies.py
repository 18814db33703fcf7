"""What a worker answers, and how each answer finds the task that waits for it.

There is no task that reads the channel for work: one of those that wait does, for all of them, and
the next one when it has what it waited for. So an answer is not handed on to another task, which
would cost a good part of a small call.

Invariant: while a call waits that may read, somebody reads, or has been woken and will read or wake
the next.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.loops.this_loop import parking_of_this_loop
from shoal.replicas.process.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.replicas.process.wire.connection import FrameConnection
    from shoal.replicas.process.wire.frames import Frame

_LAST_FRAMES: Final = frozenset({Kind.RESULT, Kind.ERROR, Kind.END})


class PendingCall:
    """One call, and the frames that have come for it.

    Attributes:
        id: Its number; the worker gets calls in the order of their numbers.
        is_over: Whether there will be no more work for it: its last frame has come, or the worker
            has died.
        reads: Whether its answers come by the channel for work, so that its task may read that.
        waiter: Where its task waits for a frame, or for its turn to read; None while it does not.
        reading: What to cancel if something comes for it while its task reads; None for nothing.
    """

    __slots__ = ("_frames", "id", "is_over", "reading", "reads", "waiter")

    def __init__(self, id_: int, *, reads: bool) -> None:
        self.id = id_
        self.is_over = False
        self.reads = reads
        self.waiter: Any = None
        self.reading: anyio.CancelScope | None = None
        self._frames: deque[Frame] = deque()

    def put(self, frame: Frame) -> None:
        """Takes in a frame."""
        self._frames.append(frame)

    def pop(self) -> Frame | None:
        """Returns the first frame that nobody has taken, if there is one."""
        return self._frames.popleft() if self._frames else None


class Replies:
    """The calls that are under way.

    Attributes:
        calls: By their ids.

    Args:
        channel: The channel for work.
        take: Told of each frame that comes by it; it gives on what is a reply to `put`.
        grace_s: How long a worker may live without its channel.
        on_silence: Called when it has.
    """

    def __init__(
        self,
        channel: FrameConnection,
        take: Callable[[Frame], object],
        grace_s: float,
        on_silence: Callable[[], object],
    ) -> None:
        self.calls: dict[int, PendingCall] = {}
        self._channel = channel
        self._take: Callable[[Frame], object] = take
        self._grace_s = grace_s
        self._on_silence: Callable[[], object] = on_silence
        self._parking = parking_of_this_loop()
        self._is_reading = False

    def put(self, frame: Frame) -> bool:
        """Takes in a frame; says whether a call is under way that it is for."""
        call = self.calls.get(frame.id)
        if call is None:
            return False
        if frame.kind in _LAST_FRAMES:
            call.is_over = True
        call.put(frame)
        self._wake(call)
        return True

    def end(self) -> None:
        """Says that the worker is dead, and nothing more will come."""
        for call in self.calls.values():
            call.is_over = True
            self._wake(call)

    def close(self) -> None:
        """Forgets what took the frames: there will be none."""
        self._take = self._on_silence = _ignore

    async def next(self, call: PendingCall) -> Frame | None:
        """Waits for the next frame of a call; None if there will be none."""
        try:
            while (frame := call.pop()) is None and not call.is_over:
                await self._read_or_wait(call)
        finally:
            self._pass_on()
        return frame

    async def see_over(self, call: PendingCall) -> None:
        """Waits until there will be no more work for a call."""
        try:
            while not call.is_over:
                # The control channel may say so as well, while this task reads the other one.
                with anyio.CancelScope() as call.reading:
                    await self._read_or_wait(call)
        finally:
            call.reading = None
            self._pass_on()

    async def _read_or_wait(self, call: PendingCall) -> None:
        """Reads the channel if nobody does, or waits for the one who does."""
        if not call.reads or self._is_reading:
            await self._wait(call)
        elif self._channel.is_closed:
            # The worker closes it by ending, and its exit comes a little later; or its code has.
            with anyio.move_on_after(self._grace_s) as grace:
                await self._wait(call)
            if grace.cancelled_caught:
                self._on_silence()
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

    def _pass_on(self) -> None:
        """Makes sure that somebody reads as long as somebody waits."""
        if self._is_reading:
            return
        for call in self.calls.values():
            if call.waiter is not None and call.reads and not call.is_over:
                self._wake(call)
                return


def _ignore(*_what: object) -> None:
    """Takes what does not come any more."""
