#!/usr/bin/env python3
"""What the metrics of a request cost: with them, and with a server that does not count it.

Requests are fed to the server's connections without a socket, 64 at once, as in http_path.py, in
turns with a dispatcher from which the counting is left out. What they cost is the median of the
differences of rounds. Beside it stands the CPU time of a whole request to `shoal serve` by 64
clients of wrk: one for which the handler does nothing, and one in batches of 64 of a small model.

    python benchmarks/metrics.py [--event-loop asyncio] [--rounds 300]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import anyio

from benchmarks import http_load, http_servers
from benchmarks.http_openai import KINDS, serving
from benchmarks.http_path import CONNECTIONS
from benchmarks.report import print_table, verdict
from shoal.http.requests.dispatch import RouteDispatcher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.routing import Route

AT_MOST: Final = 0.01
BURST: Final = 12
REQUEST: Final = KINDS["one result"]["Shoal's JSON"]
SERVED: Final = {
    "nothing": ("noop_app", "/noop"),
    "the work of a small model": ("model_app", "/predict"),
}


def uncounted(
    self: RouteDispatcher,
    exchange: Exchange,
    route: Route,
    step: Callable[[Exchange], Awaitable[None] | None],
) -> Awaitable[None] | None:
    """`RouteDispatcher.go_on` for requests that are answered, without their counting."""
    rest = step(exchange)
    if rest is not None:
        return self.take_step(exchange, route, lambda _: rest)
    return None


async def cost_s(rounds: int) -> float:
    """Returns the CPU time of the metrics of a request, in seconds."""
    ways: dict[bool, Any] = {True: RouteDispatcher.go_on, False: uncounted}
    async with serving() as server:
        differences: list[float] = []
        for nth in range(rounds):
            took: dict[bool, float] = {}
            for counts in (True, False) if nth % 2 else (False, True):
                RouteDispatcher.go_on = ways[counts]  # type: ignore[method-assign]
                for _ in range(BURST // 2):  # CPython adapts its code to what ran last
                    await server.ask(REQUEST)
                burst = sorted([await server.cpu_s(REQUEST) for _ in range(BURST)])
                took[counts] = sum(burst[: BURST // 2]) / (BURST // 2)
            differences.append(took[True] - took[False])
        RouteDispatcher.go_on = ways[True]  # type: ignore[method-assign]
    return median(differences) / CONNECTIONS


def served_s(wrk: str, name: str, path: str, event_loop: str) -> float:
    """Returns the CPU time of a request to `shoal serve`, in seconds."""
    options = ("--event-loop", event_loop)
    server = http_servers.shoal_serve("shoal serve", f"benchmarks.http_app:{name}", *options)
    with server.start() as process:
        process.wait_answer(
            lambda port: http_load.ask(port, "POST", path, b'{"value": 3}')[0] == 200
        )
        http_load.drive_with_wrk(wrk, process, path, clients=CONNECTIONS, seconds=1)
        load = http_load.drive_with_wrk(wrk, process, path, clients=CONNECTIONS, seconds=4)
    return load.cpu_s / load.requests


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description="What the metrics of a request cost.")
    parser.add_argument("--event-loop", choices=("trio", "asyncio"), default="trio")
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    wrk = http_load.wrk_path()
    if wrk is None:
        raise SystemExit("This benchmark needs wrk: apt-get install wrk")
    of_metrics_s = anyio.run(cost_s, given.rounds, backend=given.event_loop)
    rows = []
    for what, (name, path) in SERVED.items():
        whole_s = served_s(wrk, name, path, given.event_loop)
        part = of_metrics_s / whole_s
        microseconds = f"{of_metrics_s * 1e6:.2f}", f"{whole_s * 1e6:.1f}"
        rows.append([what, *microseconds, f"{part:.2%}", verdict(part, at_most=AT_MOST)])
    print_table(["the handler does", "metrics, us of CPU", "request", "part", "target"], rows)


if __name__ == "__main__":
    main()
