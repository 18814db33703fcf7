#!/usr/bin/env python3
"""One million requests a second: what a request costs each process, and how many GPUs they need.

    python benchmarks/scale.py [--only batches|http|simulated] [--rate 1000000] [--rounds 3]

The first part measures how many batches of small items one event loop moves to a model server,
without HTTP. The second measures the processor time of a request over HTTP: in one server, and in
an ingress and a model server; it needs wrk. The last part simulates the model servers with the
rules that form batches: pooled, where all ingresses share the queues of the model servers, and
unpooled, where each server of HTTP has replicas of its own.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import anyio

from benchmarks.http_load import POST, ask, drive_with_wrk, wrk_path
from benchmarks.http_process import ServerProcess
from benchmarks.model_servers import SMALL, model_server, played
from benchmarks.report import print_table
from shoal import BatchOptions
from shoal.batching.current import Identity, running_batch, setting
from shoal.core.request import Batch, DispatchReason
from shoal.planning import Linear, poisson, simulate
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, ReplicaOptions
from shoal.replicas.remote.replica import RemoteReplica
from shoal.testing.policies import make_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.replicas.contract import Replica

SECONDS: Final = 4
AT_ONCE: Final = 16
CLIENTS: Final = (64, 256)
TARGET_S: Final = 0.025
SIZE: Final = 256
MODEL: Final = Linear(0.002, 0.00005)
BUSY: Final = 0.7
"""The planned load of the core of an event loop."""

INGRESS: Final = """
[backends.noop]
code = "nowhere:noop"
placement = "remote"
model_servers = ["unix:{folder}/models.sock"]

[endpoints.noop]
backend = "noop"
route = "/noop"
"""
MODELS: Final = """
import shoal

app = shoal.App()


@app.endpoint("/noop", max_batch_size=64)
async def noop(items: list[dict[str, int]]) -> list[dict[str, int]]:
    return items
"""


class Cost(NamedTuple):
    """Of one run: requests a second, and microseconds of processor time of each process."""

    per_s: float
    ingress_us: float
    models_us: float
    per_message: float


def served(directory: str, *words: str) -> ServerProcess:
    command = [sys.executable, "-m", "shoal", "serve", f"{directory}/{words[0]}", "--port"]
    return ServerProcess(words[0], [*command, "{port}", "--log-level", "error", *words[1:]])


def count(port: int, name: str) -> float:
    page = ask(port, "GET", "/-/metrics")[1].decode()
    return sum(float(value) for value in re.findall(rf"^{name}\S* (\S+)", page, re.MULTILINE))


def cost(wrk: str, loop: str, clients: int, *, split: bool) -> Cost:
    """Measures one server with all, or an ingress in front of a model server."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        Path(folder, "models.py").write_text(MODELS)
        Path(folder, "ingress.toml").write_text(INGRESS.format(folder=folder))
        options = ("--event-loop", loop)
        wire = ("--model-server", f"unix:{folder}/models.sock") if split else ()
        servers = [stack.enter_context(served(folder, "models.py", *options, *wire))]
        if split:
            servers.insert(0, stack.enter_context(served(folder, "ingress.toml", *options)))
        front = servers[0]
        for one in servers:
            one.wait_answer(lambda port: ask(port, "GET", "/-/readyz")[0] == 200 or not_yet())
        drive_with_wrk(wrk, front, "/noop", clients=clients, seconds=1, script=POST)
        used = [one.cpu_s() for one in servers]
        messages = count(front.port, "shoal_batches_total")
        load = drive_with_wrk(wrk, front, "/noop", clients=clients, seconds=SECONDS, script=POST)
        messages = count(front.port, "shoal_batches_total") - messages
        spent = [one.cpu_s() - before for one, before in zip(servers, used, strict=True)]
    if load.failures:
        raise RuntimeError(f"{load.failures} wrong answers")
    each = [cpu_s / load.requests * 1e6 for cpu_s in spent]
    return Cost(load.requests / load.seconds, each[0], sum(each[1:]), load.requests / messages)


def not_yet() -> bool:
    raise OSError("not ready")


def measure(rounds: int) -> None:
    wrk = wrk_path()
    if wrk is None:
        raise SystemExit("wrk is not installed")
    rows: list[list[str]] = []
    for loop in ("trio", "asyncio"):
        for clients in CLIENTS:
            for split in (False, True):
                runs = [cost(wrk, loop, clients, split=split) for _ in range(rounds)]
                one = Cost(*map(statistics.median, zip(*runs, strict=True)))
                what = "ingress and model server" if split else "one server"
                shown = (f"{one.models_us:.1f}", f"{one.per_message:.1f}") if split else ("", "")
                row = [loop, f"{clients}", what, f"{one.per_s:,.0f}", f"{one.ingress_us:.1f}"]
                rows.append([*row, *shown])
    heads = ["event loop", "clients", "", "requests/s", "HTTP side, us", "model server, us"]
    print_table([*heads, "items a message"], rows)


async def batches(address: str, items: int) -> tuple[float, float]:
    """Returns the batches a second that one event loop moves, and its milliseconds for each."""
    identity = Identity("nothing", "nothing#0")
    definition = Definition("benchmarks.model_servers:nothing")
    replica = RemoteReplica(
        Blueprint(
            identity=identity, definition=definition, options=ReplicaOptions(), address=address
        )
    )
    counts = [0] * AT_ONCE
    spent_s = 0.0
    async with anyio.create_task_group() as tasks:
        await played(replica, tasks)
        until = time.monotonic() + SECONDS
        spent_s -= time.process_time()
        async with anyio.create_task_group() as moving:
            for number in range(AT_ONCE):
                moving.start_soon(move, replica, items, until, counts, number)
        spent_s += time.process_time()
        replica.stop()
    return sum(counts) / SECONDS, spent_s / sum(counts) * 1000


async def move(replica: Replica, items: int, until: float, counts: list[int], number: int) -> None:
    batch = Batch(7, DispatchReason.FULL, [])
    metadata = {"context": "python", "endpoint": "nothing"}
    batch.admit([make_request(item, metadata=metadata) for item in SMALL[:items]])
    with setting(running_batch, batch):
        while time.monotonic() < until:
            await replica.run("__call__", SMALL[:items])
            counts[number] += 1


def most() -> float:
    """Returns the throughput of a GPU with full batches, in items a second."""
    return SIZE / MODEL(SIZE)


def p99_s(rate: float, *, wait_s: float = 0.0, replicas: int = 1) -> tuple[float, float]:
    """Returns the 99th percentile of the latency of a queue, and the busy share of its GPUs."""
    options = BatchOptions(
        max_batch_size=SIZE, batch_wait_timeout_s=wait_s, max_concurrent_batches=replicas
    )
    found = simulate(poisson(rate, 30_000 / rate), options, MODEL)
    return found.percentile_s(99), found.busy_share


def pooled(rate: float) -> tuple[int, float]:
    """Returns the fewest GPUs that meet the target with a queue each, and their latency."""
    gpus = ceil(rate / most())
    while (latency_s := p99_s(rate / gpus)[0]) > TARGET_S:
        gpus += 1
    return gpus, latency_s


def unpooled(rate: float, ingresses: int) -> tuple[int, float]:
    """Returns the GPUs that servers of HTTP with a queue and whole GPUs of their own need."""
    each = rate / ingresses
    gpus = ceil(each / most())
    while (latency_s := p99_s(each, replicas=gpus)[0]) > TARGET_S:
        gpus += 1
    return gpus * ingresses, latency_s


def plan(rate: float, costs_us: Iterable[float]) -> None:
    rows: list[list[str]] = []
    gpus, latency_s = pooled(rate)
    for cost_us in costs_us:
        ingresses = ceil(rate * cost_us / 1e6 / BUSY)
        own, own_s = unpooled(rate, ingresses)
        row = [f"{cost_us:g} us", f"{ingresses:,}", f"{gpus:,}", f"{latency_s * 1e3:.1f} ms"]
        rows.append([*row, f"{own:,}", f"{own_s * 1e3:.1f} ms"])
    heads = ["HTTP, a request", "ingress cores", "GPUs, pooled", "p99", "GPUs, one queue each"]
    print_table([*heads, "p99"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=["batches", "http", "simulated"])
    parser.add_argument("--rate", type=float, default=1e6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cost-us", type=float, nargs="+", default=[20.0, 40.0, 70.0, 146.0])
    given = parser.parse_args()
    if given.only in {None, "batches"}:
        rows: list[list[str]] = []
        for address in model_server():
            for loop in ("trio", "asyncio"):
                for items in (1, 8, 64):
                    runs = [
                        anyio.run(batches, address, items, backend=loop)
                        for _ in range(given.rounds)
                    ]
                    per_s, cost_ms = map(statistics.median, zip(*runs, strict=True))
                    row = [loop, f"{items}", f"{per_s:,.0f}", f"{cost_ms:.3f} ms"]
                    rows.append([*row, f"{cost_ms / items * 1000:.1f} us"])
        heads = ["event loop", "items", "batches/s", "processor time of a batch", "of an item"]
        print_table(heads, rows)
    if given.only in {None, "http"}:
        measure(given.rounds)
    if given.only in {None, "simulated"}:
        plan(given.rate, given.cost_us)


if __name__ == "__main__":
    main()
