"""How a worker dies with its parent, whatever either of them is doing.

The problem: a parent that is killed can't tell its workers, and a worker that computes in C with
the interpreter's lock held runs no Python code that could notice. So the kernel must do it. Linux
sends a signal to the owner of a file descriptor when something happens to it; here the descriptor
is the read end of a pipe that only the parent can write to, the signal is SIGKILL, and what happens
is that the parent's end is closed, by whatever ended it. The owner is the worker's process group,
so its own children go as well.

``PR_SET_PDEATHSIG`` was turned down: it fires when the *thread* that started the worker ends.
Elsewhere than on Linux the worker's watchdog notices instead, once it gets to run.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys


def die_with_the_parent(lifeline: int) -> None:
    """Has the kernel kill this process, and its group, when the parent's end is closed.

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
    # Closed before anybody listened.
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(1)
