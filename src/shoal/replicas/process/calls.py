"""The side of the caller in the calls to one worker process, or one model server.

Any number of calls may be under way. Each has an id, which its replies carry. A cancelled call
sends a cancel frame, and ends when the worker reports that its work has ended. If the work still
runs a grace period after its batch became overdue, the worker is killed, which ends every call. For
a cancelled `reconfigure`, the grace period begins at once.

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
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import anyio.to_thread

from shoal.failures.exceptions import ungrouped
from shoal.loops.this_loop import parking_of_this_loop
from shoal.loops.unlimited import UNLIMITED
from shoal.replicas.code.jobs import HANDLER
from shoal.replicas.process.calls_out import FROM_CODE, CallOutRunner
from shoal.replicas.process.wire.errors import ErrorAsData, slots_as_exceptions
from shoal.replicas.process.wire.frames import STEPS_AHEAD, FrameKind
from shoal.replicas.process.wire.messages import (
    LEAST_IN_THREAD,
    Message,
    MessageCodec,
    packed,
    places_of,
    unpickled,
)
from shoal.replicas.process.wire.open_batch import packed_news, take_answers
from shoal.replicas.scopes import until_overdue

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from shoal.batching.open_relay import OpenNews, OpenRelay
    from shoal.errors import ReplicaDied
    from shoal.replicas.process.wire.connection import FrameConnection
    from shoal.replicas.process.wire.frames import Frame
    from shoal.replicas.process.wire.shared_memory import SharedMemory

_LAST_FRAMES: Final = frozenset({FrameKind.RESULT, FrameKind.ERROR, FrameKind.END})
# The names of the code in errors, where it is not the handler.
_NAMES: Final = {
    FrameKind.START: "the code that was being started",
    FrameKind.RECONFIGURE: "reconfigure()",
    FrameKind.HEALTH: "health()",
}


class Peer(Protocol):
    """The other end of a conversation: a worker process, or a model server."""

    shared_memory: SharedMemory | None

    def connections(
        self, on_invalid_frame: Callable[[Exception], object]
    ) -> tuple[FrameConnection, FrameConnection]:
        """Returns the data channel and the control channel, which may be one connection."""
        ...

    def kill(self, reason: str | None = None) -> None:
        """Ends the peer, or the connection to it."""
        ...

    def death(self) -> ReplicaDied:
        """Returns a new error that says how it ended."""
        ...


class Conversation:
    """All calls to one worker; `where` names the worker in notes on its errors."""

    def __init__(self, worker: Peer, where: str, cancel_grace_s: float) -> None:
        shared_memory = worker.shared_memory
        self.codec = (
            MessageCodec()
            if shared_memory is None
            else MessageCodec(shared_memory.requests, shared_memory.replies)
        )

        def on_invalid_frame(error: Exception) -> None:
            worker.kill(f"it sent an invalid frame: {type(error).__name__}: {error}")

        self.data, self.control = worker.connections(on_invalid_frame)
        # A bound method would keep this object and the shared memory alive.
        self.calls_out = CallOutRunner(partial(_send_on, self.control))
        # Set when work is under way.
        self.at_work = anyio.Event()
        self._worker = worker
        self._where = where
        self._grace_s = cancel_grace_s
        self._ids = count(1)
        self._replies = Replies(
            self.data,
            self.handle,
            cancel_grace_s,
            lambda: worker.kill("it had closed its connection"),
            reads=self.data is not self.control,
        )
        # Whether the worker has ended.
        self.is_over = False

    @property
    def is_idle(self) -> bool:
        return not self._replies.calls

    def frames_ahead(self, id_: int) -> int:
        """Returns how many frames of a call were received and not taken yet."""
        call = self._replies.calls.get(id_)
        return 0 if call is None else len(call.frames)

    async def ask(self, kind: FrameKind, message: Message) -> Any:
        """Makes a call with one response. Cancellation cancels it, unless it starts the code."""
        call = await self._begin(kind, message)
        try:
            frame = await self._replies.next(call)
            if frame is None:
                raise self._worker.death()
            return await self._opened(frame, _NAMES.get(kind, HANDLER))
        finally:
            await self._leave(call, kind)

    async def ask_steps(self, message: Message) -> AsyncGenerator[Any, None]:
        call = await self._begin(FrameKind.STREAM, message)
        taken = 0
        try:
            while True:
                frame = await self._replies.next(call)
                if frame is None:
                    raise self._worker.death()
                if frame.kind is FrameKind.END:
                    return
                yield await self._opened(frame, HANDLER)
                taken += 1
                if taken == STEPS_AHEAD // 2 and not call.is_over:
                    credit = packed(taken)
                    self.data.send(self.codec.frame(FrameKind.CREDIT, call.id, credit))
                    taken = 0
        finally:
            await self._leave(call, FrameKind.STREAM)

    async def ask_open(self, message: Message, relay: OpenRelay) -> None:
        """Makes a call on an open batch; returns when its handler has returned."""
        call = await self._begin(FrameKind.OPEN, message)
        try:
            async with ungrouped() as tasks:
                try:
                    relay.begin(tasks, partial(self._send_news, call, relay))
                    while (frame := await self._replies.next(call)) is not None:
                        if frame.kind is not FrameKind.ANSWERS:
                            break
                        await self._take_answers(frame, relay)
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            await self._leave(call, FrameKind.OPEN, relay)
        if frame is None:
            raise self._worker.death()
        # No other task may run from here on until the run has ended: it would take them again.
        relay.queue_again()
        await self._opened(frame, HANDLER)  # raises its error

    async def _send_news(self, call: PendingCall, relay: OpenRelay, news: OpenNews) -> None:
        message = packed_news(news, relay, anyio.current_time())
        await self._place(message)
        if call.is_over:
            self.codec.unreserve(message)
        else:
            self.data.send(self.codec.frame(FrameKind.NEWS, call.id, message))

    async def _take_answers(self, frame: Frame, relay: OpenRelay) -> None:
        await self._copy(frame)
        try:
            take_answers(frame, relay, self._where)
        except Exception as error:
            self._worker.kill(f"it sent an invalid message: {type(error).__name__}: {error}")

    async def ask_beside(self, kind: FrameKind) -> Any:
        """Makes a call over the control channel, which does not wait behind work."""
        call = self._new_call(reads=False)
        try:
            self.control.send(MessageCodec().frame(kind, call.id))
            frame = await self._replies.next(call)
            if frame is None:
                raise self._worker.death()
            return await self._opened(frame, _NAMES.get(kind, HANDLER))
        finally:
            del self._replies.calls[call.id]

    def close(self) -> None:
        """Closes the connections, and breaks reference cycles, so shared memory is freed now."""
        self._replies.close()
        self.data.close()
        self.control.close()

    def drain(self) -> None:
        self.control.send(MessageCodec().frame(FrameKind.DRAIN, 0))

    def close_worker(self) -> None:
        self.data.send(self.codec.frame(FrameKind.CLOSE, 0))

    def handle(self, frame: Frame) -> None:
        self.codec.take_back(frame)
        if not self._replies.put(frame):
            self.codec.drop(frame)  # its call has ended

    def handle_control(self, frame: Frame) -> None:
        if frame.kind in FROM_CODE:
            self.calls_out.handle(frame)
        else:
            self.handle(frame)

    def end(self) -> None:
        """Ends all calls, because the worker has died, after reading the frames that it sent."""
        self.data.read_available(self.handle)
        self.control.read_available(self.handle_control)
        self.is_over = True
        self._replies.end()
        self.data.shut_down()

    def _new_call(self, *, reads: bool) -> PendingCall:
        if self.is_over:
            raise self._worker.death()
        call = PendingCall(next(self._ids), reads=reads)
        self._replies.calls[call.id] = call
        return call

    async def _begin(self, kind: FrameKind, message: Message) -> PendingCall:
        await self._place(message)
        try:
            call = self._new_call(reads=True)
        except BaseException:
            self.codec.unreserve(message)
            raise
        self.at_work.set()
        self.data.send(self.codec.frame(kind, call.id, message))
        return call

    async def _place(self, message: Message) -> None:
        """Moves the large parts of a message to shared memory, if there is room."""
        if self.codec.reserve(message):
            if message.size < LEAST_IN_THREAD:
                self.codec.write(message)
            else:
                try:
                    await anyio.to_thread.run_sync(
                        lambda: self.codec.write(message, pause=True), limiter=UNLIMITED
                    )
                except BaseException:
                    self.codec.unreserve(message)
                    raise

    async def _leave(
        self, call: PendingCall, kind: FrameKind, relay: OpenRelay | None = None
    ) -> None:
        """Ends a call after the worker has stopped working on it."""
        try:
            if not call.is_over and kind is not FrameKind.START:
                await self._interrupt(call, kind)
        finally:
            del self._replies.calls[call.id]
            while (frame := call.pop()) is not None:
                if relay is not None and frame.kind is FrameKind.ANSWERS and not places_of(frame):
                    # A handler that is cancelled may still answer.
                    with suppress(Exception):
                        take_answers(frame, relay, self._where)
                else:
                    self.codec.drop(frame)

    async def _interrupt(self, call: PendingCall, kind: FrameKind) -> None:
        # The control channel reaches plain code, which does not read the data channel while it
        # works. The data channel reaches async code, and code that waits for a stream's reader.
        self.control.send(MessageCodec().frame(FrameKind.CANCEL, call.id))
        if self.data is not self.control:
            self.data.send(self.codec.frame(FrameKind.CANCEL, call.id))
        if kind is FrameKind.RECONFIGURE:
            what, when = "reconfigure()", "it was cancelled"
            with anyio.move_on_after(self._grace_s, shield=True):
                await self._replies.see_over(call)
        else:
            what, when = "work", "its time was up"
            with until_overdue(self._grace_s):
                await self._replies.see_over(call)
        if not call.is_over:
            self._worker.kill(f"its {what} had not ended {self._grace_s:g} s after {when}")
            with anyio.CancelScope(shield=True):
                await self._replies.see_over(call)

    async def _opened(self, frame: Frame, name: str) -> Any:
        """Returns a response's content, or raises its error; `name` is that of the code."""
        await self._copy(frame)
        if frame.kind is FrameKind.END:
            return None
        try:
            content = unpickled(frame.body, frame.buffers)
        except Exception as error:
            raise TypeError(
                f"the answer of {self._where} can't be unpickled here: {error}"
            ) from error
        if frame.kind is FrameKind.ERROR:
            assert isinstance(content, ErrorAsData)
            raised = content.as_exception(self._where, name)
            try:
                raise raised
            finally:
                del raised  # its traceback holds this frame
        return slots_as_exceptions(content, self._where)

    async def _copy(self, frame: Frame) -> None:
        """Copies a frame's content out of the shared memory."""
        places = places_of(frame)
        if places and sum(size for _, size in places) < LEAST_IN_THREAD:
            self.codec.copied(frame, pause=False)
        elif places:
            try:
                await anyio.to_thread.run_sync(
                    lambda: self.codec.copied(frame, pause=True), limiter=UNLIMITED
                )
            except BaseException:
                self.codec.drop(frame)
                raise


def _send_on(control: FrameConnection, kind: FrameKind, id_: int, message: Message) -> None:
    control.send(MessageCodec().frame(kind, id_, message))


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


class Replies:
    """The calls under way; `on_silence` ends a worker that outlives its channel by `grace_s`."""

    def __init__(
        self,
        channel: FrameConnection,
        take: Callable[[Frame], object],
        grace_s: float,
        on_silence: Callable[[], object],
        *,
        reads: bool,
    ) -> None:
        self.calls: dict[int, PendingCall] = {}
        self._channel = channel
        # Called with each received frame; passes replies to `put`.
        self._take: Callable[[Frame], object] = take
        self._grace_s = grace_s
        self._on_silence: Callable[[], object] = on_silence
        self._parking = parking_of_this_loop()
        # Whether the event loop or a task reads the channel; without `reads` another task does.
        self._is_reading = not reads or channel.begin_reading(take, self._closed)

    def put(self, frame: Frame) -> bool:
        """Delivers a frame to its call; returns whether that call is under way."""
        call = self.calls.get(frame.id)
        if call is None or call.is_over:
            return False
        if frame.kind in _LAST_FRAMES:
            call.is_over = True
        call.frames.append(frame)
        self._wake(call)
        return True

    def end(self) -> None:
        """Ends all calls, because the worker is dead."""
        for call in self.calls.values():
            call.is_over = True
            self._wake(call)

    def close(self) -> None:
        """Drops the callbacks, to break reference cycles."""
        self._take = self._on_silence = _ignore

    async def next(self, call: PendingCall) -> Frame | None:
        """Waits for the next frame of a call; None if there are no more."""
        try:
            while (frame := call.pop()) is None and not call.is_over:
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
