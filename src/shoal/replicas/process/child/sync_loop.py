"""In the worker: runs plain code. The main thread reads calls and runs them, one by one.

The code runs in the main thread, as in a script, and a call needs no switch between threads.
Frames that arrive during a call wait in the channel, or are put aside while a stream waits for its
reader. The watchdog thread drops a call that is cancelled while it waits, and reports at once that
its work is over. A call that runs is not interrupted, but a generator is closed at its next step.

Invariant: ids increase in the order of the calls, so the watchdog knows which have not begun.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING

from shoal.batching.handlers.handler import DONE, PlainSteps
from shoal.replicas.process.wire.errors import as_data
from shoal.replicas.process.wire.frames import (
    STEPS_AHEAD,
    Frame,
    FrameKind,
    FrameReader,
    receive,
    send,
)
from shoal.replicas.process.wire.messages import EMPTY, Message, packed, unpickled
from shoal.replicas.threads import InnerCalls

if TYPE_CHECKING:
    import socket

    from shoal.replicas.process.child.calls import CallAnswers
    from shoal.replicas.process.child.control import Control


class SyncWork:
    def __init__(
        self, answers: CallAnswers, control: Control, sock: socket.socket, reader: FrameReader
    ) -> None:
        self._answers = answers
        self._control = control
        self._socket = sock
        self._reader = reader
        self._put_aside: deque[Frame] = deque()
        self._lock = threading.Lock()
        # Guarded by the lock: the id of the call that was begun last, whether it was cancelled, the
        # calls that it makes itself, and the ids of calls that will not be begun.
        self._begun = 0
        self._is_cancelled = False
        self._inner_calls = InnerCalls()
        self._dropped: set[int] = set()

    def cancel(self, id_: int) -> None:
        with self._lock:
            if id_ < self._begun:
                return
            if id_ == self._begun:
                self._is_cancelled = True
                self._inner_calls.cancel()
                return
            self._dropped.add(id_)
        self._control.send(FrameKind.END, id_)

    def run(self) -> None:
        """Runs calls until a message closes the worker, or the parent is gone."""
        while True:
            frame = self._put_aside.popleft() if self._put_aside else self._receive()
            if frame is None or frame.kind is FrameKind.CLOSE:
                return
            self._handle(frame)

    def _receive(self) -> Frame | None:
        frame = receive(self._socket, self._reader)
        if frame is not None:
            self._answers.codec.take_back(frame)
        return frame

    def _handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.RUN:
            work = self._call
        elif frame.kind is FrameKind.STREAM:
            work = self._stream
        elif frame.kind is FrameKind.RECONFIGURE:
            work = self._reconfigure
        else:
            return  # belongs to a call that is over
        if self._begins(frame):
            # The answer is sent when nothing refers to the items any more, so that its frame gives
            # their memory back.
            kind, message = work(frame)
            self._send(kind, frame.id, message)

    def _call(self, frame: Frame) -> tuple[FrameKind, Message]:
        try:
            work = self._answers.opened(frame, time.monotonic(), self._inner_calls)
            return FrameKind.RESULT, self._answers.packed(work, work.plain_results())
        except BaseException as error:
            return self._failed(error)

    def _stream(self, frame: Frame) -> tuple[FrameKind, Message]:
        credit = STEPS_AHEAD
        try:
            work = self._answers.opened(frame, time.monotonic(), self._inner_calls)
            steps = PlainSteps(work.handler, work.items)
            try:
                while not self._is_cancelled:
                    if credit == 0:
                        credit = self._wait_for_reader(frame.id)
                        continue
                    step = work.next_of(steps)
                    if step is DONE:
                        break
                    self._send(FrameKind.PART, frame.id, self._answers.packed(work, step))
                    credit -= 1
            finally:
                steps.close()
        except BaseException as error:
            return self._failed(error)
        return FrameKind.END, EMPTY

    def _reconfigure(self, frame: Frame) -> tuple[FrameKind, Message]:
        try:
            user_config = self._answers.codec.opened_here(frame)
            copy_context().run(self._answers.reconfigure_hook(user_config), user_config)
        except BaseException as error:
            return self._failed(error)
        return FrameKind.RESULT, packed(None)

    def _failed(self, error: BaseException) -> tuple[FrameKind, Message]:
        """Returns the response to an error of the code; raises one that must end the process."""
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error
        return FrameKind.ERROR, packed(as_data(error))

    def _wait_for_reader(self, id_: int) -> int:
        """Waits until a stream's reader takes steps or disconnects; returns their number."""
        # A frame of this stream may have been put aside while another stream waited.
        for frame in self._put_aside:
            if frame.id == id_:
                self._put_aside.remove(frame)
                break
        else:
            frame = self._next_of(id_)
        if frame.kind is FrameKind.CREDIT:
            steps: int = unpickled(frame.body)
            return steps
        self._is_cancelled = True
        return 0

    def _next_of(self, id_: int) -> Frame:
        """Waits for the next frame of a call, and puts frames of others aside."""
        while True:
            frame = self._receive()
            if frame is None:
                os._exit(1)  # the parent is gone
            if frame.id == id_:
                return frame
            self._put_aside.append(frame)

    def _send(self, kind: FrameKind, id_: int, message: Message) -> None:
        send(self._socket, self._answers.codec.frame(kind, id_, message))

    def _begins(self, frame: Frame) -> bool:
        with self._lock:
            if frame.id in self._dropped:
                self._dropped.discard(frame.id)
                self._answers.codec.drop(frame)
                return False
            self._begun = frame.id
            self._is_cancelled = False
            self._inner_calls = InnerCalls()
            return True
