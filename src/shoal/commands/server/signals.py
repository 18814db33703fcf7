"""The signals that end a server: the first asks it to drain, the second ends it at once.

Plain signal handlers handle signals, not the event loop, because the second signal must work even
if an application blocks the loop, or a thread that can't be interrupted keeps it open. For the same
reason a watchdog thread ends the process when a drain takes longer than allowed. The thread waits
on a `queue.SimpleQueue`, because its `put` is reentrant: a signal handler may call it at any point.

SIGHUP, which a process receives when its terminal is closed, also starts a drain, but is not
counted as the first of two signals. Closing a terminal sends it twice, from the shell and from the
kernel, and some supervisors send it together with SIGTERM, with Python seeing SIGHUP first. If
SIGHUP is ignored when the server starts, as under `nohup`, it stays ignored.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

import anyio

from shoal.commands.support.mistake import say
from shoal.replicas.threads import into_this_loop

if TYPE_CHECKING:
    from types import FrameType

# How long the process may take to end before it reports that it is ending.
_QUIET_S: Final = 2.0


class Signals:
    """Handles signals: the first starts a drain, the second ends the process."""

    def __init__(self, allowed_s: float) -> None:
        self.shutdown = anyio.Event()  # set when the process should shut down
        self.first: int | None = None  # the first signal
        self.allowed_s = allowed_s  # for the end after the first signal; may be changed
        _, self._soon = into_this_loop()
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def listen(self) -> None:
        """Installs the signal handlers, which stay until the process ends."""
        threading.Thread(target=self._watch, name="shoal-watchdog", daemon=True).start()
        # Not restored when the server has ended: a second signal must still work while the
        # interpreter waits for the application's own threads.
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._received)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._received)

    def ask(self) -> None:
        """Starts a drain without a signal. Call it in the event loop."""
        self._asked.put(None)
        self.shutdown.set()

    def _received(self, signum: int, _frame: FrameType | None) -> None:
        if self.first not in (None, signal.SIGHUP):
            os._exit(128 + signum)
        self.first = signum
        # SIGHUP arrives more than once, and its default action would kill the ending interpreter.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._asked.put(None)
        try:
            self._soon(self.shutdown.set)
        except RuntimeError:  # the loop has ended
            os._exit(128 + signum)

    def _watch(self) -> None:
        self._asked.get()
        allowed_s = self.allowed_s
        quiet_s = min(_QUIET_S, allowed_s)
        time.sleep(quiet_s)
        say(
            f"Shoal is stopping; running requests have at most {allowed_s:g} s to finish; a second "
            "Ctrl+C or SIGTERM stops it at once"
        )
        # Normally the process ends during this sleep. A longer one overflows.
        time.sleep(min(allowed_s - quiet_s, threading.TIMEOUT_MAX / 2))
        say(
            f"Shoal was stopped by force: still busy {allowed_s:g} s after the signal, with a "
            "thread that can't be interrupted or a blocked event loop"
        )
        os._exit(1)
