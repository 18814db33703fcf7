"""The cost of Shoal over HTTP: the same model served by Shoal, and by a bare batching loop.

There are two applications (http_servers.py) with one blocking model on one Hypercorn trio worker:
Shoal, and loops of a few lines under Starlette. Each is a separate process on 127.0.0.1. Both run
all the time and are loaded in turn; each figure is the median of the rounds. A third server is the
same Shoal application under ``shoal serve``, which protects the worker from misbehaving clients.

64 clients request one result each (by wrk if it is installed), then 32 a stream each.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else it would shadow the standard library's http
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import http.client
import json
import re
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks import http_load
from benchmarks.http_servers import TOKENS
from benchmarks.report import Panel, Report, parser, print_table, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

UNARY_CLIENTS: Final = 64
STREAM_CLIENTS: Final = 32
TARGET: Final = 0.85
WARM_UP_S: Final = 0.5

PREDICT: Final = http_load.request_bytes("/predict", b'{"value": 3}', "application/json")
GENERATE: Final = http_load.request_bytes("/generate", b'{"value": 3}', "text/event-stream")

BARE: Final = "bare loop"
SHOAL: Final = "Shoal"
SHOAL_SERVE: Final = "shoal serve"
SERVERS: Final = {
    BARE: ["-m", "benchmarks.http_servers", "bare"],
    SHOAL: ["-m", "benchmarks.http_servers", "shoal"],
    SHOAL_SERVE: ["-m", "shoal", "serve", "benchmarks.http_app:app", "--port", "0"],
}


@contextmanager
def served(name: str) -> Iterator[int]:
    """Runs a server in its own process; yields its port."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, *SERVERS[name]],
            cwd=Path(__file__).resolve().parents[1],
            stdout=log,
            stderr=log,
        )
        try:
            yield _port(name, process, log)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(name: str, process: subprocess.Popen[bytes], log: Any) -> int:
    """Waits until a server prints its port; returns it."""
    give_up_at = time.monotonic() + 30
    while time.monotonic() < give_up_at:
        log.seek(0)
        printed = log.read()
        found = re.search(r"on http://127\.0\.0\.1:(\d+)", printed)
        if found is not None:
            return int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"{name} did not start:\n{printed}")


def statistics(port: int) -> dict[str, float]:
    """Requests the statistics of a server's model."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/statistics")
        found: dict[str, float] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()


def ask_for_results(port: int, seconds: int, wrk: str | None) -> dict[str, float]:
    """Measures the unary endpoint under load."""
    http_load.drive(port, PREDICT, clients=UNARY_CLIENTS, tokens=0, warm_up_s=0, seconds=WARM_UP_S)
    before = statistics(port)
    if wrk is None:
        load = http_load.drive(
            port, PREDICT, clients=UNARY_CLIENTS, tokens=0, warm_up_s=0, seconds=seconds
        )
        p50_ms, p99_ms = (http_load.percentile_ms(load.latencies_s, at) for at in (50, 99))
        rate, failures = load.requests / load.seconds, load.failures
    else:
        seen = http_load.drive_with_wrk(
            wrk, port, "/predict", clients=UNARY_CLIENTS, seconds=seconds
        )
        rate, p50_ms, p99_ms = seen.requests_a_second, seen.p50_ms, seen.p99_ms
        failures = seen.failures
    after = statistics(port)
    items = after["items"] - before["items"]
    return {
        "rate": rate,
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "mean_batch": items / (after["batches"] - before["batches"]),
        "cpu_us": (after["cpu_s"] - before["cpu_s"]) / items * 1e6,
        "failures": failures,
    }


def ask_for_streams(port: int, seconds: int) -> dict[str, float]:
    """Measures the streaming endpoint under load."""
    before = statistics(port)
    load = http_load.drive(
        port,
        GENERATE,
        clients=STREAM_CLIENTS,
        tokens=TOKENS,
        warm_up_s=WARM_UP_S,
        seconds=seconds,
    )
    after = statistics(port)
    streams = after["streams"] - before["streams"]
    return {
        "rate": load.tokens / load.seconds,
        "first_p50_ms": http_load.percentile_ms(load.first_token_s, 50),
        "first_p99_ms": http_load.percentile_ms(load.first_token_s, 99),
        "p50_ms": http_load.percentile_ms(load.latencies_s, 50),
        "mean_batch": streams / (after["stream_batches"] - before["stream_batches"]),
        "cpu_us": (after["cpu_s"] - before["cpu_s"]) / (streams * TOKENS) * 1e6,
        "failures": load.failures,
    }


Rounds = dict[str, list[dict[str, float]]]


def measure(rounds: int, seconds: int, wrk: str | None) -> tuple[Rounds, Rounds]:
    """Measures all servers in turn; returns the measurements of results and of streams."""
    unary: Rounds = {name: [] for name in SERVERS}
    streams: Rounds = {name: [] for name in SERVERS}
    with ExitStack() as stack:
        ports = {name: stack.enter_context(served(name)) for name in SERVERS}
        for nth in range(rounds):
            for name, port in ports.items():
                unary[name].append(ask_for_results(port, seconds, wrk))
                streams[name].append(ask_for_streams(port, seconds))
                print(f"round {nth + 1} of {rounds}: {name}", file=sys.stderr)
    return unary, streams


def medians(what: str, rounds: Rounds) -> list[dict[str, Any]]:
    """Returns a row per server: medians, and the ratio of its rate to that of the bare loop."""
    rows = []
    for name, seen in rounds.items():
        row: dict[str, Any] = {"what": what, "server": name}
        row |= {key: median(figures[key] for figures in seen) for key in seen[0]}
        row["failures"] = sum(figures["failures"] for figures in seen)
        pairs = list(zip(seen, rounds[BARE], strict=True))
        row["ratio"] = median(ours["rate"] / bare["rate"] for ours, bare in pairs)
        # The ratio if the CPU time of the process were the only limit.
        row["cpu_ratio"] = median(bare["cpu_us"] / ours["cpu_us"] for ours, bare in pairs)
        row["verdict"] = verdict(row["ratio"], at_least=TARGET if name == SHOAL else None)
        rows.append(row)
    return rows


def _print(title: str, columns: dict[str, tuple[str, str]], rows: list[dict[str, Any]]) -> None:
    heads = [title, *(head for head, _ in columns.values()), "target"]
    texts = [
        [row["server"], *(format(row[key], how) for key, (_, how) in columns.items())]
        for row in rows
    ]
    print_table(heads, [[*text, row["verdict"]] for text, row in zip(texts, rows, strict=True)])
    print()


def main() -> None:
    """Runs the benchmark."""
    arguments = parser("The cost of Shoal over HTTP, relative to a bare loop.", "http").parse_args()
    packages = ("shoal", "hypercorn", "starlette", "trio", "h11", "pydantic")
    report = Report("http", arguments.json, packages)
    report.print_environment()
    wrk = http_load.wrk_path()
    by = "its own client" if wrk is None else "wrk"
    rounds, seconds = (1, 2) if arguments.quick else (5, 5)
    unary, streams = (
        medians(what, seen)
        for what, seen in zip(("results", "streams"), measure(rounds, seconds, wrk), strict=True)
    )
    report.rows = [*unary, *streams]
    common = {
        "mean_batch": ("mean batch", ".1f"),
        "cpu_us": ("CPU us each", ".0f"),
        "failures": ("failures", ".0f"),
        "ratio": ("ratio", ".2f"),
        "cpu_ratio": ("CPU ratio", ".2f"),
    }
    latency = {"p50_ms": ("p50 ms", ".1f"), "p99_ms": ("p99 ms", ".1f")}
    first = {"first_p50_ms": ("first p50 ms", ".1f"), "first_p99_ms": ("first p99 ms", ".1f")}
    print(f"{UNARY_CLIENTS} clients by {by}, {rounds} rounds of {seconds} s\n")
    _print("results", {"rate": ("requests/s", ",.0f"), **latency, **common}, unary)
    print(f"{STREAM_CLIENTS} clients by its own client, streams of {TOKENS} tokens\n")
    whole = {"p50_ms": ("whole p50 ms", ".0f")}
    _print("streams", {"rate": ("tokens/s", ",.0f"), **first, **whole, **common}, streams)
    ratios = {(row["what"], row["server"]): row["ratio"] for row in report.rows}
    report.finish(
        "what Shoal adds to the server's own cost a request leaves "
        f"{ratios['results', SHOAL]:.0%} of a bare loop's requests a second and "
        f"{ratios['streams', SHOAL]:.0%} of its tokens a second.",
        [_panel("Results", "requests/s", unary), _panel("Streams", "tokens/s", streams)],
    )


def _panel(title: str, unit: str, rows: list[dict[str, Any]]) -> Panel:
    return Panel(
        title,
        unit,
        [row["server"] for row in rows],
        {unit: [row["rate"] for row in rows]},
        target=TARGET * rows[0]["rate"],
    )


if __name__ == "__main__":
    main()
