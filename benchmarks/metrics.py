#!/usr/bin/env python3
"""What the metrics cost a server at full load: their part of its CPU time, by a sampling profiler.

`py-spy` looks at `shoal serve` 1,000 times a second, from outside, while 64 clients of wrk keep it
busy. What counts as the metrics is the code that counts requests and their times, and, in the
column beside it, the code that counts batches and how long requests waited. Time in which the
server waits for something does not count. Once the handler does nothing, which is the hardest case,
and once it does the work of a small model, in a thread.

    python benchmarks/metrics.py [--seconds 30]

It needs wrk, and py-spy, which `make bench-peers` installs; on a machine where one may not look at
other processes, start it as root.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import http_load, http_servers
from benchmarks.report import print_table, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

AT_MOST: Final = 0.01
CLIENTS: Final = 64
SAMPLES_PER_S: Final = 1000
SERVED: Final = {
    "nothing": ("noop_app", "/noop"),
    "the work of a small model": ("model_app", "/predict"),
}
LOOPS: Final = ("trio", "asyncio")

# Frames below are as py-spy writes them: "function (file:line)".
WAITING: Final = ("Signals._watch", "get_events (trio", "EpollSelector.select", "Runner.run")
"""Where a thread waits; in `Runner.run` of uvloop, waiting can't be distinguished from work."""
JOBS: Final = "JobThread"
"""A thread that runs handlers."""
OF_REQUESTS: Final = "RequestTimes."
OF_BATCHES: Final = ("Counters.note_waits", "Histogram.")


class Parts(NamedTuple):
    """The parts of the busy time of a server, and the number of samples."""

    requests: float
    batches: float
    samples: int


def parts_of(stacks: Iterable[str]) -> Parts:
    """Returns what the samples of a profile say.

    Args:
        stacks: The lines of py-spy's raw format: a stack, outermost frame first, and its count.
    """
    busy = requests = batches = 0
    for line in stacks:
        stack, _, number = line.rpartition(" ")
        count, leaf = int(number), stack.rpartition(";")[2]
        if JOBS in stack or any(one in leaf for one in WAITING):
            continue
        busy += count
        if OF_REQUESTS in stack:
            requests += count
        elif any(one in stack for one in OF_BATCHES):
            batches += count
    if not requests or not batches:
        raise SystemExit("None of the metrics' code was seen: has it, or py-spy, other names now?")
    return Parts(requests / busy, batches / busy, busy)


def profiled(py_spy: str, wrk: str, app: str, path: str, loop: str, seconds: int) -> Parts:
    """Returns the parts of a server under load."""
    options = ("--event-loop", loop)
    server = http_servers.shoal_serve("shoal serve", f"benchmarks.http_app:{app}", *options)
    with server.start() as process, tempfile.NamedTemporaryFile("r") as profile:
        process.wait_answer(
            lambda port: http_load.ask(port, "POST", path, b'{"value": 3}')[0] == 200
        )
        http_load.drive_with_wrk(wrk, process, path, clients=CLIENTS, seconds=1)
        looks = f"--rate {SAMPLES_PER_S} --duration {seconds} --format raw --output {profile.name}"
        with subprocess.Popen(
            [py_spy, "record", "--pid", str(process.pid), *looks.split()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as spy:
            http_load.drive_with_wrk(wrk, process, path, clients=CLIENTS, seconds=seconds + 1)
            _, said = spy.communicate()
        if spy.returncode:
            raise SystemExit(f"py-spy can't look at the server:\n{said}")
        return parts_of(profile)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description="What the metrics cost a server at full load.")
    parser.add_argument("--seconds", type=int, default=30, help="for each of four servers")
    given = parser.parse_args()
    wrk = http_load.wrk_path()
    if wrk is None:
        raise SystemExit("This benchmark needs wrk: apt-get install wrk")
    py_spy = shutil.which("py-spy", path=http_servers.PEERS) or shutil.which("py-spy")
    if py_spy is None:
        raise SystemExit("This benchmark needs py-spy: make bench-peers")
    rows: list[list[str]] = []
    for what, (app, path) in SERVED.items():
        for loop in LOOPS:
            parts = profiled(py_spy, wrk, app, path, loop, given.seconds)
            whole = parts.requests + parts.batches
            figures = f"{parts.requests:.2%}", f"{parts.batches:.2%}", f"{whole:.2%}"
            rows.append(
                [what, loop, f"{parts.samples:,}", *figures, verdict(whole, at_most=AT_MOST)]
            )
    heads = ["the handler does", "loop", "samples", "of requests", "of batches", "both", "target"]
    print_table(heads, rows)


if __name__ == "__main__":
    main()
