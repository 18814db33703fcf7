"""In a worker: the calls of its code to endpoints, which only the parent can reach.

A call and its response use the control channel, because the main thread, which reads the data
channel, may be the thread that waits. A call can thus be made from any thread, from plain code and
from async code, in any kind of event loop.
"""

from __future__ import annotations

import queue
from collections import deque
from contextlib import closing
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from shoal.loops.event_loop import EventLoop
from shoal.replicas.process.wire.errors import ErrorAsData
from shoal.replicas.process.wire.frames import STEPS_AHEAD, Frame, FrameKind
from shoal.replicas.process.wire.messages import packed, unpickled
from shoal.replicas.process.wire.open_batch import caused
from shoal.replicas.threads import (
    InnerCalls,
    WorkCancelled,
    inner_calls,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable

    from shoal.batching.calls.groups import Outcome
    from shoal.replicas.code.endpoint_call import CallOut
    from shoal.replicas.process.child.control import Control

_WHERE: Final = "the process that the call was made by"
_END: Final = object()


class ParentChannel:
    """Makes calls over the control channel; they raise the endpoint's errors."""

    def __init__(self, control: Control) -> None:
        # The clock of this process's deadlines, less `time.monotonic`, in seconds.
        self.clock_offset = 0.0
        self._control = control
        self._ids = count(1)
        # The function that receives the frames of each call; the watchdog's thread calls it.
        self._takers: dict[int, Callable[[Frame | TypeError], object]] = {}
        control.on_answer = self._answered

    def call(self, call: CallOut) -> Any:
        """Blocks until there is a response; raises RuntimeError in an event loop."""
        with closing(_BlockingAnswers(self, call)) as answers:
            return answers.next()

    def call_each(self, calls: Iterable[CallOut], most: float) -> Generator[Outcome]:
        """Makes calls, up to `most` at a time; blocks for each outcome, in their order."""
        begun = deque[_BlockingAnswers]()
        try:
            for call in calls:
                begun.append(_BlockingAnswers(self, call))
                if len(begun) >= most:
                    yield begun.popleft().outcome()
            while begun:
                yield begun.popleft().outcome()
        finally:
            for answers in begun:
                answers.close()

    def stream(self, call: CallOut) -> Generator[Any]:
        """Blocks for each step; closing the generator cancels the call."""
        with closing(_BlockingAnswers(self, call)) as answers:
            while (step := answers.next()) is not _END:
                yield step

    async def call_async(self, call: CallOut) -> Any:
        with closing(_Awaiting(self, call)) as answers:
            return await answers.next()

    async def stream_async(self, call: CallOut) -> AsyncGenerator[Any, None]:
        """Closing the generator cancels the call."""
        with closing(_Awaiting(self, call)) as answers:
            while (step := await answers.next()) is not _END:
                yield step

    def begin(self, call: CallOut, taker: Callable[[Frame | TypeError], object]) -> int:
        """Sends a call; its frames go to `taker`, in the watchdog's thread."""
        id_ = next(self._ids)
        try:
            message = packed(call, dumps=self._control.dumps)
        except Exception as error:
            text = f"the arguments of a call to {call.endpoint!r} can't be sent between processes"
            taker(caused(TypeError(f"{text}: {error}"), error))
        else:
            self._takers[id_] = taker
            self._control.send(FrameKind.CALL_OUT, id_, message)
        return id_

    def took(self, id_: int, steps: int) -> None:
        self._control.send(FrameKind.CREDIT, id_, packed(steps))

    def leave(self, id_: int, *, is_over: bool) -> None:
        self._takers.pop(id_, None)
        if not is_over:
            self._control.send(FrameKind.CANCEL, id_)

    def _answered(self, frame: Frame) -> None:
        taker = self._takers.get(frame.id)
        if taker is not None:
            taker(frame)


class _Answers:
    """The responses to one call; subclasses wait for them."""

    def __init__(self, channel: ParentChannel) -> None:
        self._channel = channel
        self._taken = 0
        self.id = 0
        self.is_over = False

    def opened(self, frame: Frame | TypeError | None) -> Any:
        """Returns a result, a step, or `_END`; raises the error of the call."""
        if frame is None:
            raise WorkCancelled("the work that made the call was cancelled")
        if isinstance(frame, TypeError):  # it can't be sent
            self.is_over = True
            try:
                raise frame
            finally:
                del frame  # its traceback holds this frame
        self.is_over = frame.kind is not FrameKind.PART
        if frame.kind is FrameKind.END:
            return _END
        content = unpickled(frame.body, frame.buffers)
        if isinstance(content, ErrorAsData):
            raise content.as_exception(_WHERE)
        self._taken += 1
        if self._taken == STEPS_AHEAD // 2 and not self.is_over:
            self._channel.took(self.id, self._taken)
            self._taken = 0
        return content

    def close(self) -> None:
        self._channel.leave(self.id, is_over=self.is_over)


class _BlockingAnswers(_Answers):
    def __init__(self, channel: ParentChannel, call: CallOut) -> None:
        super().__init__(channel)
        if EventLoop.is_in_thread():
            raise RuntimeError(
                f"a call to {call.endpoint!r} would block this event loop; await it instead"
            )
        self._frames: queue.SimpleQueue[Frame | TypeError | None] = queue.SimpleQueue()
        # Threads that the code starts are in no work's context.
        self._inner = inner_calls.get(InnerCalls())
        self.id = channel.begin(call, self._frames.put)

    def next(self) -> Any:
        with self._inner.waiting(partial(self._frames.put, None)):
            return self.opened(self._frames.get())

    def outcome(self) -> Outcome:
        """Returns the result or the error of a call with one result."""
        with closing(self):
            try:
                return self.next(), None
            except WorkCancelled:
                raise
            except Exception as error:
                return None, error


class _Awaiting(_Answers):
    def __init__(self, channel: ParentChannel, call: CallOut) -> None:
        super().__init__(channel)
        self._frames: deque[Frame | TypeError] = deque()
        self._has_frames = anyio.Event()
        self._soon = EventLoop.here().soon
        self.id = channel.begin(call, self._take)

    async def next(self) -> Any:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while not self._frames:
            self._has_frames = anyio.Event()
            await self._has_frames.wait()
        return self.opened(self._frames.popleft())

    def _take(self, frame: Frame | TypeError) -> None:
        self._frames.append(frame)
        self._soon(lambda: self._has_frames.set())  # looked up when it runs
