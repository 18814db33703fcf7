"""The part of http.py about open connections that are idle."""

from __future__ import annotations

import resource
import select
import socket
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks import http_load
from benchmarks.http_parts import ECHO_APP, SHOAL, SHOAL_ASYNCIO, UVICORN
from benchmarks.http_rounds import ITEM, is_answered
from benchmarks.http_servers import shoal_serve, uvicorn
from benchmarks.http_tables import Figures, Table, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.http_process import ServerProcess
    from benchmarks.http_servers import Server

CONNECTIONS: Final = 10_000
KEEP_ALIVE_S: Final = 600
# What else a process has open.
_OTHER_FILES: Final = 300
_REQUEST: Final = http_load.request_bytes("/echo", ITEM, "application/json")


@dataclass(frozen=True)
class IdleEffort:
    """How much is measured.

    Attributes:
        connections: How many connections are idle.
        idle_s: How long they are watched, in seconds.
        rounds: How many rounds of the good client to measure.
        seconds: How long such a round takes.
    """

    connections: int
    idle_s: float
    rounds: int
    seconds: float


def allow_connections(wanted: int) -> int:
    """Raises the limit on open files as far as allowed; returns how many connections it allows.

    The servers that are started later inherit the limit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = wanted + _OTHER_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, hard - _OTHER_FILES)


def idle_servers(connections: int) -> list[Server]:
    """Returns the servers, which keep this number of connections open."""
    limit = str(connections + _OTHER_FILES // 2)
    keep_alive_s = str(KEEP_ALIVE_S)
    options = ("--max-connections", limit, "--keep-alive-timeout", keep_alive_s)
    return [
        shoal_serve(SHOAL, ECHO_APP, *options),
        shoal_serve(SHOAL_ASYNCIO, ECHO_APP, *options, "--event-loop", "asyncio"),
        uvicorn(UVICORN, ECHO_APP, "--timeout-keep-alive", keep_alive_s),
    ]


def measure_idle(servers: Sequence[Server], effort: IdleEffort) -> Table:
    """Measures each server beside another process of it without the connections."""
    rounds: dict[str, list[Figures]] = {}
    for server in servers:
        print(f"{effort.connections:,} idle connections: {server.name}", file=sys.stderr)
        with server.start() as busy, server.start() as alone:
            for process in (busy, alone):
                process.wait_answer(partial(is_answered, "/echo"))
                http_load.drive(process, _REQUEST, clients=64, seconds=0.2)
            rounds[server.name] = [_measure(busy, alone, effort)]
    columns = (
        *("bytes", "switches", "switches_alone"),
        *("p99_ms", "p99_alone_ms", "p99_ratio", "failures"),
    )
    targets = [
        Target("bytes", SHOAL, at_most=12 * 1024),
        Target("bytes", SHOAL_ASYNCIO, at_most=12 * 1024),
        Target("bytes", SHOAL, UVICORN),
        Target("more_switches", SHOAL, at_most=0),
        Target("more_switches", SHOAL_ASYNCIO, at_most=0),
        Target("p99_ratio", SHOAL),
        Target("p99_ratio", SHOAL_ASYNCIO),
    ]
    title = f"{effort.connections:,} idle, {effort.idle_s:g} s"
    return Table(title, columns, targets, "bytes", rounds)


def _measure(busy: ServerProcess, alone: ServerProcess, effort: IdleEffort) -> Figures:
    memory = busy.memory()
    with _open_connections(busy.port, effort.connections) as idle:
        time.sleep(0.5)  # until the server has done what it does after an answer
        per_connection = (busy.memory() - memory) / effort.connections
        before = [process.switches() for process in (busy, alone)]
        time.sleep(effort.idle_s)
        switches, switches_alone = (
            process.switches() - count for process, count in zip((busy, alone), before, strict=True)
        )
        p99s = [
            (_p99_ms(busy.port, effort.seconds), _p99_ms(alone.port, effort.seconds))
            for _ in range(effort.rounds)
        ]
        closed = _closed(idle)
    return {
        "bytes": per_connection,
        "switches": switches,
        "switches_alone": switches_alone,
        "more_switches": switches - switches_alone,
        "p99_ms": median(beside for beside, _ in p99s),
        "p99_alone_ms": median(without for _, without in p99s),
        "p99_ratio": median(beside / without for beside, without in p99s),
        "failures": closed,
    }


@contextmanager
def _open_connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Opens connections, each of which has had one request answered."""
    with ExitStack() as stack:
        yield [stack.enter_context(_connection(port)) for _ in range(count)]


def _connection(port: int) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", port), timeout=10)
    _ask(connected)
    return connected


def _ask(connected: socket.socket) -> None:
    connected.sendall(_REQUEST)
    received = b""
    while not received.endswith(ITEM):
        data = connected.recv(65536)
        if not data:
            raise ConnectionError(f"closed after {received!r}")
        received += data


def _p99_ms(port: int, seconds: float) -> float:
    """Returns the 99th percentile of one client that makes requests without a pause."""
    latencies_s = []
    with _connection(port) as connected:
        ends = time.perf_counter() + seconds
        while (asked := time.perf_counter()) < ends:
            _ask(connected)
            latencies_s.append(time.perf_counter() - asked)
    return http_load.percentile_ms(latencies_s, 99)


def _closed(connections: Sequence[socket.socket]) -> int:
    """Returns how many connections the server has closed."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN)
    return len(poll.poll(0))
