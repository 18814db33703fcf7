"""A server in a process of its own, and what its process has: memory, sockets, threads, its log.

``shoal serve`` is what the tests run; Hypercorn and uvicorn, with the same application, are there
for comparison.
"""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agreed import HANG_S

HERE = Path(__file__).parent
LOOPS = ["trio", "asyncio"]
SERVERS = ["shoal", "hypercorn", "uvicorn"]
# For tests that wait until a client's time is over.
SHORT_S = 0.3
SHORT_OPTIONS = (
    "--max-connections=50",
    f"--keep-alive-timeout={SHORT_S}",
    f"--head-timeout={SHORT_S}",
    f"--body-timeout={SHORT_S}",
    f"--send-timeout={SHORT_S}",
    f"--ping-interval={SHORT_S}",
)
# Secret in requests: what the log must not show.
CANARY = "canary-4f1d"
MIB = 2**20

_STARTED = re.compile(rb"Shoal serving \S+ on http://127\.0\.0\.1:(\d+)\n")
# The time, the level, the logger and a message in which nothing is quoted but an address or a path.
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: .{1,200}")


class HostileServer:
    def __init__(self, kind: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.kind = kind
        self.process = process
        self.port = port
        self.log_path = log

    # The process.

    def is_up(self) -> bool:
        return self.process.poll() is None

    def memory(self) -> int:
        """How much memory it has resident, in bytes."""
        text = Path(f"/proc/{self.serving_pid()}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) * 1024

    def sockets(self) -> int:
        """How many sockets it has open, with the listening ones."""
        found = 0
        folder = f"/proc/{self.serving_pid()}/fd"
        for fd in os.listdir(folder):
            with suppress(FileNotFoundError):
                found += os.readlink(f"{folder}/{fd}").startswith("socket:")
        return found

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log_size(self) -> int:
        return self.log_path.stat().st_size

    def terminate(self, signum: int) -> tuple[int, dict[str, Any]]:
        """Asks it to end, and waits; returns the exit code, and what its application printed."""
        self.process.send_signal(signum)
        out, _ = self.process.communicate(timeout=HANG_S)
        lines = out.decode().splitlines()
        return self.process.returncode, json.loads(lines[-1]) if lines else {}

    def serving_pid(self) -> int:
        """The process that serves: Hypercorn's is the last one that its command has started."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[-1]) if children and self.kind == "hypercorn" else pid

    # What its application says.

    def ask(self, method: str, path: str, item: Any = None, timeout_s: float = 10.0) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        headers = {"content-type": "application/json", "connection": "close"}
        try:
            connection.request(method, path, json.dumps(item) if item is not None else "", headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def until(self, what: str, name: str) -> float | None:
        """Waits until the handler of a name has "began" or "ended"; returns when that was.

        None if it was not for some seconds.
        """
        return self.ask("GET", f"/raw/until?{what}={name}")[1]

    def tasks(self) -> Counter[str]:
        """How many tasks of which code it has."""
        return Counter(self.ask("GET", "/raw/state")[1]["tasks"])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S)


def wait_until(is_so: Callable[[], bool], timeout_s: float, every_s: float = 0.02) -> bool:
    """Waits until something is so in another process; returns whether it was in time."""
    ends_at = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > ends_at:
            return False
        time.sleep(every_s)
    return True


def flaws_of_log(log: str) -> list[str]:
    """Which lines of a log are more than one line for one fault, or show what a client sent."""
    return [
        line[:300]
        for line in log.splitlines()
        if CANARY in line or not (_LOG_LINE.fullmatch(line) or line.startswith("Shoal "))
    ]


@contextmanager
def serving(
    folder: Path, *options: str, kind: str = "shoal", loop: str = "trio", plant: str = ""
) -> Iterator[HostileServer]:
    """Runs a server, and kills it at the end if it is still up."""
    log = folder / f"{kind}-{loop}-{time.monotonic_ns()}.log"
    port = 0 if kind == "shoal" else _free_port()
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            _command(kind, loop, port, options),
            cwd=HERE,
            env={**os.environ, "HOSTILE_PLANT": plant},
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    with process:
        try:
            server = HostileServer(kind, process, port, log)
            _wait_started(server)
            yield server
        finally:
            process.kill()


def _command(kind: str, loop: str, port: int, options: tuple[str, ...]) -> list[str]:
    module = [sys.executable, "-m"]
    if kind == "shoal":
        given = ["--port", "0", "--event-loop", loop, *options]
        return [*module, "shoal", "serve", "hostile_app:app", *given]
    if kind == "hypercorn":
        address = f"127.0.0.1:{port}"
        return [*module, "hypercorn", "-k", "trio", "-b", address, "hostile_app:app"]
    return [*module, "uvicorn", "--port", str(port), "--no-access-log", "hostile_app:app"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def _wait_started(server: HostileServer) -> None:
    def has_started() -> bool:
        if not server.is_up():
            return True
        if server.kind == "shoal":
            found = _STARTED.search(server.log_path.read_bytes())
            server.port = int(found[1]) if found else 0
            return found is not None
        with suppress(OSError), server.connect():
            return True
        return False

    assert wait_until(has_started, HANG_S), server.log()
    assert server.is_up(), server.log()
