"""In the worker: the watchdog thread, which reads the control channel.

It runs whatever the main thread does. It ends the process when the parent is gone, responds to
pings, forwards cancellations, and starts a thread for a plain ``health()``. It must never wait for
user code.
"""

from __future__ import annotations

import os
import pickle
import threading
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from shoal.loops.event_loop import EventLoop
from shoal.replicas.process.wire.errors import as_data
from shoal.replicas.process.wire.frames import Frame, FrameKind, FrameReader, receive, send
from shoal.replicas.process.wire.messages import EMPTY, Message, packed, unshared

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from contextvars import Context

    from shoal.replicas.process.wire.messages import Dumps


class ThreadsafeDraining:
    """A flag that any thread can set and any event loop can wait for."""

    def __init__(self) -> None:
        self._is_set = False
        self._listeners: set[Callable[[], object]] = set()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for notify in tuple(self._listeners):
            notify()

    async def wait(self) -> None:
        is_set = anyio.Event()
        notify = partial(EventLoop.here().soon, is_set.set)
        self._listeners.add(notify)
        try:
            if self._is_set:
                await anyio.lowlevel.checkpoint()
            else:
                await is_set.wait()
        finally:
            self._listeners.discard(notify)


class Control:
    """The worker's end of the control channel, for all its threads."""

    def __init__(
        self,
        sock: socket.socket,
        dumps: Dumps = pickle.dumps,
        on_gone: Callable[[], object] | None = None,
    ) -> None:
        # Pickles what the code returns and raises.
        self.dumps = dumps
        # Called when the parent is gone; by default, the process ends at once.
        self.on_gone = on_gone or partial(os._exit, 1)
        # These get the id of a cancelled call, the id of a health check, for which they must call
        # `answer_health`, and each response to a call of the code to an endpoint.
        self.on_cancel: Callable[[int], object] = _ignore
        self.on_health_check: Callable[[int], object] = _ignore
        self.on_answer: Callable[[Frame], object] = _ignore
        self.draining = ThreadsafeDraining()
        self._socket = sock
        self._sending = threading.Lock()

    def send(self, kind: FrameKind, id_: int, message: Message = EMPTY) -> None:
        with self._sending:
            send(self._socket, unshared(kind, id_, message))

    def answer_health(self, id_: int, answer: object, error: BaseException | None) -> None:
        if error is None and answer is False:
            error = RuntimeError("health() returned False")
        if error is None:
            self.send(FrameKind.RESULT, id_, packed(None))
        else:
            self.send(FrameKind.ERROR, id_, packed(as_data(error, self.dumps)))

    def check_in_thread(self, id_: int, health: Callable[[], object], context: Context) -> None:
        def check() -> None:
            try:
                answer = context.copy().run(health)
            except BaseException as error:
                self.answer_health(id_, None, error)
            else:
                self.answer_health(id_, answer, None)

        threading.Thread(target=check, name="shoal health", daemon=True).start()

    def watch(self) -> None:
        threading.Thread(target=self._read, name="shoal watchdog", daemon=True).start()

    def _read(self) -> None:
        reader = FrameReader()
        while True:
            frame = receive(self._socket, reader)
            try:
                if frame is not None:
                    self._handle(frame)
                    continue
            except OSError:
                pass
            self.on_gone()
            return

    def _handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.PING:
            self.send(FrameKind.RESULT, frame.id, packed(None))
        elif frame.kind is FrameKind.CANCEL:
            self.on_cancel(frame.id)
        elif frame.kind is FrameKind.DRAIN:
            self.draining.set()
        elif frame.kind is FrameKind.HEALTH:
            self.on_health_check(frame.id)
        else:
            self.on_answer(frame)


def _ignore(_what: object) -> None:
    pass
