"""In the worker: the watchdog thread, which reads the control channel.

It runs whatever the main thread does. It ends the process when the parent is gone, answers pings,
passes cancellations on, and starts a thread for a plain ``health()``. It must never wait for user
code.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from shoal.replicas.process.child.draining import ThreadsafeDraining
from shoal.replicas.process.wire.errors import as_data
from shoal.replicas.process.wire.frames import FrameReader, Kind, encoded, receive, send
from shoal.replicas.process.wire.messages import EMPTY, Message, packed

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from contextvars import Context

    from shoal.replicas.process.wire.frames import Frame


class Control:
    """The worker's end of the control channel, for all its threads.

    Attributes:
        on_cancel: Called with the id of a cancelled call; does nothing until it is set.
        on_health: Called with the id of a health check, which it must answer by `answer_health`.
        draining: Set when the backend begins to shut down.
        on_answer: Called with each frame that answers a call of the code to an endpoint.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.on_cancel: Callable[[int], None] = _ignore
        self.on_health: Callable[[int], None] = _ignore
        self.on_answer: Callable[[Frame], None] = _ignore
        self.draining = ThreadsafeDraining()
        self._socket = sock
        self._sending = threading.Lock()

    def send(self, kind: Kind, id_: int, message: Message = EMPTY) -> None:
        """Sends a frame."""
        with self._sending:
            send(self._socket, encoded(kind, id_, message.body, message.buffers))

    def answer_health(self, id_: int, answer: object, error: BaseException | None) -> None:
        """Sends the outcome of a health check."""
        if error is None and answer is False:
            error = RuntimeError("health() returned False")
        if error is None:
            self.send(Kind.RESULT, id_, packed(None))
        else:
            self.send(Kind.ERROR, id_, packed(as_data(error)))

    def check_in_thread(self, id_: int, health: Callable[[], object], context: Context) -> None:
        """Runs a plain ``health()`` in a thread of its own, and sends the outcome."""

        def check() -> None:
            try:
                answer = context.copy().run(health)
            except BaseException as error:
                self.answer_health(id_, None, error)
            else:
                self.answer_health(id_, answer, None)

        threading.Thread(target=check, name="shoal health", daemon=True).start()

    def watch(self) -> None:
        """Starts to read the channel, in a thread."""
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
            os._exit(1)  # the parent is gone

    def _handle(self, frame: Frame) -> None:
        if frame.kind is Kind.PING:
            self.send(Kind.RESULT, frame.id, packed(None))
        elif frame.kind is Kind.CANCEL:
            self.on_cancel(frame.id)
        elif frame.kind is Kind.DRAIN:
            self.draining.set()
        elif frame.kind is Kind.HEALTH:
            self.on_health(frame.id)
        else:
            self.on_answer(frame)


def _ignore(_what: object) -> None:
    """The default of the callbacks: does nothing."""
