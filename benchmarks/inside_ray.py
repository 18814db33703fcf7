"""What Shoal's batches buy inside Ray Serve, a Ray actor, Ray Data and Dask.

In Ray Serve they are beside its own, in the deployment `examples/inside/ray_serve.py`: both kinds
of batch share the proxy, the replicas and the model. In the other systems they are beside the same
calls without them. Each part runs by its name, and without one all of them do. It needs wrk, for
the throughput mode HAProxy, and an environment with Ray and Dask, which `make test-ray` creates:

    .venv-ray/bin/python -m benchmarks.inside_ray serve
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import shoal
from examples.inside.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

ROOT: Final = Path(__file__).resolve().parents[1]
PORT: Final = 18731
MODES: Final = {
    "serve": ("Ray Serve, default", {"RAY_SERVE_ENABLE_HA_PROXY": "0"}),
    "serve-throughput": (
        "Ray Serve, throughput mode and HAProxy",
        {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"},
    ),
}
LUA: Final = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '%s'
"""
CLIENTS: Final = (64, 256)
CALLS: Final = 512
CHARACTER_S: Final = 2e-6

app = shoal.App()
app.endpoint("/lengths", name="lengths", max_batch_size=64, placement="process", num_replicas=2)(
    Model
)


def serve_deployment() -> None:
    """Serves the deployment until its input ends."""
    ray: Any = import_module("ray")
    serve: Any = import_module("ray.serve")
    start_ray(ray)
    serve.start(http_options={"port": PORT})
    serve.run(import_module("examples.inside.ray_serve").app)
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


def start_ray(ray: Any) -> None:
    """Starts a cluster of this process."""
    variables = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env=variables,
    )


def requests(url: str, body: str, clients: int, seconds: int) -> tuple[float, float, float]:
    """Returns requests/s without errors, and the median and p99 of the latency in milliseconds."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(LUA % body)
        script.flush()
        command = [
            "wrk",
            "-t1",
            f"-c{clients}",
            f"-d{seconds}s",
            "--timeout=10s",
            "--latency",
            "-s",
            script.name,
        ]
        out = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in out or "timeout" in out:
        print(out)
    found = re.search(r"Requests/sec:\s+(\S+)", out)
    rate = math.nan if found is None else float(found[1])
    units = {"us": 0.001, "ms": 1.0, "s": 1000.0}
    times = {
        percent: float(number) * units[unit]
        for percent, number, unit in re.findall(
            r"^\s+(50|99)%\s+([\d.]+)([a-z]+) *$", out, re.MULTILINE
        )
    }
    return rate, times.get("50", math.nan), times.get("99", math.nan)


def compare(name: str, routes: dict[str, tuple[str, str]], rounds: int, seconds: int) -> None:
    """Prints the medians of interleaved rounds."""
    for clients in CLIENTS:
        taken: dict[str, list[tuple[float, float, float]]] = {route: [] for route in routes}
        for url, body in routes.values():
            requests(url, body, clients, 2)  # not counted
        for _ in range(rounds):
            for route, (url, body) in routes.items():
                taken[route].append(requests(url, body, clients, seconds))
        for route, found in taken.items():
            rate, middle, late = (statistics.median(one) for one in zip(*found, strict=True))
            print(
                f"{name} | {route} | {clients} clients | {rate:,.0f} requests/s | "
                f"p50 {middle:.0f} ms, p99 {late:.0f} ms",
                flush=True,
            )


@contextmanager
def server(arguments: list[str], ready: str, variables: dict[str, str]) -> Generator[None]:
    """Runs a server in a process of its own; it prints `ready` when it serves."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, **variables},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said: list[str] = []
        while ready not in (line := process.stdout.readline()):
            said.append(line)
            if process.poll() is not None:
                raise SystemExit("".join(said))
        yield
        process.stdin.close()
        if "shoal" in arguments:
            process.terminate()
        process.stdout.read()


def run_serve(part: str, rounds: int, seconds: int) -> None:
    """Measures both kinds of batch in one mode of Ray Serve."""
    name, variables = MODES[part]
    url, body = f"http://127.0.0.1:{PORT}", '{"text": "a text of some words"}'
    routes = {
        "@serve.batch": (f"{url}/lengths-by-ray", body),
        "@shoal.batch": (f"{url}/lengths", body),
    }
    with server(["-m", "benchmarks.inside_ray", "--deployment"], "ready", variables):
        compare(name, routes, rounds, seconds)


def run_alone(_part: str, rounds: int, seconds: int) -> None:
    """Measures the same model in `shoal serve`, without Ray."""
    routes = {"its batches": (f"http://127.0.0.1:{PORT}/lengths", '"a text of some words"')}
    command = ["-m", "shoal", "serve", "benchmarks.inside_ray:app", f"--port={PORT}"]
    with server(command, "Shoal serving", {}):
        compare("shoal serve, two processes", routes, rounds, seconds)


def print_calls(name: str, ways: dict[str, Callable[[], object]], rounds: int) -> None:
    """Prints the median time of all calls, for each way."""
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for call in ways.values():
        call()  # not counted
    for _ in range(rounds):
        for way, call in ways.items():
            began = time.perf_counter()
            call()
            taken[way].append(time.perf_counter() - began)
    for way, found in taken.items():
        print(f"{name} | {way} | {statistics.median(found) * 1e3:,.0f} ms", flush=True)


class OneByOne:
    """An actor that runs the model for each text."""

    def __init__(self) -> None:
        self.model = Model()

    def length(self, text: str) -> int:
        """Returns the length of a text."""
        return self.model([text])[0]


def run_actor(_part: str, rounds: int, _seconds: int) -> None:
    """Measures calls of one text each to an actor."""
    ray: Any = import_module("ray")
    start_ray(ray)
    example: Any = import_module("examples.inside.ray_actor")
    texts = ["a" * number for number in range(CALLS)]
    batched, bare = example.Lengths.remote(), ray.remote(num_cpus=0)(OneByOne).remote()

    def all_of(actor: Any) -> Callable[[], object]:
        return lambda: ray.get([actor.length.remote(text) for text in texts])

    ways = {"one by one": all_of(bare), "@shoal.batch": all_of(batched)}
    print_calls(f"Ray actor, {CALLS} calls", ways, rounds)
    ray.shutdown()


class PaddedModel(Model):
    """A model that computes padding as well: each character of a batch takes 2 µs."""

    def __call__(self, texts: list[str]) -> list[int]:
        """Returns the lengths of the texts."""
        time.sleep(CHARACTER_S * len(texts) * max(map(len, texts)))
        return super().__call__(texts)


class InOrder:
    """What `map_batches` calls with batches of 64 rows in their order."""

    def __init__(self) -> None:
        self.model = PaddedModel()

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns the rows with their lengths."""
        before = self.model.padded
        lengths = self.model(rows["text"].tolist())
        return {"length": lengths, "padded": [self.model.padded - before, *[0] * len(lengths[1:])]}


def run_data(_part: str, rounds: int, _seconds: int) -> None:
    """Measures texts of Ray Data, and the characters that the model computes, with padding."""
    ray: Any = import_module("ray")
    start_ray(ray)
    ray_data: Any = import_module("ray.data")
    example: Any = import_module("examples.inside.ray_data")
    lengths: type = example.Lengths
    texts = ["a" * (4 ** (number % 6) + number % 7) for number in range(2048)]
    table = ray_data.from_items([{"text": text} for text in texts])

    class ByLength(lengths):  # type: ignore[misc]
        batched: Any

        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.batched.model = PaddedModel()

    padded: dict[str, int] = {}

    def all_of(way: str, code: type, size: int) -> Callable[[], object]:
        def call() -> None:
            pool = ray_data.ActorPoolStrategy(size=1)
            rows = table.map_batches(code, batch_size=size, compute=pool).take_all()
            padded[way] = sum(row["padded"] for row in rows)

        return call

    in_order, ours = "batches of 64 rows in their order", "@shoal.batch"
    ways = {in_order: all_of(in_order, InOrder, 64), ours: all_of(ours, ByLength, 1024)}
    print_calls(f"Ray Data, {len(texts)} texts", ways, rounds)
    for way, characters in padded.items():
        print(f"Ray Data, {len(texts)} texts | {way} | {characters:,} characters", flush=True)
    ray.shutdown()


_model: Final = Model()
_turn: Final = Lock()


def one_by_one(text: str) -> int:
    """A task of Dask that runs the model for each text; a model takes one call at a time."""
    with _turn:
        return _model([text])[0]


def run_dask(_part: str, rounds: int, _seconds: int) -> None:
    """Measures tasks of one text each."""
    distributed: Any = import_module("dask.distributed")
    example: Any = import_module("examples.inside.dask_tasks")
    here: Any = import_module("benchmarks.inside_ray")  # workers can't import __main__
    texts = ["a" * number for number in range(CALLS)]
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=64, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.register_plugin(example.BatchedModel())

        def all_of(task: Callable[[str], int]) -> Callable[[], object]:
            return lambda: client.gather(client.map(task, texts, pure=False))

        ways = {"one by one": all_of(here.one_by_one), "@shoal.batch": all_of(example.length)}
        print_calls(f"Dask, {CALLS} tasks", ways, rounds)


PARTS: Final[dict[str, Callable[[str, int, int], None]]] = {
    "serve": run_serve,
    "serve-throughput": run_serve,
    "alone": run_alone,
    "actor": run_actor,
    "data": run_data,
    "dask": run_dask,
}


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--deployment", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.deployment:
        serve_deployment()
        return
    for part in arguments.parts:
        PARTS[part](part, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
