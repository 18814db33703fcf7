"""Clients for http.py: a closed loop of connections on asyncio, and wrk if it is installed.

The asyncio client reads streams, which wrk can't, and measures the time to their first tokens. It
checks every answer, keeps connections open, and reconnects when the server closes one between two
requests. It is slower than the servers, so what it finds without wrk are their CPU times, and not
how many requests they could answer.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.http_process import ServerProcess

TOKEN: Final = b"token "
LAST_CHUNK: Final = b"\r\n0\r\n\r\n"


@dataclass
class Load:
    """The measurements of the clients, without the warm-up.

    Attributes:
        seconds: The duration of the measurement.
        requests: The number of answered requests.
        tokens: The number of received tokens.
        latencies_s: The time from each request to the end of its answer.
        first_token_s: The time from each request to its first token.
        failures: The number of wrong answers.
        cpu_s: The CPU time that the server used meanwhile, in seconds.
    """

    seconds: float
    requests: int = 0
    tokens: int = 0
    latencies_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    failures: int = 0
    cpu_s: float = 0.0

    @property
    def p50_ms(self) -> float:
        """The median latency, in milliseconds."""
        return percentile_ms(self.latencies_s, 50)

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of the latencies, in milliseconds."""
        return percentile_ms(self.latencies_s, 99)


def percentile_ms(seconds: list[float], percent: float) -> float:
    """Returns a percentile of times, in milliseconds."""
    ordered = sorted(seconds)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1e3


def request_bytes(path: str, body: bytes, accept: str) -> bytes:
    """Returns the bytes of a POST request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Accept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Clients:
    """Connections that send requests in a loop until the time is over."""

    def __init__(
        self,
        server: ServerProcess,
        request: bytes,
        tokens: int,
        began: float,
        ends: float,
    ) -> None:
        self._server = server
        self._request = request
        self._tokens = tokens
        self._began = began
        self._ends = ends
        self.load = Load(ends - began)

    async def run(self, clients: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._measure_cpu())
            for _ in range(clients):
                tasks.create_task(self._client())

    async def _measure_cpu(self) -> None:
        await asyncio.sleep(self._began - time.perf_counter())
        before_s = self._server.cpu_s()
        await asyncio.sleep(self._ends - time.perf_counter())
        self.load.cpu_s = self._server.cpu_s() - before_s

    async def _client(self) -> None:
        while time.perf_counter() < self._ends:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
            try:
                while time.perf_counter() < self._ends:
                    if not await self._ask(reader, writer):
                        break
            except (ConnectionError, asyncio.IncompleteReadError):
                self.load.failures += 1
            finally:
                writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Sends one request; returns whether the connection can be used again."""
        asked = time.perf_counter()
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            body, first = await self._read_chunks(reader)
        else:
            length = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            first = None
        answered = time.perf_counter()
        if not head.startswith(b"http/1.1 200 ") or body.count(TOKEN) != self._tokens:
            self.load.failures += 1
        elif self._began <= answered < self._ends:
            self.load.requests += 1
            self.load.latencies_s.append(answered - asked)
            if first is not None:
                self.load.first_token_s.append(first - asked)
        return b"connection: close" not in head

    async def _read_chunks(self, reader: asyncio.StreamReader) -> tuple[bytes, float | None]:
        body = bytearray()
        first = None
        while not body.endswith(LAST_CHUNK):
            data = await reader.read(65536)
            if not data:
                raise asyncio.IncompleteReadError(bytes(body), None)
            now = time.perf_counter()
            if first is None and TOKEN in data:
                first = now
            if self._began <= now < self._ends:
                self.load.tokens += data.count(TOKEN)
            body += data
        return bytes(body), first


def drive(
    server: ServerProcess,
    request: bytes,
    *,
    clients: int,
    tokens: int = 0,
    warm_up_s: float = 0.0,
    seconds: float,
) -> Load:
    """Runs a closed loop of clients; returns their measurements after the warm-up.

    Args:
        server: The server.
        request: The request to send.
        clients: The number of concurrent connections.
        tokens: The number of tokens in every answer.
        warm_up_s: The duration of the warm-up, which is not measured.
        seconds: The duration of the measurement.
    """
    began = time.perf_counter() + warm_up_s
    running = _Clients(server, request, tokens, began, began + seconds)
    with _on_the_last_core():
        asyncio.run(running.run(clients))
    return running.load


@contextmanager
def _on_the_last_core() -> Iterator[None]:
    """Keeps the clients, which run in this block, from running where the server does.

    Otherwise the kernel often runs a client in the middle of the system call that sends it an
    answer, on the core of a server that uses one core only.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def wrk_path() -> str | None:
    """Returns the path of wrk, or None if it is not installed."""
    return shutil.which("wrk")


class WrkLoad(NamedTuple):
    """The measurements of wrk."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    failures: int
    cpu_s: float


POST: Final = Path(__file__).with_name("post.lua")
"""The script of wrk that sends one item."""


def drive_with_wrk(
    wrk: str,
    server: ServerProcess,
    path: str,
    *,
    clients: int,
    seconds: int,
    script: Path = POST,
) -> WrkLoad:
    """Runs wrk's closed loop of the requests of a script, from one thread."""
    url = f"http://127.0.0.1:{server.port}{path}"
    command = [wrk, "-t1", f"-c{clients}", f"-d{seconds}s", "--latency", "-s", str(script), url]
    before_s = server.cpu_s()
    with _on_the_last_core():
        ran = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=seconds + 30
        )
    cpu_s = server.cpu_s() - before_s
    counted = re.search(r"(\d+) requests in ([\d.]+)(ms|s|m),", ran.stdout)
    assert counted is not None, f"wrk printed no count: {ran.stdout}"
    failures = sum(map(int, re.findall(r"Non-2xx or 3xx responses: (\d+)", ran.stdout)))
    for errors in re.findall(r"Socket errors: (.*)", ran.stdout):
        failures += sum(map(int, re.findall(r"\d+", errors)))
    return WrkLoad(
        requests=int(counted[1]),
        seconds=float(counted[2]) * _SECONDS[counted[3]],
        p50_ms=_wrk_ms(ran.stdout, "50%"),
        p99_ms=_wrk_ms(ran.stdout, "99%"),
        failures=failures,
        cpu_s=cpu_s,
    )


_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


def _wrk_ms(printed: str, percentile: str) -> float:
    found = re.search(rf"\s{percentile}\s+([\d.]+)(us|ms|s|m)\b", printed)
    if found is None:
        return float("nan")
    return float(found[1]) * _SECONDS[found[2]] * 1e3


def ask(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    content_type: str = "application/json",
) -> tuple[int, bytes]:
    """Makes one request; returns the status and the body.

    Raises:
        OSError: Nobody listens, or the application has not started.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {"Content-Type": content_type})
        answer = connection.getresponse()
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise ConnectionRefusedError("the application has not started")
        return answer.status, answer.read()
    finally:
        connection.close()
