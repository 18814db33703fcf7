"""Clients for http.py: a closed loop of connections on asyncio, and wrk if it is installed.

The asyncio client reads streams, which wrk can't, and measures the time to their first tokens. It
checks every answer, keeps connections open, and reconnects when the server closes one between two
requests.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
    """

    seconds: float
    requests: int = 0
    tokens: int = 0
    latencies_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    failures: int = 0


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

    def __init__(self, port: int, request: bytes, tokens: int, began: float, ends: float) -> None:
        self._port = port
        self._request = request
        self._tokens = tokens
        self._began = began
        self._ends = ends
        self.load = Load(ends - began)

    async def run(self, clients: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(self._client())

    async def _client(self) -> None:
        while time.perf_counter() < self._ends:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
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
    port: int, request: bytes, *, clients: int, tokens: int, warm_up_s: float, seconds: float
) -> Load:
    """Runs a closed loop of clients; returns their measurements after the warm-up.

    Args:
        port: The server's port on 127.0.0.1.
        request: The request to send.
        clients: The number of concurrent connections.
        tokens: The number of tokens in every answer.
        warm_up_s: The duration of the warm-up, which is not measured.
        seconds: The duration of the measurement.
    """
    began = time.perf_counter() + warm_up_s
    running = _Clients(port, request, tokens, began, began + seconds)
    asyncio.run(running.run(clients))
    return running.load


def wrk_path() -> str | None:
    """Returns the path of wrk, or None if it is not installed."""
    return shutil.which("wrk")


@dataclass(frozen=True)
class WrkLoad:
    """The measurements of wrk."""

    requests_a_second: float
    p50_ms: float
    p99_ms: float
    failures: int


def drive_with_wrk(wrk: str, port: int, path: str, *, clients: int, seconds: int) -> WrkLoad:
    """Runs wrk's closed loop of POST requests from one thread."""
    script = Path(__file__).with_name("post.lua")
    url = f"http://127.0.0.1:{port}{path}"
    command = [wrk, "-t1", f"-c{clients}", f"-d{seconds}s", "--latency", "-s", str(script), url]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 30)
    failures = sum(map(int, re.findall(r"Non-2xx or 3xx responses: (\d+)", ran.stdout)))
    for errors in re.findall(r"Socket errors: (.*)", ran.stdout):
        failures += sum(map(int, re.findall(r"\d+", errors)))
    rate = re.search(r"Requests/sec:\s+([\d.]+)", ran.stdout)
    assert rate is not None, f"wrk printed no rate: {ran.stdout}"
    return WrkLoad(float(rate[1]), _wrk_ms(ran.stdout, "50%"), _wrk_ms(ran.stdout, "99%"), failures)


def _wrk_ms(printed: str, percentile: str) -> float:
    found = re.search(rf"\s{percentile}\s+([\d.]+)(us|ms|s)\b", printed)
    if found is None:
        return float("nan")
    return float(found[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[found[2]]
