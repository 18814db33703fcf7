#!/usr/bin/env python3
"""Workers that speak HTTP for a server: requests a second, CPU times by process, and mean batches.

    python benchmarks/http_workers.py [--event-loop asyncio] [--workers 0,1,2,4] [--rounds 3]

Without wrk there are no requests a second to speak of, so it needs wrk. On few cores, which wrk and
the processes share, the requests a second say little about more cores; the CPU time of a request,
split by process, says which process would be the first to use up its core.

The clients of wrk wait for their answers. Where the processes have too few cores the answers come
late, and so do the next requests, which makes batches smaller. So the last table has requests that
arrive at random, at a rate that all can serve, whether or not others were answered.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import asyncio
import json

from benchmarks.http_load import POST, ask, drive_with_wrk, request_bytes, wrk_path
from benchmarks.http_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SECONDS: Final = 4
RATE: Final = 400
CONNECTIONS: Final = 64
TEXT: Final = Path(__file__).with_name("post_text.lua")


class Figures(NamedTuple):
    """The figures of one run.

    Attributes:
        per_s: The requests a second.
        own_us: The CPU time of the process with the batches, in microseconds a request.
        workers_us: The CPU time of all workers, in microseconds a request.
        mean_batch: The mean size of the batches; 0 where there is no model.
        p50_ms: The median latency, in milliseconds.
        p99_ms: The 99th percentile of the latency, in milliseconds.
    """

    per_s: float
    own_us: float
    workers_us: float
    mean_batch: float
    p50_ms: float
    p99_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--event-loop", default="trio")
    parser.add_argument("--workers", default="0,1,2,4", help="counts; 0 for no workers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    wrk = wrk_path()
    if wrk is None:
        parser.error("wrk is not installed")
    counts = [int(count) for count in given.workers.split(",")]
    for app, path in (("noop_app", "/noop"), ("embed_app", "/embed"), ("model_app", "/predict")):
        found: dict[int, list[Figures]] = {count: [] for count in counts}
        for _ in range(given.rounds):
            for count in counts:
                found[count].append(run(wrk, app, path, count, given.event_loop, given.clients))
        show(path, found)
    print(f"\n/predict, {RATE:,} requests/s at random times\n\nworkers  batch")
    for count in counts:
        means = [asyncio.run(mean_batch(count, given.event_loop)) for _ in range(given.rounds)]
        print(f"{count or 'none':>7}  {statistics.median(means):>5.2f}")


async def mean_batch(count: int, event_loop: str) -> float:
    """Returns the mean batch of requests that arrive at random times."""
    times = random.Random(1)
    with _server("model_app", "/predict", count, event_loop) as server:
        connections = asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
        for _ in range(CONNECTIONS):
            connections.put_nowait(await asyncio.open_connection("127.0.0.1", server.port))
        before = _batches(server.port, "model_app")
        async with asyncio.TaskGroup() as tasks:
            at = asyncio.get_running_loop().time()
            for _ in range(RATE * SECONDS):
                at += times.expovariate(RATE)
                await asyncio.sleep(at - asyncio.get_running_loop().time())
                tasks.create_task(_ask(connections))
        after = _batches(server.port, "model_app")
        while not connections.empty():
            connections.get_nowait()[1].close()
    return (after[1] - before[1]) / (after[0] - before[0])


async def _ask(
    connections: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
) -> None:
    reader, writer = connection = await connections.get()
    writer.write(request_bytes("/predict", b'{"value": 3}', "application/json"))
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
    connections.put_nowait(connection)


def run(wrk: str, app: str, path: str, count: int, event_loop: str, clients: int) -> Figures:
    """Runs one server under the load of wrk."""
    with _server(app, path, count, event_loop) as server:
        script = TEXT if app == "embed_app" else POST
        drive_with_wrk(wrk, server, path, clients=clients, seconds=1, script=script)
        used, batches = server.cpu_s_by_pid(), _batches(server.port, app)
        load = drive_with_wrk(wrk, server, path, clients=clients, seconds=SECONDS, script=script)
        spent = {pid: cpu_s - used.get(pid, 0) for pid, cpu_s in server.cpu_s_by_pid().items()}
        after = _batches(server.port, app)
    if load.failures:
        raise RuntimeError(f"{load.failures} wrong answers")
    own_s, *of_workers = spent.values()
    formed = after[0] - batches[0]
    return Figures(
        load.requests / load.seconds,
        own_s / load.requests * 1e6,
        sum(of_workers) / load.requests * 1e6,
        (after[1] - batches[1]) / formed if formed else 0.0,
        load.p50_ms,
        load.p99_ms,
    )


@contextmanager
def _server(app: str, path: str, count: int, event_loop: str) -> Iterator[ServerProcess]:
    options = ["--event-loop", event_loop, "--log-level", "error"]
    if count:
        options += ["--workers", str(count)]
    command = [sys.executable, "-m", "shoal", "serve", f"benchmarks.http_app:{app}"]
    command += ["--port", "{port}", *options]
    with ServerProcess(f"{count} workers", command) as server:
        item = b'"text"' if app == "embed_app" else b'{"value": 3}'
        server.wait_answer(lambda port: ask(port, "POST", path, item)[0] == 200)
        yield server


def _batches(port: int, app: str) -> tuple[int, int]:
    """Returns how many batches the model has run, and with how many items."""
    if app != "model_app":
        return 0, 0
    work = json.loads(ask(port, "GET", "/statistics")[1])
    return work["batches"], work["items"]


def show(path: str, found: Mapping[int, Sequence[Figures]]) -> None:
    """Prints the medians."""
    print(f"\n{path}\n")
    print(
        "workers  requests/s  CPU of the server's process, us  of the workers, us  batch  p50, ms"
    )
    for count, rounds in found.items():
        one = Figures(*map(statistics.median, zip(*rounds, strict=True)))
        print(
            f"{count or 'none':>7}  {one.per_s:>10,.0f}  {one.own_us:>31.1f}  "
            f"{one.workers_us:>18.1f}  {one.mean_batch:>5.1f}  {one.p50_ms:>7.1f}"
        )


if __name__ == "__main__":
    main()
