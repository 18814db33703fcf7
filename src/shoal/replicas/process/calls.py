"""The side of the caller in the calls to one worker process, or one model server.

Any number of calls may be under way. Each has an id, which its replies carry. A cancelled call
sends a cancel frame, and ends when the worker reports that its work has ended. If the work still
runs a grace period after its batch became overdue, the worker is killed, which ends every call. For
a cancelled `reconfigure`, the grace period begins at once.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.current import continued
from shoal.batching.open_relay import OpenRelay
from shoal.failures.exceptions import ungrouped
from shoal.failures.held import holding
from shoal.loops.event_loop import holds_ctrl_c
from shoal.loops.unlimited import in_thread
from shoal.replicas.code.jobs import HANDLER
from shoal.replicas.process.replies import Peer, PendingCall, Replies
from shoal.replicas.process.wire.connection import AnsweredCall, FrameConnection
from shoal.replicas.process.wire.errors import ErrorAsData, as_data, slots_as_exceptions
from shoal.replicas.process.wire.frames import STEPS_AHEAD, Frame, FrameKind
from shoal.replicas.process.wire.messages import (
    EMPTY,
    LEAST_IN_THREAD,
    Dumps,
    Message,
    MessageCodec,
    packed,
    places_of,
    unpickled,
    unshared,
)
from shoal.replicas.process.wire.open_batch import OpenStart, packed_news, take_answers
from shoal.replicas.scopes import until_overdue

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup

    from shoal.batching.open_batch import OpenBatch
    from shoal.batching.open_relay import OpenNews
    from shoal.core.request import Batch, Request
    from shoal.replicas.code.endpoint_call import CallOut
    from shoal.replicas.process.wire.frames import FrameReader


# The names of the code in errors, where it is not the handler.
_NAMES: Final = {
    FrameKind.START: "the code that was being started",
    FrameKind.RECONFIGURE: "reconfigure()",
    FrameKind.HEALTH: "health()",
}


class Conversation:
    def __init__(
        self,
        peer: Peer,
        where: str,
        sockets: Sequence[Any],
        cancel_grace_s: float,
        *,
        reader: FrameReader | None = None,
        codec: MessageCodec | None = None,
        dumps: Dumps = pickle.dumps,
    ) -> None:
        # The sockets for data and for control may be the same one. A given `reader` of the data
        # has bytes or a limit already.
        self.codec = codec or MessageCodec()

        def on_invalid_frame(error: Exception) -> None:
            peer.kill(f"it sent an invalid frame: {type(error).__name__}: {error}")

        data, control = sockets
        self.data = self.control = FrameConnection(data, reader, on_invalid_frame)
        if control is not data:
            self.control = FrameConnection(control, on_invalid_frame=on_invalid_frame)
        # A bound method would keep this object and the shared memory alive.
        self.calls_out = CallOutRunner(partial(_send_on, self.control), dumps)
        # Set when work is under way.
        self.at_work = anyio.Event()
        # Called when the last call under way has ended.
        self.on_idle: Callable[[], object] | None = None
        self._peer = peer
        self._where = where
        self.dumps = dumps
        self._grace_s = cancel_grace_s
        self._ids = count(1)
        self._replies = Replies(
            self.data,
            self.handle,
            cancel_grace_s,
            peer,
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

    async def ask(self, kind: FrameKind, message: Message, batch: Batch | None = None) -> Any:
        """Makes a call with one response. Cancellation cancels it, unless it starts the code."""
        # The other end learns of callers of the `batch` that leave.
        call = await self._begin(kind, message)
        on_left = None if batch is None else batch.on_left
        try:
            if batch is not None:
                batch.on_left = partial(self._cancel_item, call, batch, on_left)
            while (frame := await self._replies.next(call)).kind is FrameKind.PART:
                self._peer.kill("it sent a step instead of a result")
            return await self._opened(frame, _NAMES.get(kind, HANDLER))
        finally:
            if batch is not None:
                batch.on_left = on_left
            await self._finish_call(call, kind)

    def _cancel_item(
        self,
        call: PendingCall,
        batch: Batch,
        on_left: Callable[[Request | None], object] | None,
        request: Request | None,
    ) -> None:
        if request is not None and not call.is_over:
            place = packed(batch.members.index(request))
            self.data.send_soon(self.codec.frame(FrameKind.CANCEL, call.id, place))
        if on_left is not None:
            on_left(request)

    async def ask_steps(self, message: Message) -> AsyncGenerator[Any, None]:
        call = await self._begin(FrameKind.STREAM, message)
        taken = 0
        try:
            while (frame := await self._replies.next(call)).kind is not FrameKind.END:
                yield await self._opened(frame, HANDLER)
                taken += 1
                if taken == STEPS_AHEAD // 2 and not call.is_over:
                    credit = packed(taken)
                    self.data.send_soon(self.codec.frame(FrameKind.CREDIT, call.id, credit))
                    taken = 0
        finally:
            await self._finish_call(call, FrameKind.STREAM)

    async def ask_open(self, method: str, batch: OpenBatch[Any, Any]) -> None:
        """Makes a call on an open batch; returns when its handler has returned."""
        relay = OpenRelay(batch)
        start = OpenStart.of(method, relay.streams, batch)
        call = await self._begin(FrameKind.OPEN, packed(start))
        try:
            async with ungrouped() as tasks:
                try:
                    relay.begin(tasks, partial(self._send_news, call, relay))
                    while (frame := await self._replies.next(call)).kind is FrameKind.ANSWERS:
                        await self._take_answers(frame, relay)
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            await self._finish_call(call, FrameKind.OPEN, relay)
        await self._copy(frame)
        # No other task may run from here on until the run has ended: it would take them again.
        relay.queue_again()
        await self._opened(frame, HANDLER)  # raises its error

    async def _send_news(self, call: PendingCall, relay: OpenRelay, news: OpenNews) -> None:
        message = packed_news(news, relay, anyio.current_time(), self.dumps)
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
            self._peer.kill(f"it sent an invalid message: {type(error).__name__}: {error}")

    async def reconfigure(self, user_config: Any) -> None:
        try:
            message = packed(user_config, dumps=self.dumps)
        except Exception as error:
            raise TypeError(f"the user_config can't be sent to {self._where}: {error}") from error
        await self.ask(FrameKind.RECONFIGURE, message)

    async def ask_beside(self, kind: FrameKind) -> Any:
        """Makes a call over the control channel, which does not wait behind work."""
        call = self._new_call(reads=False)
        try:
            self.control.send(unshared(kind, call.id))
            frame = await self._replies.next(call)
            return await self._opened(frame, _NAMES.get(kind, HANDLER))
        finally:
            self._forget(call)

    def close(self) -> None:
        """Closes the connections, and breaks reference cycles, so shared memory is freed now."""
        self._replies.close()
        self.data.close()
        self.control.close()

    def drain(self) -> None:
        self.control.send(unshared(FrameKind.DRAIN, 0))

    def close_worker(self) -> None:
        self.data.send(self.codec.frame(FrameKind.CLOSE, 0))

    def handle(self, frame: Frame) -> None:
        self.codec.take_back(frame)
        if not self._replies.put(frame):
            self.codec.drop(frame)  # its call has ended

    async def read_control(self) -> None:
        await self.control.read_in_task(self.handle_control)

    def handle_control(self, frame: Frame) -> None:
        if frame.kind not in FROM_CODE:
            self.handle(frame)
        elif not self.is_over:
            self.calls_out.handle(frame)

    def end(self) -> None:
        """Ends all calls, because the worker has died, after reading the frames that it sent."""
        self.is_over = True
        self.data.read_available(self.handle)
        self.control.read_available(self.handle_control)
        self._replies.end()
        self.data.shut_down()

    def _new_call(self, *, reads: bool) -> PendingCall:
        if self.is_over:
            raise self._peer.death()
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
                    await in_thread(lambda: self.codec.write(message, pause=True))
                except BaseException:
                    self.codec.unreserve(message)
                    raise

    async def _finish_call(
        self, call: PendingCall, kind: FrameKind, relay: OpenRelay | None = None
    ) -> None:
        try:
            if not call.is_over and kind is not FrameKind.START:
                await self._interrupt(call, kind)
        finally:
            self._forget(call)
            while (frame := call.pop()) is not None:
                if relay is not None and frame.kind is FrameKind.ANSWERS:
                    # A handler that is cancelled may still answer.
                    with suppress(Exception), anyio.CancelScope(shield=True):
                        await self._copy(frame)
                        take_answers(frame, relay, self._where)
                else:
                    self.codec.drop(frame)

    def _forget(self, call: PendingCall) -> None:
        del self._replies.calls[call.id]
        if self.on_idle is not None and self.is_idle:
            self.on_idle()

    async def _interrupt(self, call: PendingCall, kind: FrameKind) -> None:
        # The control channel reaches plain code, which does not read the data channel while it
        # works. The data channel reaches async code, and code that waits for a stream's reader.
        self.control.send(unshared(FrameKind.CANCEL, call.id))
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
            self._peer.kill(f"its {what} had not ended {self._grace_s:g} s after {when}")
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
            raise content.as_exception(self._where, name)
        return slots_as_exceptions(content, self._where)

    async def _copy(self, frame: Frame) -> None:
        places = places_of(frame)
        if places and sum(size for _, size in places) < LEAST_IN_THREAD:
            self.codec.copied(frame, pause=False)
        elif places:
            try:
                await in_thread(lambda: self.codec.copied(frame, pause=True))
            except BaseException:
                self.codec.drop(frame)
                raise


def _send_on(control: FrameConnection, kind: FrameKind, id_: int, message: Message) -> None:
    control.send(unshared(kind, id_, message))


# The kinds of frames on the control channel that belong to such calls.
FROM_CODE: Final = frozenset({FrameKind.CALL_OUT, FrameKind.CREDIT, FrameKind.CANCEL})


class CallOutRunner:
    """Makes the calls of a worker's code to endpoints, each in a task of its own."""

    def __init__(self, send: Callable[[FrameKind, int, Message], object], dumps: Dumps) -> None:
        self._send = send
        self._dumps = dumps
        self._calls: dict[int, AnsweredCall] = {}
        self._make: Callable[[CallOut], Awaitable[Any]] | None = None
        self._tasks: TaskGroup

    def handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.CALL_OUT:
            self._calls[frame.id] = AnsweredCall()
            self._tasks.start_soon(self._answer, frame)
        elif (call := self._calls.get(frame.id)) is not None:
            if frame.kind is FrameKind.CREDIT:
                call.add_credit(unpickled(frame.body))
            else:
                call.scope.cancel()

    async def run(self, make: Callable[[CallOut], Awaitable[Any]] | None) -> None:
        """Makes and answers calls until it is cancelled; `make` is None to refuse them."""
        self._make = make
        async with anyio.create_task_group() as self._tasks:
            await anyio.sleep_forever()

    @holds_ctrl_c
    async def _answer(self, frame: Frame) -> None:
        make = self._make
        answered = self._calls[frame.id]
        try:
            with answered.scope, holding():
                if make is None:
                    raise RuntimeError("code in this process can't call endpoints")
                call: CallOut = unpickled(frame.body, frame.buffers)
                with continued(call.trace):
                    if call.stream:
                        await self._stream(frame.id, answered, await make(call))
                        self._send(FrameKind.END, frame.id, EMPTY)
                    else:
                        self._send(FrameKind.RESULT, frame.id, self._packed(call, await make(call)))
        except Exception as error:
            self._send(FrameKind.ERROR, frame.id, packed(as_data(error, self._dumps)))
        finally:
            del self._calls[frame.id]

    async def _stream(self, id_: int, answered: AnsweredCall, opened: Any) -> None:
        async with opened as steps:
            async for step in steps:
                self._send(FrameKind.PART, id_, self._packed(None, step))
                await answered.sent_step()

    def _packed(self, call: CallOut | None, result: Any) -> Message:
        try:
            return packed(result, dumps=self._dumps)
        except Exception as error:
            name = "a step" if call is None else f"the result of {call.endpoint!r}"
            raise TypeError(f"{name} can't be sent between processes: {error}") from error
