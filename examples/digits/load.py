"""Measures the gain of batching: drives the digits server with many concurrent clients.

Run it from the repository's root:

    python examples/digits/load.py

It starts two servers, one with batches and one that takes one image at a time, drives each in turn
and prints the results. `--url` drives a server that is already running, such as the demo. Each
client is a closed loop: it sends the next request as soon as it has the answer. So its latency is
that of the server, and the number of clients limits the batch size.

The load and the server share one machine. The clients are httpx transports with one connection
each, not httpx clients: building each request in a client would cost as much processor time as the
server's answer.
"""

import argparse
import json
import math
import queue
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx
import numpy as np

_ROOT = Path(__file__).parents[2]
_WARM_UP_S = 1.0  # at most; less for short measurements
_START_UP_S = 120.0


@dataclass
class Run:
    """The measurements of one server.

    Attributes:
        name: The server's name in the report.
        elapsed_s: The duration of the measurement, in seconds.
        latencies_s: The latency of each answered request, in seconds.
        batches: The size of each observed batch, by its id.
        right: The number of correct answers.
        refused: The number of requests without a prediction as answer.
    """

    name: str
    elapsed_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    batches: dict[int, int] = field(default_factory=dict)
    right: int = 0
    refused: int = 0

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return len(self.latencies_s) / self.elapsed_s

    @property
    def mean_batch(self) -> float:
        """The mean size of a batch, each batch counted once."""
        return float(np.mean(list(self.batches.values()))) if self.batches else 0.0

    def percentile_ms(self, percent: float) -> float:
        """A percentile of the latencies, in milliseconds."""
        return float(np.percentile(self.latencies_s, percent)) * 1e3 if self.latencies_s else 0.0


class _Load:
    """Clients in a closed loop against one server."""

    def __init__(self, url: httpx.URL, run: Run, seconds: float) -> None:
        from sklearn.datasets import load_digits  # it takes a second to import

        images, digits = load_digits(return_X_y=True)
        self._bodies = [json.dumps(image.reshape(8, 8).tolist()).encode() for image in images]
        self._digits = [int(digit) for digit in digits]
        self._url = url.join("/digits")
        self._run = run
        self._seconds = seconds
        # Shared by all clients: creating one takes tens of milliseconds, even if it is not used.
        self._ssl = ssl.create_default_context()
        self._measuring = False

    async def drive(self, clients: int) -> None:
        async with anyio.create_task_group() as tasks:
            for client in range(clients):
                tasks.start_soon(self._client, client)
            await anyio.sleep(min(_WARM_UP_S, self._seconds / 4))
            self._measuring = True
            started = time.perf_counter()
            before = 0
            for second in range(math.ceil(self._seconds)):
                until = min(second + 1, self._seconds)
                await anyio.sleep(started + until - time.perf_counter())
                done = len(self._run.latencies_s)
                print(
                    f"{self._run.name}: {until:g}/{self._seconds:g} s,"
                    f" {(done - before) / (until - second):,.0f} requests/s",
                    file=sys.stderr,
                    flush=True,
                )
                before = done
            self._run.elapsed_s = time.perf_counter() - started
            tasks.cancel_scope.cancel()

    async def _client(self, client: int) -> None:
        image = client
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        async with httpx.AsyncHTTPTransport(verify=self._ssl, limits=limits) as transport:
            while True:
                # The stride is coprime to the number of images, so all are visited.
                image = (image + 101) % len(self._bodies)
                await self._ask(transport, image)

    async def _ask(self, transport: httpx.AsyncHTTPTransport, image: int) -> None:
        request = httpx.Request(
            "POST",
            self._url,
            content=self._bodies[image],
            headers={"content-type": "application/json"},
        )
        started = time.perf_counter()
        response = await transport.handle_async_request(request)
        body = await response.aread()
        latency_s = time.perf_counter() - started
        if not self._measuring:
            return
        if response.status_code != httpx.codes.OK:
            self._run.refused += 1
            return
        answer = json.loads(body)
        self._run.latencies_s.append(latency_s)
        self._run.batches[answer["batch"]["id"]] = answer["batch"]["size"]
        self._run.right += answer["digit"] == self._digits[image]


def measure(name: str, url: str, clients: int, seconds: float) -> Run:
    """Drives one server and returns the measurements."""
    run = Run(name)
    # asyncio, because its sockets need the least processor time; the server runs on trio.
    anyio.run(_Load(httpx.URL(url), run, seconds).drive, clients, backend="asyncio")
    return run


def report(runs: Sequence[Run]) -> None:
    """Prints a table of the runs, and their ratio if there are two."""
    print(f"{'':12}{'requests/s':>12}{'mean batch':>12}{'p50 ms':>10}{'p99 ms':>10}{'right':>8}")
    for run in runs:
        right = run.right / max(1, len(run.latencies_s))
        print(
            f"{run.name:12}{run.rate:>12,.0f}{run.mean_batch:>12.1f}"
            f"{run.percentile_ms(50):>10.1f}{run.percentile_ms(99):>10.1f}{right:>8.1%}"
        )
        if run.refused:
            print(f"{run.name}: {run.refused:,} requests were not answered with a prediction")
    if len(runs) == 2 and runs[1].rate:
        print(f"Batching answers {runs[0].rate / runs[1].rate:.1f} times as many requests.")


def plot(runs: Sequence[Run], path: Path) -> None:
    """Draws the latencies and the batch sizes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator

    figure, (times, sizes) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    colors = ["#0f7c8a", "#d9843b"]
    for run, color in zip(runs, colors, strict=False):
        latencies = np.sort(run.latencies_s) * 1e3
        share = np.arange(1, len(latencies) + 1) / max(1, len(latencies))
        times.plot(latencies, share, color=color, label=f"{run.name}: {run.rate:,.0f} requests/s")
        if run.batches:
            batch_sizes = list(run.batches.values())
            bins = np.arange(0.5, max(batch_sizes) + 1.5)
            label = f"{run.name}: mean {run.mean_batch:.1f}"
            weights = np.full(len(batch_sizes), 1 / len(batch_sizes))
            sizes.hist(batch_sizes, bins, weights=weights, color=color, alpha=0.8, label=label)
    times.set(xscale="log", xlabel="milliseconds", ylabel="share of requests answered within")
    times.xaxis.set_major_formatter("{x:g}")
    times.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    times.xaxis.set_minor_formatter("")
    times.set_title("Latency")
    sizes.set(xlabel="requests in a batch", ylabel="share of batches")
    sizes.set_title("Batch size")
    for axes in (times, sizes):
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


@contextmanager
def server(variant: str) -> Iterator[str]:
    """Runs one of the applications of `servers.py` in its own process; yields its URL."""
    target = f"examples.digits.servers:{variant}"
    command = [sys.executable, "-m", "shoal", "serve", target, "--port", "0"]
    process = subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True)
    urls: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    # The pipe is read to its end, so that the server never blocks on a full pipe.
    reader = threading.Thread(target=_pass_on, args=(process, urls))
    reader.start()
    try:
        url = urls.get(timeout=_START_UP_S)
        if url is None:
            raise SystemExit(f"{target} ended before it served")
        yield url
    finally:
        process.terminate()
        process.wait()
        reader.join()


def _pass_on(process: subprocess.Popen[str], urls: "queue.SimpleQueue[str | None]") -> None:
    assert process.stderr is not None
    with process.stderr as lines:
        for line in lines:
            sys.stderr.write(line)
            if served := re.search(r" on (http://\S+)", line):
                urls.put(served[1])
    urls.put(None)


def main() -> None:
    """Parses the options, drives the server or servers, and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", help="drive this running server instead of starting two")
    parser.add_argument("--clients", type=int, default=128, help="concurrent clients (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10, help="duration of each run (%(default)s)"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        default=Path(__file__).with_name("load.png"),
        help="where to save the plot (%(default)s)",
    )
    options = parser.parse_args()
    runs: list[Run] = []
    if options.url:
        runs.append(measure("served", options.url, options.clients, options.seconds))
    else:
        for variant in ("batched", "unbatched"):
            with server(variant) as url:
                runs.append(measure(variant, url, options.clients, options.seconds))
    report(runs)
    plot(runs, options.plot)
    print(f"plot: {options.plot}")


if __name__ == "__main__":
    main()
