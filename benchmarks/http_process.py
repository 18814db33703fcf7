"""A server in a process of its own, and the kernel's figures about it: CPU time, memory, switches.

A server may consist of several processes, as Granian and Hypercorn do. They are all in the session
of the first one, and are counted together.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0

_PROC: Final = Path("/proc")
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Below the range from which the kernel takes the ports of clients.
_PORTS: Final = range(20_000, 32_000)


def free_port() -> int:
    """Returns a port at which nobody listens."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class ServerProcess:
    """A running server; a context manager that ends it.

    Args:
        name: Its name in messages.
        command: The command, in which ``{port}`` stands for the port.

    Attributes:
        name: The name of the server.
        port: Its port on 127.0.0.1.
        pid: The id of the process that was started.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.port = free_port()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # __exit__ closes it
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            [part.format(port=self.port) for part in command],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        finally:
            for pid in self._pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._log.close()

    def terminate(self) -> None:
        """Asks the server to end, without waiting for it."""
        self._process.terminate()

    def wait_answer(self, request: Callable[[int], bool], pause_s: float = 0.02) -> float:
        """Waits until the server answers; returns the seconds since it was started.

        Args:
            request: Makes a request at a port; returns whether the answer is right. It raises
                `OSError` if nobody listens.
            pause_s: How long to wait between two attempts, in seconds.

        Raises:
            RuntimeError: The server did not start, or its answer is wrong.
        """
        while True:
            try:
                is_right = request(self.port)
            except OSError:
                took_s = time.perf_counter() - self._began
                if took_s > START_TIMEOUT_S or self._process.poll() is not None:
                    raise RuntimeError(f"{self.name} did not start:\n{self._printed()}") from None
                time.sleep(pause_s)
            else:
                if not is_right:
                    raise RuntimeError(f"{self.name} answers wrongly:\n{self._printed()}")
                return time.perf_counter() - self._began

    def cpu_s(self) -> float:
        """Returns the CPU time that the server has used, in seconds."""
        return sum(self.cpu_s_by_pid().values())

    def cpu_s_by_pid(self) -> dict[int, float]:
        """Returns the CPU time of each process, in seconds; first that of the one started here."""
        used = {self.pid: 0.0}
        for pid in self._pids():
            used[pid] = sum(map(int, _stat(pid)[11:13])) * _TICK_S
        return used

    def memory(self) -> int:
        """Returns the resident memory of the server, in bytes."""
        return _PAGE * sum(
            int((_PROC / str(pid) / "statm").read_text().split()[1]) for pid in self._pids()
        )

    def switches(self) -> int:
        """Returns how often threads of the server have waited and were woken."""
        return sum(
            int(line.split()[1])
            for pid in self._pids()
            for thread in (_PROC / str(pid) / "task").iterdir()
            for line in (thread / "status").read_text().splitlines()
            if line.startswith("voluntary_ctxt_switches")
        )

    def _pids(self) -> Iterator[int]:
        """Yields the processes of the server's session."""
        for entry in _PROC.iterdir():
            if entry.name.isdigit():
                try:
                    is_ours = int(_stat(int(entry.name))[3]) == self._process.pid
                except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                    continue
                if is_ours:
                    yield int(entry.name)

    def _printed(self) -> str:
        self._log.seek(0)
        return self._log.read()


def _environment() -> dict[str, str]:
    """Returns this process's environment, with compiled modules, as servers of users have them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _stat(pid: int) -> list[str]:
    """Returns the fields of a process from its state on; its name may contain spaces."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
