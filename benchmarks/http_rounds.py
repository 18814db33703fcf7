"""Loads, and servers that take turns under them, for http.py."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks import http_load
from benchmarks.http_batches import counted
from benchmarks.http_tables import Figures, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.http_batches import Model
    from benchmarks.http_process import ServerProcess
    from benchmarks.http_servers import Server
    from benchmarks.http_tables import Target

UNARY_CLIENTS: Final = 64
STREAM_CLIENTS: Final = 32
ITEM: Final = b'{"value": 3}'
OWN_CLIENT: Final = "the benchmark's client"


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        wrk: The path of wrk, or None.
        rounds: How many rounds of loads with one result each to measure.
        seconds: How long such a round of one server takes. Many short ones are less disturbed by
            a machine whose speed changes, since each ratio is of figures from one round.
        slow_rounds: How many rounds of the other loads to measure.
        slow_seconds: How long such a round of one server takes.
        warm_up_s: How long a server is loaded before the first round, in seconds.
    """

    wrk: str | None
    rounds: int
    seconds: int
    slow_rounds: int
    slow_seconds: int
    warm_up_s: float


@dataclass(frozen=True)
class Load:
    """A load that servers are measured under.

    Attributes:
        title, columns, targets, chart: See `Table`.
        clients: Who makes the requests.
        path: The path of the requests.
        warm_up: Loads a server for a short time; None if each round begins with that.
        measure: Loads a server for one round.
    """

    title: str
    columns: Sequence[str]
    targets: Sequence[Target]
    chart: str
    clients: str
    path: str
    warm_up: Callable[[ServerProcess], object] | None
    measure: Callable[[ServerProcess], Figures]


def take_turns(servers: Sequence[Server], loads: Sequence[Load], rounds: int) -> list[Table]:
    """Starts all servers, and measures them in turn, round by round.

    Returns:
        A table for each load.
    """
    measured: list[dict[str, list[Figures]]] = [
        {server.name: [] for server in servers} for _ in loads
    ]
    with ExitStack() as stack:
        running = [stack.enter_context(server.start()) for server in servers]
        for process in running:  # so that they end at the same time
            stack.callback(process.terminate)
        for process in running:
            for load in loads:
                process.wait_answer(partial(is_answered, load.path))
                if load.warm_up is not None:
                    load.warm_up(process)
        for nth in range(rounds):
            # Another one begins each round, so that none always follows the same one.
            first = nth % len(running)
            for process in running[first:] + running[:first]:
                for load, found in zip(loads, measured, strict=True):
                    found[process.name].append(load.measure(process))
                print(f"round {nth + 1} of {rounds}: {process.name}", file=sys.stderr)
    return [
        Table(load.title, load.columns, load.targets, load.chart, found)
        for load, found in zip(loads, measured, strict=True)
    ]


def is_answered(path: str, port: int) -> bool:
    """Makes one request; returns whether it is answered with a value, or with events."""
    status, body = http_load.ask(port, "POST", path, ITEM)
    return status == 200 and (body.startswith(b"data: ") or "value" in json.loads(body))


def results(
    effort: Effort,
    title: str,
    path: str,
    targets: Sequence[Target],
    clients: int = UNARY_CLIENTS,
) -> Load:
    """Returns a load of requests with one result each."""
    request = http_load.request_bytes(path, ITEM, "application/json")

    def measure(server: ServerProcess) -> Figures:
        seen = (
            http_load.drive(server, request, clients=clients, seconds=effort.seconds)
            if effort.wrk is None
            else http_load.drive_with_wrk(
                effort.wrk, server, path, clients=clients, seconds=effort.seconds
            )
        )
        if not seen.requests:
            raise SystemExit(
                f"{server.name} answered nothing in {seen.seconds:.1f} s; run it again"
            )
        return {
            "rate": seen.requests / seen.seconds,
            "cpu_us": seen.cpu_s / seen.requests * 1e6,
            "p50_ms": seen.p50_ms,
            "p99_ms": seen.p99_ms,
            "failures": seen.failures,
        }

    def warm_up(server: ServerProcess) -> None:
        http_load.drive(server, request, clients=clients, seconds=effort.warm_up_s)

    columns = ("rate", "cpu_us", "p50_ms", "p99_ms", "failures")
    by = OWN_CLIENT if effort.wrk is None else f"wrk -t1 -c{clients}"
    return Load(
        title, columns, targets, "rate", f"{clients} clients by {by}", path, warm_up, measure
    )


def streams_of(
    effort: Effort, title: str, path: str, tokens: int, targets: Sequence[Target]
) -> Load:
    """Returns a load of requests that are answered with streams of tokens."""
    request = http_load.request_bytes(path, ITEM, "text/event-stream")

    def measure(server: ServerProcess) -> Figures:
        seen = http_load.drive(
            server,
            request,
            clients=STREAM_CLIENTS,
            tokens=tokens,
            warm_up_s=effort.warm_up_s,
            seconds=effort.slow_seconds,
        )
        return {
            "token_rate": seen.tokens / seen.seconds,
            "cpu_us": seen.cpu_s / seen.tokens * 1e6,
            "first_p50_ms": http_load.percentile_ms(seen.first_token_s, 50),
            "first_p99_ms": http_load.percentile_ms(seen.first_token_s, 99),
            "whole_p50_ms": seen.p50_ms,
            "failures": seen.failures,
        }

    columns = ("token_rate", "cpu_us", "first_p50_ms", "first_p99_ms", "whole_p50_ms", "failures")
    clients = f"{STREAM_CLIENTS} clients by {OWN_CLIENT}"
    return Load(title, columns, targets, "cpu_us", clients, path, None, measure)


def with_mean_batch(load: Load, model: Model) -> Load:
    """Returns a load that also reports the size of the batches, from the model's statistics."""

    def measure(server: ServerProcess) -> Figures:
        before = counted(server, model)
        figures = load.measure(server)
        after = counted(server, model)
        ran = after.batches - before.batches
        return figures | {"mean_batch": (after.items - before.items) / ran}

    return replace(load, columns=(*load.columns, "mean_batch"), measure=measure)
