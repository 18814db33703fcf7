#!/usr/bin/env python3
"""What a request in each protocol costs `shoal serve`, beside the same item in Shoal's own JSON.

The server is a process of its own, loaded by wrk with 64 connections, and the handlers return at
once. Each figure is the CPU time of the server, user and system, divided by the number of requests:
the median of the rounds, in which the protocols take turns. `http_openai.py` and
`http_protocols.py` measure the same without sockets, and count bytecodes; `websocket.py` measures
WebSockets.

    python benchmarks/http_served.py [--event-loop asyncio] [--rounds 15]
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import shoal
from benchmarks import http_load, http_openai, http_protocols, http_servers
from benchmarks.report import Panel, Report, parser, print_table, verdict

if TYPE_CHECKING:
    from benchmarks.http_process import ServerProcess

CLIENTS: Final = 64
AT_MOST: Final = 1.5

app: Final = shoal.App(protocols=["openai", "oip"])
for _handler in (http_openai.whole, http_openai.record, http_openai.vector, http_protocols.same):
    app.endpoint(f"/{_handler.__name__}", name=_handler.__name__, max_batch_size=CLIENTS)(_handler)

# Ways to send the same item; the first one of each kind is Shoal's own JSON.
KINDS: Final = {
    **{kind: ways for kind, ways in http_openai.KINDS.items() if "stream" not in kind},
    **{
        f"a tensor of {size} floats": http_protocols.requests(size) for size in http_protocols.SIZES
    },
}


class Seen(NamedTuple):
    """What a round has measured.

    Attributes:
        cpu_us: The server's CPU time for a request, in microseconds.
        rate: The requests a second.
    """

    cpu_us: float
    rate: float


def script_of(request: bytes) -> tuple[str, str]:
    """Returns the path of a request, and the script that makes wrk send it."""
    head, _, body = request.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    escaped = "".join([f"\\{byte:03d}" for byte in body])
    lines = ['wrk.method = "POST"', f'wrk.body = "{escaped}"']
    for field in fields:
        name, value = field.split(": ")
        if name not in ("Host", "Content-Length"):
            lines.append(f'wrk.headers["{name}"] = "{value}"')
    return line.split()[1], "\n".join(lines) + "\n"


def measured(server: ServerProcess, wrk: str, request: bytes, folder: Path) -> Seen:
    """Loads a server for a second with one request; returns what that cost."""
    path, script = script_of(request)
    file = folder / "request.lua"
    file.write_text(script)
    seen = http_load.drive_with_wrk(wrk, server, path, clients=CLIENTS, seconds=1, script=file)
    if seen.failures or not seen.requests:
        raise SystemExit(f"{path}: {seen.failures} of {seen.requests} requests failed")
    return Seen(seen.cpu_s / seen.requests * 1e6, seen.requests / seen.seconds)


def is_answered(port: int) -> bool:
    """Makes one request; returns whether it is answered."""
    return http_load.ask(port, "POST", "/whole", b'"text"')[0] == 200


def main() -> None:
    """Runs the benchmark."""
    made = parser("What a request in each protocol costs `shoal serve`.", "http_served")
    made.add_argument("--event-loop", choices=("trio", "asyncio"), default="trio")
    made.add_argument("--rounds", type=int, default=15)
    given = made.parse_args()
    wrk = http_load.wrk_path()
    if wrk is None or not os.path.exists("/proc/self/stat"):
        raise SystemExit("This benchmark needs Linux, and wrk: apt-get install wrk")
    report = Report("http_served", given.json, tuple(http_servers.own_versions()))
    report.print_environment()
    loop = given.event_loop
    server = http_servers.shoal_serve(
        "shoal serve", "benchmarks.http_served:app", "--event-loop", loop
    )
    rounds = 1 if given.quick else given.rounds
    found: dict[tuple[str, str], list[Seen]] = {}
    with TemporaryDirectory() as folder, server.start() as process:
        process.wait_answer(is_answered)
        for kind, ways in KINDS.items():
            print(f"{kind} ...", file=sys.stderr)
            for nth in range(rounds + 1):
                for way, request in ways.items():
                    seen = measured(process, wrk, request, Path(folder))
                    if nth:  # in the first round CPython adapts its code
                        found.setdefault((kind, way), []).append(seen)
        process.terminate()
    missed = _tell(report, found)
    sentence = f"on {loop} every protocol costs at most {AT_MOST} times our own JSON"
    if missed:
        sentence = f"on {loop} {missed} of the targets are missed"
    ratios = {f"{row['way']}, {row['kind']}": [row["times"]] for row in report.rows}
    panel = Panel("CPU time of a request", "times our own JSON", [loop], ratios, AT_MOST)
    report.finish(f"{sentence}.", [panel])


def _tell(report: Report, found: dict[tuple[str, str], list[Seen]]) -> int:
    """Prints the figures, and notes them; returns how many targets are missed."""
    missed = 0
    for kind, ways in KINDS.items():
        own = found[kind, next(iter(ways))]
        rows: list[list[str]] = []
        for way in ways:
            seen = found[kind, way]
            cpu_us = statistics.median([one.cpu_us for one in seen])
            rate = statistics.median([one.rate for one in seen])
            ratios = [one.cpu_us / base.cpu_us for one, base in zip(seen, own, strict=True)]
            times = statistics.median(ratios)
            judged = "-" if seen is own else verdict(times, at_most=AT_MOST)
            missed += judged.endswith("MISSED")
            rows.append([way, f"{cpu_us:.1f}", f"{times:.2f}", f"{rate:,.0f}", judged])
            row: dict[str, Any] = {"kind": kind, "way": way, "cpu_us": cpu_us, "times": times}
            report.rows.append({**row, "rate": rate, "verdict": judged})
        print_table([kind, "CPU us each", "times", "requests/s", "target"], rows)
        print()
    return missed


if __name__ == "__main__":
    main()
