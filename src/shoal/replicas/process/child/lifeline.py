"""Makes a worker die with its parent, whatever either of them is doing.

The problem: a parent that is killed can't notify its workers, and a worker that computes in C while
it holds the GIL runs no Python code that could notice. So the kernel must do it. Linux sends a
signal to the owner of a file descriptor when its state changes. Here the descriptor is the read end
of a pipe that only the parent can write to, and the signal is SIGKILL. It is sent when the parent's
end is closed, for whatever reason. The owner is the worker's process group, so its own children are
killed as well.

``PR_SET_PDEATHSIG`` was rejected: it fires when the *thread* that started the worker ends. On other
platforms the worker's watchdog thread notices instead, as soon as it can run.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys


def die_with_the_parent(lifeline: int) -> None:
    """Makes the kernel kill this process and its group when the parent's end is closed.

    Args:
        lifeline: The read end of the pipe.
    """
    if sys.platform == "linux":
        pid = os.getpid()
        leads_its_group = os.getpgrp() == pid
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -pid if leads_its_group else pid)
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    # It was closed before the signal was set up.
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(1)
