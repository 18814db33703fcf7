"""The process of one replica: how it is started, watched, listened to and ended.

One task waits for the process's end, since only one task may wait for a file descriptor; it does so
until the process *has* ended, whatever is cancelled meanwhile, so whoever wants that to be soon
kills it. A process is reaped after its group has been killed: as long as it is not, no other
process can have its id.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from shoal.errors import ReplicaDied
from shoal.replicas.process.output import Output
from shoal.replicas.process.wire.frames import PROTOCOL
from shoal.replicas.process.wire.shared_memory import SharedMemory, new_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.replicas.contract import Blueprint

logger: Final = logging.getLogger("shoal.replicas")

_SOCKET_BUFFER: Final = 2**20


class Worker:
    """A worker process, from its start on.

    Attributes:
        pid: Its process id.
        data: This end of the channel for work.
        control: This end of the channel for all that must not wait behind work.
        shared_memory: The memory shared with it; None for none.
        stdout: What it writes to its stdout.
        stderr: The same of its stderr.
        ended: Set when it has ended and was reaped.
        exit_code: What it exited with; None before, and if a signal ended it.
        signal: The name of the signal that ended it; None before, and if none did.
        was_stopped: Whether it was told to end.
        was_killed: Whether it was killed from here.

    Args:
        blueprint: What it is for.

    Raises:
        OSError: It could not be started.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        options = blueprint.options
        self._tag = blueprint.identity.replica
        self._reason: str | None = None
        self.was_stopped = self.was_killed = False
        self.ended = anyio.Event()
        self.exit_code: int | None = None
        self.signal: str | None = None
        self.data, data = socket.socketpair()
        for end in (self.data, data):
            # What does not fit into the arena goes through it, in pieces of this size.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        self.control, control = socket.socketpair()
        held, self._lifeline = os.pipe()
        self.shared_memory: SharedMemory | None = None
        memory: int | None = None
        try:
            passed = [data.fileno(), control.fileno(), held]
            memory = new_memory(options.shared_memory_bytes)
            if memory is not None:
                passed.append(memory)
                self.shared_memory = SharedMemory(memory, options.shared_memory_bytes)
            self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - the operator's choice
                [
                    options.python or sys.executable,
                    "-P",  # or what lies in the current directory would be taken for the library's
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
            self._close_ours()
            raise
        finally:
            data.close()
            control.close()
            os.close(held)
            if memory is not None:
                os.close(memory)
        self.pid = self._process.pid
        log = logging.getLogger(f"shoal.replica.{blueprint.identity.backend}")
        kept = options.log_lines
        self.stdout = Output(self._process.stdout, log, self._tag, kept)
        self.stderr = Output(self._process.stderr, log, self._tag, kept, beside=self.stdout)

    async def watch(self, on_end: Callable[[], object]) -> None:
        """Waits until the process has ended, and reaps it.

        Args:
            on_end: Called then.

        Cancellation: is held off until it has ended. So kill it.
        """
        with anyio.CancelScope(shield=True):
            try:
                pidfd = _pidfd(self.pid)
            except OSError:
                pidfd = None
            if pidfd is None:
                wait = partial(os.waitid, os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                await anyio.to_thread.run_sync(wait, limiter=anyio.CapacityLimiter(1))
            else:
                try:
                    await anyio.wait_readable(pidfd)
                finally:
                    os.close(pidfd)
            self._reap()
            on_end()

    def kill(self, reason: str | None = None) -> None:
        """Kills the process and its children, unless it has ended. Idempotent.

        Args:
            reason: Why, for the error of its work; the first one counts.
        """
        self.was_killed = True
        if self._process.returncode is None:
            self._reason = self._reason or reason
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # even if it has left its group

    def close(self) -> None:
        """Makes sure that the process has ended, and closes all that is ours of it."""
        if self._process.returncode is None:
            # Only if an interrupt has ended the task that watches.
            self.kill()
            self._reap()
        self.shared_memory = None
        self._close_ours()

    def death(self) -> ReplicaDied:
        """Makes an error that says how the process has ended; for one caller."""
        last_lines = self.stderr.last_lines()
        said = f"replica {self._tag} {self.how_it_ended()}"
        if last_lines:
            said = f"{said}; its stderr ended with:\n{last_lines}"
        return ReplicaDied(
            said,
            replica=self._tag,
            exit_code=self.exit_code,
            signal=self.signal,
            last_lines=last_lines,
        )

    def how_it_ended(self) -> str:
        """Says how the process has ended, in words."""
        if self._reason is not None:
            return f"was killed: {self._reason}"
        if self.was_stopped:
            return "was stopped"
        if self.signal is not None:
            return f"was killed by {self.signal}"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        return "is ending"

    def memory_bytes(self) -> int | None:
        """Returns its resident memory; None if that can't be known."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return None

    def _reap(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it has started
        code = self._process.wait()
        if code < 0:
            try:
                self.signal = signal.Signals(-code).name
            except ValueError:
                self.signal = f"signal {-code}"
        else:
            self.exit_code = code
        self.stdout.read_at_hand()
        self.stderr.read_at_hand()
        self.ended.set()

    def _close_ours(self) -> None:
        self.data.close()
        self.control.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        process: Any = getattr(self, "_process", None)
        if process is not None:
            process.stdout.close()
            process.stderr.close()


def _pidfd(pid: int) -> int | None:
    return os.pidfd_open(pid) if sys.platform == "linux" else None
