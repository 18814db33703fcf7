"""Starts, watches, reads and ends the process of one replica.

One task waits for the end of the process, since only one task may wait for a file descriptor. It
waits until the process *has* ended, even when cancelled; to make that soon, kill the process. The
process group is killed before the process is reaped: until then no other process can get its id.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from functools import partial
from io import FileIO
from typing import IO, TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from shoal.errors import ReplicaDied
from shoal.replicas.process.wire.frames import PROTOCOL
from shoal.replicas.process.wire.messages import MessageCodec
from shoal.replicas.process.wire.shared_memory import SharedMemory, new_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.current import Identity
    from shoal.replicas.placements import ProcessOptions

_CHUNK: Final = 2**16
_LONGEST_LINE: Final = 2**14
_LAST: Final = 20
# How many lines of one read are processed.
_MOST_LINES: Final = 200
_MOST_AT_END: Final = 64


logger: Final = logging.getLogger("shoal.replicas")

_SOCKET_BUFFER: Final = 2**20


class Worker:
    """A worker process; the constructor starts it."""

    def __init__(self, identity: Identity, options: ProcessOptions) -> None:
        self._tag = identity.replica
        # Set when the process has ended and was reaped.
        self.ended = anyio.Event()
        # None before the end, and if a signal ended the process.
        self.exit_code: int | None = None
        # The name of the signal that ended it; None before, and if none did.
        self.signal: str | None = None
        # For work. The control channel is for messages that must not wait behind work.
        own_data, data = socket.socketpair()
        for end in (own_data, data):
            # Data that does not fit into shared memory is sent through it in pieces of this size.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        own_control, control = socket.socketpair()
        self.sockets = own_data, own_control
        held, lifeline = os.pipe()
        # What is closed with it. The end of the lifeline kills the process.
        self._open: list[Any] = [own_data, own_control, FileIO(lifeline, "wb")]
        memory: int | None = None
        try:
            memory = new_memory(options.shared_memory_bytes)
            shared = SharedMemory(memory, options.shared_memory_bytes)
            self.codec = MessageCodec(shared.requests, shared.replies)
            passed = [data.fileno(), control.fileno(), held, *([] if memory is None else [memory])]
            self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - the operator's choice
                [
                    options.python or sys.executable,
                    "-P",  # modules in the current directory must not shadow the library's
                    "-m",
                    "shoal.replicas.process.child.main",
                    *map(str, (PROTOCOL, options.shared_memory_bytes, *passed)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **options.env},
                pass_fds=passed,
                process_group=0,
                bufsize=0,
            )
        except BaseException:
            self._close_descriptors()
            raise
        finally:
            data.close()
            control.close()
            os.close(held)
            if memory is not None:
                os.close(memory)
        self._open += [self._process.stdout, self._process.stderr]
        self.pid = self._process.pid
        log = logging.getLogger(f"shoal.replica.{identity.backend}")
        self.stdout = Output(self._process.stdout, log, self._tag)
        self.stderr = Output(self._process.stderr, log, self._tag)

    async def watch(self, on_end: Callable[[], object]) -> None:
        """Waits for the end of the process, even when cancelled, and reaps it."""
        try:
            with anyio.CancelScope(shield=True):
                await wait_ended(self.pid)
        except BaseException:
            self.kill()
            raise
        finally:
            # In any case, because the task of the replica waits for it.
            self._reap()
            on_end()

    def kill(self) -> None:
        """Kills the process and its children, unless it has ended."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # even if it has left its group

    def close(self) -> None:
        """Makes sure that the process has ended, and closes the parent's file descriptors."""
        if self._process.returncode is None:
            # Only if an interrupt has ended the task in `watch`.
            self.kill()
            self._reap()
        self.codec = MessageCodec()  # frees the shared memory
        self._close_descriptors()

    def how_it_ended(self) -> str:
        if self.signal is not None:
            return f"was killed by {self.signal}"
        return f"exited with code {self.exit_code}"

    def last_words(self) -> str:
        last_lines = self.stderr.last_lines()
        return f"; its stderr ended with:\n{last_lines}" if last_lines else ""

    def death(self, how: str) -> ReplicaDied:
        """Returns a new error, for one caller."""
        return ReplicaDied(
            f"replica {self._tag} {how}{self.last_words()}",
            replica=self._tag,
            exit_code=self.exit_code,
            signal=self.signal,
            last_lines=self.stderr.last_lines(),
        )

    def memory_bytes(self) -> int | None:
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return None

    def _reap(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # the processes that it started
        code = self._process.wait()
        if code < 0:
            try:
                self.signal = signal.Signals(-code).name
            except ValueError:
                self.signal = f"signal {-code}"
        else:
            self.exit_code = code
        self.stdout.read_available()
        self.stderr.read_available()
        self.ended.set()

    def _close_descriptors(self) -> None:
        for one in self._open:
            one.close()


async def wait_ended(pid: int) -> None:
    """Waits until a child process has ended, and does not reap it; for one task only."""
    try:
        pidfd = _pidfd(pid)
    except OSError:
        pidfd = None
    if pidfd is None:
        wait = partial(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        limiter = anyio.CapacityLimiter(1)
        await anyio.to_thread.run_sync(wait, abandon_on_cancel=True, limiter=limiter)
    else:
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)


def _pidfd(pid: int) -> int | None:
    return os.pidfd_open(pid) if sys.platform == "linux" else None


class Output:
    """The stdout or stderr of a worker, whose lines are logged."""

    def __init__(self, pipe: IO[bytes] | None, log: logging.Logger, tag: str) -> None:
        assert pipe is not None
        self._fd = pipe.fileno()
        self._log = log
        self._tag = tag
        self._last: deque[str] = deque(maxlen=_LAST)
        self._rest = b""  # the beginning of an incomplete line
        self._is_open = True
        os.set_blocking(self._fd, False)

    async def read(self) -> None:
        while self._is_open:
            await anyio.wait_readable(self._fd)
            self._read_once()

    def read_available(self) -> None:
        """Reads without waiting, when the worker has ended or not started."""
        for _ in range(_MOST_AT_END):  # a process that outlives the worker may write without end
            if not self._is_open or not self._read_once():
                break
        if self._rest:
            self._take(self._rest)
            self._rest = b""

    def last_lines(self) -> str:
        return "\n".join(self._last)

    def _read_once(self) -> bool:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._is_open = False
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(lines) > _MOST_LINES:  # logging them all would block the event loop
            self._take(b"(%d lines are left out: too much output)" % (len(lines) - _MOST_LINES))
        for line in lines[-_MOST_LINES:]:
            self._take(line)
        while len(self._rest) > _LONGEST_LINE:
            self._take(self._rest[:_LONGEST_LINE])
            self._rest = self._rest[_LONGEST_LINE:]
        return True

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self._last.append(text)
        self._log.info("%s: %s", self._tag, text)
