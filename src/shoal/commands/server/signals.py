"""The signals that end a server: the first asks it to drain, the second ends it at once.

They are handled by plain handlers, not in the event loop, because the second one must work when the
loop does not: an application may block it, or a thread that can't be interrupted may hold it open.
For the same reason a watchdog thread stands by, which ends the process when a drain overruns its
time. It waits on a `queue.SimpleQueue`, whose `put` is made to be called from wherever a signal
handler interrupts.

SIGHUP, by which a closed terminal tells its programs, asks for a drain as well, but does not count:
two others are needed to end the process. Who closes a terminal sends it twice, from the shell and
from the kernel, and some supervisors send it together with SIGTERM, when Python hears of it first.
Where it is ignored, as `nohup` has it, it stays so.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from typing import TYPE_CHECKING

import anyio

from shoal.commands.support.saying import say
from shoal.replicas.run_soon import into_this_loop

if TYPE_CHECKING:
    from types import FrameType


class Signals:
    """The first signal asks for a drain, the second ends the process.

    Args:
        allowed_s: How long the process may then take to end.

    Attributes:
        shutdown: Set when the process is to end.
        first: The number of the first signal; None so far.
        allowed_s: As above.
    """

    def __init__(self, allowed_s: float) -> None:
        self.shutdown = anyio.Event()
        self.first: int | None = None
        self.allowed_s = allowed_s
        _, self._soon = into_this_loop()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def listen(self) -> None:
        """Handles signals from here on, until the process ends."""
        threading.Thread(target=self._watch, name="shoal-watchdog", daemon=True).start()
        # Not put back when the server has ended: a second signal must still be obeyed while the
        # interpreter waits for threads of the application's own.
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._received)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._received)

    def ask(self) -> None:
        """Asks for a drain without a signal; from the event loop."""
        self._bell.put(None)
        self.shutdown.set()

    def _received(self, signum: int, _frame: FrameType | None) -> None:
        if self.first not in (None, signal.SIGHUP):
            os._exit(128 + signum)
        self.first = signum
        # It comes more than once, and the interpreter would end with its deadly default restored.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._bell.put(None)
        try:
            self._soon(self.shutdown.set)
        except RuntimeError:  # it has ended
            os._exit(128 + signum)

    def _watch(self) -> None:
        self._bell.get()
        allowed_s = self.allowed_s
        time.sleep(allowed_s)  # what ends this wait, if all goes well, is the process's end
        say(
            f"Shoal ended by force: still busy {allowed_s:g} s after the signal, with a thread that"
            " can't be interrupted or a blocked event loop"
        )
        os._exit(1)
