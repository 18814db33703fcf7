"""The long hostile runs, and what came of them, a line each: ``make fuzz``.

The mutated connections and the checksums are shared by the event loops; the other runs are made on
each. ``python tests/hostile/report.py --connections 4000`` makes all runs a hundredth as long. With
``--server hypercorn`` or ``--server uvicorn`` the same runs, from the same seeds, are made against
those: Hypercorn is its trio worker, and uvicorn speaks no HTTP/2, so it is spared that.
"""

import argparse
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from checksum_run import CLIENTS, run_checksums
from floods import FLOODS
from fuzz_clients import PROTOCOLS
from good_client import AskingMeanwhile
from held_places import (
    HOLDERS,
    MOST_MEMORY,
    STATES,
    WAYS,
    hold_places,
    leave,
    leave_queue,
    percentile,
    ways_of,
)
from hostile_server import LOOPS, MIB, SERVERS, HostileServer, serving
from mutated_run import run_mutated
from overload_run import WAIT_S, ask_while_blocked, run_overload
from termination_run import run_termination

# The name of a run, its figures and its flaws.
Found = Iterator[tuple[str, str, list[str]]]

ALL_CONNECTIONS: Final = 400_000
# How many there are of each when there are so many connections.
PLACES, CHECKSUMS, TERMINATIONS, LEAVINGS = 1_000, 1_000_000, 50, 50
FLOOD_SIZES: Final = {"connections": 5_000, "resets": 50_000, "chunks": 1_000_000}
OVERLOADED: Final = 12_000
HELD_CLIENTS: Final = 50

KEEP_ALIVE_S: Final = 5.0
# How long a client may hold a place.
BACK_WITHIN_S: Final = KEEP_ALIVE_S + 10.0
# The run goes on a little longer than that; with WebSockets, as long as uvicorn's pings take.
LOOK_FOR_S: Final = 5.0
WEBSOCKET_S: Final = 45.0
HOLD_S: Final = KEEP_ALIVE_S + 2.0
# By how much a good client may be slower; the rest is what the scheduler of a busy machine adds.
TIMES_NORMAL: Final = 3
NOISE_S: Final = 0.01
OTHERS_P99_S: Final = 0.25
LEFT_P99_S: Final = 0.05


class Runs:
    """All runs on one server; what came of them are lines of figures, with the flaws they show."""

    def __init__(
        self, kind: str, loop: str, *, share: float, loops: int, seed: int, folder: Path
    ) -> None:
        self._kind = kind
        self._loop = loop
        self._share = share
        self._loops = loops
        self._seed = seed
        self._folder = folder

    def mutated(self) -> Found:
        protocols = [one for one in PROTOCOLS if self._speaks(one)]
        count = self._count(ALL_CONNECTIONS // self._loops)
        with self._serving() as server:
            found = run_mutated(server, count, seed=self._seed, protocols=protocols)
        flaws = found.flaws()
        if self._kind == "shoal" and found.log_flaws:
            flaws.append(f"{len(found.log_flaws)} lines of the log: {found.log_flaws[0]}")
        figures = (
            f"{found.connections:,} connections, {_mib(found.sent)} sent;"
            f" memory {_mib(found.grown)}, log {_mib(found.log)},"
            f" {found.probes} good clients, slowest {found.slowest_s:.2f} s,"
            f" nothing left after {found.left_after_s:.1f} s"
        )
        yield "mutated connections", figures, flaws

    def places(self) -> Found:
        each = self._count(PLACES)
        for kind in filter(self._speaks, HOLDERS):
            # Two more than there are clients that hold one, for the good clients.
            with self._serving(f"--max-connections={each + 2}") as server:
                yield f"places: {kind}", *self._held(server, kind, each)

    def floods(self) -> Found:
        for kind, flood in FLOODS.items():
            if kind == "resets" and not self._speaks("http2"):
                continue
            with self._serving() as server:
                found = flood(server, self._count(FLOOD_SIZES[kind], least=1000))
            flaws = found.flaws()
            if found.p99_s() > OTHERS_P99_S:
                flaws.append(f"the others' p99 is over {OTHERS_P99_S} s")
            figures = (
                f"{found.sent:,} in {found.took_s:.1f} s; memory {_mib(found.grown)};"
                f" others p50 {percentile(found.good_s, 50):.3f} s, p99 {found.p99_s():.3f} s"
            )
            yield f"flood of {kind}", figures, flaws

    def overload(self) -> Found:
        count = self._count(OVERLOADED, least=600)
        for path in ("/slow", "/busy"):
            with self._serving() as server:
                before = run_overload(server, count // 6, path=path, times_capacity=0.5)
                found = run_overload(server, count, path=path)
                after = run_overload(server, count // 6, path=path, times_capacity=0.5)
            limit_s = 2 * before.p99_s() + WAIT_S
            flaws = found.flaws() + [f"afterwards: {flaw}" for flaw in after.flaws()]
            if found.p99_s() > limit_s:
                flaws.append(f"accepted ones' p99 is over {limit_s:.2f} s")
            if after.statuses.keys() != {200}:
                flaws.append(f"afterwards {dict(after.statuses)}")
            figures = (
                f"{sum(found.statuses.values()):,} requests, {dict(found.statuses)};"
                f" accepted p99 {found.p99_s():.3f} s (unloaded {before.p99_s():.3f} s),"
                f" refused p99 {percentile(found.refused_s, 99):.3f} s, memory {_mib(found.grown)}"
            )
            yield f"overload of {path}", figures, flaws
        with self._serving() as server:
            lost = ask_while_blocked(server, HELD_CLIENTS, HOLD_S)
        figures = f"{2 * HELD_CLIENTS} requests in {HOLD_S:.0f} s; {len(lost)} without an answer"
        yield "loop held", figures, lost[:3]

    def termination(self) -> Found:
        runs = self._count(TERMINATIONS, least=4)
        requests, flaws = 0, []
        for number in range(runs):
            with self._serving() as server:
                try:
                    found = run_termination(
                        server, seed=self._seed + number, with_http2=self._speaks("http2")
                    )
                except Exception as error:
                    flaws.append(f"run {number} did not end: {error!r}")
                    continue
            requests += len(found.outcomes)
            flaws += [f"{found.signum.name}: {flaw}" for flaw in found.flaws()]
        figures = f"{runs} signals, {requests:,} requests, {len(flaws)} lost"
        yield "signals under load", figures, flaws[:3]

    def leaving(self) -> Found:
        times: list[float] = []
        deaf: set[str] = set()
        with self._serving() as server:
            for number in range(self._count(LEAVINGS, least=2)):
                for state in filter(self._speaks, STATES):
                    for way in ways_of(state) if state not in deaf else ():
                        name = re.sub("[ ,/]+", "-", f"{state} {way} {number}")
                        try:
                            took_s = leave(server, state, way, name)
                        except (OSError, AssertionError):
                            took_s = None
                        if took_s is None:
                            deaf.add(state)
                        else:
                            times.append(took_s)
                for way in WAYS:
                    name = f"queue-{way.replace(' ', '-')}-{number}"
                    if leave_queue(server, way, name) is None:
                        deaf.add("queued")
        figures = (
            f"{len(times):,} clients; cancelled after p50 {percentile(times, 50) * 1e3:.1f} ms,"
            f" p99 {percentile(times, 99) * 1e3:.1f} ms"
        )
        flaws = [f"not noticed: {', '.join(sorted(deaf))}"] if deaf else []
        if percentile(times, 99) > LEFT_P99_S:
            flaws.append(f"p99 over {LEFT_P99_S} s")
        yield "clients that leave", figures, flaws

    def checksums(self) -> Found:
        kinds = tuple(filter(self._speaks, CLIENTS))
        count = self._count(CHECKSUMS // self._loops)
        with self._serving() as server:
            found = run_checksums(server, count, seed=self._seed, kinds=kinds)
        figures = (
            f"{found.answered:,} answers in {found.took_s:.0f} s, {len(found.wrong)} wrong;"
            f" memory {_mib(found.grown)} in the second half"
        )
        yield "checksums", figures, found.flaws()

    def _held(self, server: HostileServer, kind: str, each: int) -> tuple[str, list[str]]:
        server.ask("POST", "/sum", "warm")
        with AskingMeanwhile(server) as alone:
            time.sleep(2.0)
        normal_s = percentile(alone.asked.times_s, 99)
        within_s = WEBSOCKET_S if kind == "silent WebSocket" else BACK_WITHIN_S + LOOK_FOR_S
        found = hold_places(
            server, [kind], each, within_s=within_s, trickle_s=1.0, at_least_s=LOOK_FOR_S
        )
        checks = {
            f"{found.kept[kind]} places kept": found.kept[kind],
            f"back after {found.back_after_s:.1f} s": found.back_after_s > BACK_WITHIN_S,
            f"memory {_mib(found.grown)}": found.grown > MOST_MEMORY,
            "a client that came then was not served": found.first_s is None,
            f"a good client gave up: {found.failure}": found.failure,
            "a good client's p99 is over 3 times its normal one": (
                found.p99_s() > TIMES_NORMAL * normal_s + NOISE_S
            ),
        }
        figures = (
            f"{each} clients; places back after {found.back_after_s:.1f} s,"
            f" memory {_mib(found.grown)}, p99 {found.p99_s() * 1e3:.1f} ms"
            f" (normal {normal_s * 1e3:.1f} ms)"
        )
        return figures, [flaw for flaw, is_so in checks.items() if is_so]

    @contextmanager
    def _serving(self, *options: str) -> Iterator[HostileServer]:
        own = options if self._kind == "shoal" else ()
        with serving(self._folder, *own, kind=self._kind, loop=self._loop) as server:
            yield server

    def _speaks(self, what: str) -> bool:
        is_http2 = re.search("http2|HTTP/2|preface|window|HEADERS", what) is not None
        return self._kind != "uvicorn" or not is_http2

    def _count(self, whole: int, least: int = 10) -> int:
        return max(least, int(whole * self._share))


RUNS: Final = ("mutated", "places", "floods", "overload", "termination", "leaving", "checksums")


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=ALL_CONNECTIONS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server", choices=SERVERS, action="append")
    parser.add_argument("--event-loop", choices=LOOPS, action="append")
    parser.add_argument("--run", choices=RUNS, action="append")
    given = parser.parse_args()
    # As under `nohup`, a server would ignore it too.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    loops = given.event_loop or LOOPS
    is_flawed = False
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.server or ["shoal"]:
            own = {"shoal": loops, "hypercorn": ["trio"], "uvicorn": ["asyncio"]}[kind]
            for loop in own:
                share = given.connections / ALL_CONNECTIONS
                options = {"share": share, "loops": len(own), "seed": given.seed}
                runs = Runs(kind, loop, **options, folder=Path(folder))
                for name in given.run or RUNS:
                    try:
                        for run, figures, flaws in getattr(runs, name)():
                            said = "; ".join(flaws) or "as it must be"
                            print(f"{kind} ({loop}): {run}: {figures}; {said}", flush=True)
                            is_flawed |= kind == "shoal" and bool(flaws)
                    except (OSError, AssertionError, RuntimeError) as error:
                        print(f"{kind} ({loop}): {name}: broke off: {error!r}", flush=True)
                        is_flawed |= kind == "shoal"
    return int(is_flawed)


if __name__ == "__main__":
    sys.exit(main())
