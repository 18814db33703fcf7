"""The worker processes of a server that a test runs."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import anyio


def workers_of(pid=None):
    """The ids of the workers of a process; this one by default."""
    children = children_of(os.getpid() if pid is None else pid)
    return sorted(child for child in children if is_worker(child))


def children_of(pid):
    """The ids of the children of a process."""
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end meanwhile
            children += map(int, (task / "children").read_text().split())
    return children


def is_worker(pid):
    try:
        return b"shoal.commands.server.front_end" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid, signum=signal.SIGKILL):
    os.kill(pid, signum)


async def until(is_so):
    """Waits until something is so in this process or another; a hang is the test's to notice."""
    while not is_so():  # noqa: ASYNC110 - another process tells of no event
        await anyio.sleep(0.005)
