"""Shoal beside its peers on the same work: in process, over HTTP, and when something fails.

Each peer runs the same model, with the options that its documentation advises for batches of at
most 64, in the environment of `make bench-peers`. Peers that are not installed are left out. It
prints the tables of one page, and saves them with plots. It takes about eight minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks import http_load
from benchmarks.http_peers.model import POISON, SLOW, TOKENS
from benchmarks.http_process import ServerProcess
from benchmarks.http_servers import OWN, PEERS
from benchmarks.peers_in_process import LIBRARIES
from benchmarks.report import Panel, Report, parser, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_PACKAGES: Final = ("shoal", "anyio", "trio")
HTTP_CLIENTS: Final = (1, 8, 64)
STREAM_CLIENTS: Final = 32
DEADLINE_S: Final = 5.0
"""How long a request of the faults may take."""


class Peer(NamedTuple):
    """A server of the model.

    Attributes:
        name: Its name in the tables.
        command: Its command, without the folder of its environment.
        package: The package without which it is left out; None for Shoal.
        body: The body of a request, with the word VALUE.
        environment: What it needs in its environment.
        streams: Whether it can stream.
        counts_cpu: Whether its processes are all in the session of the first.
    """

    name: str
    command: Sequence[str]
    package: str | None
    body: str = '{"value": VALUE}'
    environment: dict[str, str] = {}  # noqa: RUF012
    streams: bool = True
    counts_cpu: bool = True

    def payload(self, value: int = 3) -> bytes:
        """Returns the body of a request."""
        return self.body.replace("VALUE", str(value)).encode()


APPS: Final = "benchmarks.http_peers"
SERVERS: Final = (
    Peer("Shoal", ["shoal", "serve", f"{APPS}.shoal_model:app", "--port", "{port}"], None),
    Peer(
        "Shoal, model in a process, isolate_errors",
        ["shoal", "serve", f"{APPS}.shoal_model:in_process", "--port", "{port}"],
        None,
    ),
    Peer("mosec", ["python", "-m", f"{APPS}.mosec_model", "--port", "{port}"], "mosec"),
    Peer("LitServe", ["python", "-m", f"{APPS}.litserve_model", "--port", "{port}"], "litserve"),
    Peer(
        "BentoML",
        ["bentoml", "serve", f"{APPS}.bentoml_model:Model", "--port", "{port}"],
        "bentoml",
        body='{"values": [VALUE]}',
        environment={"BENTOML_DO_NOT_TRACK": "1"},
        streams=False,
        counts_cpu=False,
    ),
    Peer(
        "Ray Serve",
        ["python", "-m", f"{APPS}.ray_model", "--port", "{port}"],
        "ray",
        counts_cpu=False,
    ),
    Peer(
        "Ray Serve, throughput mode",
        ["python", "-m", f"{APPS}.ray_model", "--port", "{port}"],
        "ray",
        environment={"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"},
        counts_cpu=False,
    ),
    Peer(
        "FastAPI, no batches",
        ["uvicorn", f"{APPS}.fastapi_model:app", "--port", "{port}", "--no-access-log"],
        "fastapi",
    ),
)


def installed() -> dict[str, str]:
    """Returns the packages in the environment of the peers, with their versions."""
    python = PEERS / "python"
    if not python.exists():
        return {}
    text = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({d.metadata['Name'].lower(): d.version for d in m.distributions()}))"
    )
    ran = subprocess.run([python, "-c", text], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def start(peer: Peer, **more: str) -> ServerProcess:
    """Starts a server, and waits until it responds."""
    program, *rest = peer.command
    folder = OWN if peer.package is None else PEERS
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[1]), **peer.environment}
    os.environ.update(environment | more)
    try:
        server = ServerProcess(peer.name, [str(folder / program), *rest])
    finally:
        for name in environment | more:
            del os.environ[name]

    def responds(port: int) -> bool:
        status, _ = http_load.ask(port, "POST", "/predict", peer.payload())
        if status >= 400:
            raise ConnectionRefusedError("it has not started")
        return True

    try:
        server.wait_answer(responds, pause_s=0.2)
    except BaseException:
        server.__exit__()
        raise
    return server


# In process


def in_process(seconds: float) -> list[dict[str, Any]]:
    """Returns the figures of each library, from a process of its own."""
    found = []
    for library in LIBRARIES:
        command = [str(PEERS / "python"), "-m", "benchmarks.peers_in_process", library]
        ran = subprocess.run(
            [*command, "--seconds", str(seconds)], capture_output=True, text=True, check=False
        )
        if ran.returncode:
            print(f"{library} is left out: {ran.stderr.strip().splitlines()[-1]}")
            continue
        found.append(json.loads(ran.stdout.splitlines()[-1]))
    return found


def print_in_process(found: list[dict[str, Any]]) -> None:
    """Prints the figures of the libraries."""
    for work in ("no work", "model"):
        heads = ("asyncio, calls/s (µs of CPU a call)", "1 caller", "64 callers", "256 callers")
        rows = []
        for one in found:
            row = [one["library"]]
            for callers in (1, 64, 256):
                seen = one[f"{work}, {callers}"]
                row.append(
                    "calls hang"
                    if seen is None
                    else f"{seen['calls_per_s']:,.0f} ({seen['cpu_us']:.1f})"
                )
            rows.append(row)
        print(f"\n{'A function without work' if work == 'no work' else 'A model of 2 ms a batch'}")
        print_table(heads, rows)
    print("\nEight calls at once, while a batch runs")
    rows = []
    for one in found:
        left, poison = one["a caller leaves"], one["a poison item"]
        rows.append(
            [
                one["library"],
                "runs" if left["leaver_ran"] else "does not run",
                shown(left["outcomes"], left["hanging"]),
                shown(poison["outcomes"], poison["hanging"]),
            ]
        )
    print_table(("", "a cancelled item", "its batch", "a batch with an item that raises"), rows)


def shown(outcomes: dict[str, int], hanging: int = 0) -> str:
    """Returns counted outcomes as words."""
    counted = [f"{count} {name}" for name, count in sorted(outcomes.items())]
    return ", ".join(counted + [f"{hanging} hang"] * bool(hanging))


# Over HTTP


def over_http(peer: Peer, wrk: str, seconds: int) -> dict[str, Any]:
    """Returns the figures of one server, started for it."""
    figures: dict[str, Any] = {}
    with start(peer) as server, tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        for name, clients in (*((str(count), count) for count in HTTP_CLIENTS), ("varied", 64)):
            script.write_text(wrk_script(peer.payload(), varied=name == "varied"))

            def load(seconds: int, clients: int = clients) -> http_load.WrkLoad:
                return http_load.drive_with_wrk(
                    wrk, server, "/predict", clients=clients, seconds=seconds, script=script
                )

            load(1)
            seen = load(seconds)
            figures[name] = {
                "per_s": seen.requests / seen.seconds,
                "cpu_us": seen.cpu_s / max(1, seen.requests) * 1e6,
                "p50_ms": seen.p50_ms,
                "p99_ms": seen.p99_ms,
                "failures": seen.failures,
            }
        if peer.streams:
            request = http_load.request_bytes("/generate", peer.payload(), "text/event-stream")
            streamed = http_load.drive(
                server,
                request,
                clients=STREAM_CLIENTS,
                tokens=TOKENS,
                warm_up_s=1,
                seconds=seconds,
            )
            figures["streams"] = {
                "tokens_per_s": streamed.tokens / streamed.seconds,
                "first_p50_ms": http_load.percentile_ms(streamed.first_token_s, 50),
                "failures": streamed.failures,
            }
    return figures


def wrk_script(body: bytes, *, varied: bool) -> str:
    """Returns what wrk sends; `varied` gives each request headers of its own."""
    script = (
        f"wrk.method = 'POST'\nwrk.body = '{body.decode()}'\n"
        "wrk.headers['Content-Type'] = 'application/json'\n"
    )
    if varied:
        script += (
            "local n = 0\nrequest = function()\n  n = n + 1\n"
            "  wrk.headers['X-Request-Id'] = 'request-' .. n\n"
            "  wrk.headers['Traceparent'] = string.format('00-%032x-%016x-01', n, n)\n"
            "  return wrk.format()\nend\n"
        )
    return script


def median_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the median of each figure."""
    return {
        group: {name: statistics.median(one[group][name] for one in rounds) for name in figures}
        for group, figures in rounds[0].items()
    }


def print_http(found: dict[str, dict[str, Any]], peers: dict[str, Peer]) -> None:
    """Prints the figures of the servers."""
    heads = ["requests/s (99% within, ms)", *(f"{count} clients" for count in HTTP_CLIENTS)]
    heads += ["CPU µs, 64 clients", "64 clients, varied headers"]
    rows = []
    for name, figures in found.items():
        row = [name]
        for count in HTTP_CLIENTS:
            seen = figures[str(count)]
            row.append(f"{seen['per_s']:,.0f} ({seen['p99_ms']:.1f}){failures(seen)}")
        cpu = f"{figures['64']['cpu_us']:.0f}" if peers[name].counts_cpu else "-"
        rows.append([*row, cpu, f"{figures['varied']['per_s']:,.0f}"])
    print("\nA model of 2 ms a batch and 0.05 ms an item, over HTTP (wrk)")
    print_table(heads, rows)
    rows = []
    for name, figures in found.items():
        seen = figures.get("streams")
        rows.append(
            [name, "no streams of batches", "-"]
            if seen is None
            else [
                name,
                f"{seen['tokens_per_s']:,.0f}{failures(seen)}",
                f"{seen['first_p50_ms']:.0f}",
            ]
        )
    print(f"\nStreams of {TOKENS} tokens, 2 ms a step, {STREAM_CLIENTS} clients")
    print_table(("", "tokens/s", "first token, ms (median)"), rows)


def failures(seen: dict[str, Any]) -> str:
    """Returns the failures as words, if there are any."""
    return f" {seen['failures']:,.0f} failed" if seen["failures"] else ""


# Faults


def faults(peer: Peer) -> dict[str, str]:
    """Returns what a server does when a caller leaves, an item raises, and a worker is killed."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        with start(peer, PEERS_NOTES=str(notes)) as server, ThreadPoolExecutor(16) as threads:

            def ask(value: int) -> str:
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
                headers = {"Content-Type": "application/json"}
                try:
                    connection.request("POST", "/predict", peer.payload(value), headers)
                    status = connection.getresponse().status
                except TimeoutError:
                    return "hang"
                except (OSError, http.client.HTTPException):
                    return "broken"
                finally:
                    connection.close()
                return str(status)

            def settle() -> None:
                ends = time.monotonic() + 30
                while ask(1) != "200" and time.monotonic() < ends:
                    time.sleep(0.2)

            found = {}
            busy = threads.submit(ask, SLOW)
            time.sleep(0.3)
            with socket.create_connection(("127.0.0.1", server.port)) as leaver:
                leaver.sendall(
                    http_load.request_bytes("/predict", peer.payload(77), "application/json")
                )
                time.sleep(0.2)
            wait([busy])
            settle()
            found["a queued request whose client left"] = (
                "runs" if any(77 in note["values"] for note in read(notes)) else "does not run"
            )

            busy = threads.submit(ask, SLOW)
            time.sleep(0.3)
            several = [threads.submit(ask, value) for value in (1, 2, 3, POISON, 5, 6, 7, 8)]
            found["eight at once, of which one raises"] = shown(
                Counter(one.result() for one in several)
            )
            wait([busy])
            settle()

            running = threads.submit(ask, SLOW)
            time.sleep(0.3)
            queued = [threads.submit(ask, value) for value in (1, 2, 3, 4)]
            time.sleep(0.2)
            killed = time.monotonic()
            os.kill(read(notes)[-1]["pid"], signal.SIGKILL)
            found["the process of the model is killed: what ran"] = running.result()
            found["four that waited"] = shown(Counter(one.result() for one in queued))
            while (status := ask(1)) != "200" and time.monotonic() < killed + 30:
                time.sleep(0.05)
            found["it responds again after"] = (
                f"{time.monotonic() - killed:.1f} s" if status == "200" else "not within 30 s"
            )
    return found


def read(notes: Path) -> list[dict[str, Any]]:
    """Returns the batches that the model has noted."""
    return [json.loads(line) for line in notes.read_text().splitlines()]


def main() -> None:
    """Measures, prints and saves."""
    made = parser(__doc__ or "", "peers")
    made.add_argument("--only", choices=("in-process", "http", "faults"), help="one part")
    arguments = made.parse_args()
    versions = installed()
    if not versions:
        sys.exit("the peers are not installed: run `make bench-peers`")
    report = Report("peers", arguments.json, OWN_PACKAGES)
    report.print_environment()
    shown_peers = sorted({peer.package for peer in SERVERS if peer.package} & versions.keys())
    print("peers:", ", ".join(f"{name} {versions[name]}" for name in shown_peers))
    servers = [peer for peer in SERVERS if peer.package is None or peer.package in versions]
    panels: list[Panel] = []
    sentence = "see the tables"

    if arguments.only in (None, "in-process"):
        libraries = in_process(0.3 if arguments.quick else 2)
        print_in_process(libraries)
        report.rows += libraries
        names = [one["library"] for one in libraries]
        rates = [one["no work, 64"] and one["no work, 64"]["calls_per_s"] for one in libraries]
        panels.append(Panel("64 callers, no work", "calls/s", names, {"calls/s": rates}))

    if arguments.only in (None, "http"):
        wrk = http_load.wrk_path() or sys.exit("install wrk: it loads the servers")
        rounds: dict[str, list[dict[str, Any]]] = {peer.name: [] for peer in servers}
        for nth in range(1 if arguments.quick else 2):
            for peer in servers[::-1]:
                print(f"round {nth + 1}: {peer.name}", file=sys.stderr)
                rounds[peer.name].append(over_http(peer, wrk, 1 if arguments.quick else 3))
        found = {name: median_of(each) for name, each in rounds.items() if each}
        print_http(found, {peer.name: peer for peer in servers})
        report.rows += [{"server": name, **figures} for name, figures in found.items()]
        rates = [figures["64"]["per_s"] for figures in found.values()]
        fastest = max(list(found)[2:], key=lambda name: found[name]["64"]["per_s"])
        sentence = (
            f"with 64 clients, Shoal responds to {found['Shoal']['64']['per_s']:,.0f} requests/s, "
            f"and {fastest}, the fastest peer, to {found[fastest]['64']['per_s']:,.0f}"
        )
        panels.append(Panel("64 clients over HTTP", "requests/s", list(found), {"": rates}))

    if arguments.only in (None, "faults"):
        table = {peer.name: faults(peer) for peer in servers}
        print("\nOver HTTP, what happens to")
        questions = list(next(iter(table.values())))
        print_table(
            ("", *questions), [[name, *answers.values()] for name, answers in table.items()]
        )
        report.rows += [{"server": name, "faults": answers} for name, answers in table.items()]

    if panels:
        report.finish(sentence, panels)


if __name__ == "__main__":
    main()
