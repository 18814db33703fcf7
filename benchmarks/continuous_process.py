"""Continuous batches of a model in a process or an actor, and in the server's process.

A step holds the interpreter for 6 ms, as a model that computes in Python does: it sleeps without
giving the event loop a turn. Twice as many readers as places read texts in loops, as
`continuous_gpu.TWICE` does. All backends are in one server, and are measured in turns. With Ray
installed, the model is measured in a Ray actor on this machine as well. "Busy" is
the same while the server answers 2,000 other requests a second over HTTP. The time to the first
token is that of four readers, once with random pauses and once without: these ask when a step ends.
It begins when a pause is over, although a model in the server's process may hold the loop then.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import anyio

import shoal
from benchmarks.gpu_model import log_uniform
from benchmarks.http_load import percentile_ms
from benchmarks.report import verdict
from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STEP_S: Final = 0.006
PLACES: Final = 16
RATE: Final = 2000
LENGTHS: Final = log_uniform(16, 256)
SEED: Final = 20
HERE, BESIDE, ON_RAY = "task", "process", "ray"
PLACEMENTS: Final = (HERE, BESIDE, *([ON_RAY] if find_spec("ray") else []))
# Tokens/s, as parts of those of the model in the server's process, by load.
TARGETS: Final = {"idle": 0.97, "busy": 1.2}
COLUMNS: Final = {
    "tokens_a_second": ("tokens/s", ",.0f"),
    "of_task": ("of task", ".2f"),
    "first_p50_ms": ("first p50 ms", ".1f"),
    "again_p50_ms": ("without pauses", ".1f"),
    "others_a_second": ("others/s", ",.0f"),
    "failed_ms": ("killed, failed ms", ".0f"),
    "verdict": ("target", ""),
}


async def write(batch: shoal.OpenBatch[int, int]) -> None:
    """Writes texts: an item is the number of tokens; 0 asks for the process, as -pid."""
    left: dict[Any, int] = {}
    async for joined in batch.steps():
        left |= {request: request.item or -os.getpid() for request in joined}
        left = {request: count for request, count in left.items() if not request.ended}
        time.sleep(STEP_S)  # noqa: ASYNC251 - it holds the event loop, as computing would
        await batch.send(left)
        for request, count in left.items():
            if count <= 1:
                request.finish()
        left = {request: count - 1 for request, count in left.items() if count > 1}


async def echo(items: list[int]) -> list[int]:
    """Answers the other requests."""
    return items


def _app() -> shoal.App:
    app = shoal.App()
    for placement in PLACEMENTS:
        own: Any = {"ray_options": {"num_cpus": 0}} if placement == ON_RAY else {}
        declared: Any = app.endpoint(
            f"/{placement}",
            name=placement,
            fill="continuous",
            streams=True,
            placement=placement,
            max_batch_size=PLACES,
            **own,
        )
        declared(write)
    app.endpoint("/echo", name="echo", max_batch_size=64)(echo)
    return app


class _Seen:
    def __init__(self) -> None:
        self.tokens = 0
        self.first_s: list[float] = []


async def _read(handle: Any, lengths: Iterator[int], seen: _Seen, pause_s: float) -> None:
    for length in lengths:
        asked_at = anyio.current_time()
        if pause_s:
            # Also if the model holds the event loop then: a client would wait for that, too.
            asked_at += random.uniform(0, pause_s)
            await anyio.sleep_until(asked_at)
        async with handle.stream(length) as stream:
            is_first = True
            async for _ in stream:
                if is_first:
                    seen.first_s.append(anyio.current_time() - asked_at)
                    is_first = False
                seen.tokens += 1


def _lengths(reader: int) -> Iterator[int]:
    chance = random.Random(SEED + reader)
    while True:
        yield from LENGTHS.draw(chance, 16)


async def _measured(handle: Any, readers: int, seconds: float, pause_s: float = 0) -> _Seen:
    seen = _Seen()
    async with anyio.create_task_group() as tasks:
        for reader in range(readers):
            tasks.start_soon(_read, handle, _lengths(reader), seen, pause_s)
        await anyio.sleep(seconds / 5)
        seen.tokens, began = 0, time.perf_counter()
        await anyio.sleep(seconds)
        seen.tokens = round(seen.tokens / (time.perf_counter() - began))
        tasks.cancel_scope.cancel()
    return seen


async def _measure(rounds: int, seconds: float) -> list[dict[str, Any]]:
    app = _app()
    config = HttpOptions(port=0)
    stop = anyio.Event()
    rows: list[dict[str, Any]] = []
    async with anyio.create_task_group() as tasks:

        async def run(*, task_status: anyio.abc.TaskStatus[str]) -> None:
            await serve(app, config, shutdown=stop.wait, on_listening=task_status.started)

        url = await tasks.start(run)
        assert app.controller is not None
        handles = {name: await app.controller.get_handle(name) for name in PLACEMENTS}
        for load in ("idle", "busy"):
            seen: dict[str, list[_Seen]] = {name: [] for name in PLACEMENTS}
            alone: dict[str, list[_Seen]] = {name: [] for name in PLACEMENTS}
            again: dict[str, list[_Seen]] = {name: [] for name in PLACEMENTS}
            answered: dict[str, list[float]] = {name: [] for name in PLACEMENTS}
            for _ in range(rounds):
                for name in PLACEMENTS:
                    client = _other_requests(url, seconds) if load == "busy" else None
                    seen[name].append(await _measured(handles[name], 2 * PLACES, seconds))
                    if client is None:
                        few = partial(_measured, handles[name], 4, seconds / 2)
                        alone[name].append(await few(4 * STEP_S))
                        again[name].append(await few())
                    else:
                        out = await anyio.to_thread.run_sync(client.communicate)
                        answered[name].append(float(out[0]))
            for name in PLACEMENTS:
                row: dict[str, Any] = {
                    "part": "process",
                    "load": load,
                    "placement": name,
                    "tokens_a_second": median(one.tokens for one in seen[name]),
                    "of_task": median(
                        one.tokens / it.tokens
                        for one, it in zip(seen[name], seen[HERE], strict=True)
                    ),
                }
                if load == "idle":
                    row["first_p50_ms"] = median(percentile_ms(s.first_s, 50) for s in alone[name])
                    row["again_p50_ms"] = median(percentile_ms(s.first_s, 50) for s in again[name])
                else:
                    row["others_a_second"] = median(answered[name])
                if name == BESIDE:
                    row["verdict"] = verdict(row["of_task"], at_least=TARGETS[load])
                rows.append(row)
        for row in rows:
            if row["load"] == "idle" and row["placement"] != HERE:
                row["failed_ms"] = await _killed(app, row["placement"])
        stop.set()
    return rows


async def _killed(app: shoal.App, placement: str) -> float:
    """Kills the process while all places are in use; returns when the last request has failed."""
    controller: Any = app.controller
    handle = await controller.get_handle(placement)
    failed_at: list[float] = []
    async with handle.stream(0) as stream:
        pid = -(await anext(stream))

    async def read() -> None:
        try:
            async with handle.stream(10**6) as stream:
                async for _ in stream:
                    pass
        except shoal.errors.ReplicaDied:
            failed_at.append(time.perf_counter())

    async with anyio.create_task_group() as tasks:
        for _ in range(PLACES):
            tasks.start_soon(read)
        await anyio.sleep(1)
        killed_at = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
    return (max(failed_at) - killed_at) * 1e3


def sentence(rows: Sequence[dict[str, Any]]) -> str:
    """Returns what the rows show."""
    said = []
    for placement, name in ((BESIDE, "a process"), (ON_RAY, "a Ray actor")):
        of_task = {row["load"]: row["of_task"] for row in rows if row["placement"] == placement}
        if of_task:
            said.append(
                f"in {name}, a model writes {of_task['idle']:.0%} of the tokens of one in an idle "
                f"server, and {of_task['busy']:.2f} times those of one in a busy server"
            )
    return "; ".join(said)


def _other_requests(url: str, seconds: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.continuous_others", url, str(RATE), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def rows_of(rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Returns a row for each load and placement: medians of the rounds."""
    return anyio.run(partial(_measure, rounds, seconds), backend="trio")
