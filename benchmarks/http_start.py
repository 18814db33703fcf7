"""The part of http.py about the time from the start of a server to its first answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from benchmarks import http_load
from benchmarks.http_parts import ECHO_APP, FASTAPI, SHOAL
from benchmarks.http_servers import shoal_serve, uvicorn
from benchmarks.http_tables import Figures, Table, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.http_servers import Server

UVICORN_ALONE: Final = "uvicorn (plain ASGI)"
# Short beside the figure, and long enough for a server that starts on the same core.
_PAUSE_S: Final = 0.002


def start_servers() -> list[Server]:
    """Returns the servers, with applications that are empty."""
    return [
        shoal_serve(SHOAL, "benchmarks.http_empty:app"),
        uvicorn(UVICORN_ALONE, ECHO_APP),
        uvicorn(FASTAPI, "benchmarks.http_peers.fastapi_app:empty_app"),
    ]


def measure_start(servers: Sequence[Server], rounds: int) -> Table:
    """Starts the servers in turn, each some times."""
    measured: dict[str, list[Figures]] = {server.name: [] for server in servers}
    for server in servers:
        _start(server)  # it may compile its modules
    for nth in range(rounds):
        for server in servers:
            measured[server.name].append(_start(server))
        print(f"start {nth + 1} of {rounds}", file=sys.stderr)
    targets = [
        Target("start_ms", SHOAL, at_most=400),
        Target("start_ms", SHOAL, UVICORN_ALONE),
        Target("start_ms", SHOAL, FASTAPI),
    ]
    return Table("start", ("start_ms", "start_cpu_ms"), targets, "start_ms", measured)


def _start(server: Server) -> Figures:
    with server.start() as process:
        start_s = process.wait_answer(_is_answered, _PAUSE_S)
        return {"start_ms": start_s * 1e3, "start_cpu_ms": process.cpu_s() * 1e3}


def _is_answered(port: int) -> bool:
    status, _ = http_load.ask(port, "GET", "/")
    return status in {200, 404}
