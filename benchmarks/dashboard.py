"""What a viewer of the dashboard costs the server: its processor time with and without one.

    python -m benchmarks.dashboard [--rate 300] [--rounds 12] [--seconds 5]

A server in a process of its own gets requests at a fixed rate. Rounds with a viewer and rounds
without one alternate. The server's processor time is read from /proc/<pid>/schedstat, and the
median of the differences of neighbouring rounds is printed, as a share of one core.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import anyio

APP = """
import anyio, shoal
app = shoal.App()

@app.endpoint("/double", max_batch_size=16, batch_wait_timeout_s=0.005, max_concurrent_batches=4)
async def double(items: list[int]) -> list[int]:
    await anyio.sleep(0.01)
    return [2 * item for item in items]

@app.endpoint("/one", max_batch_size=1, max_concurrent_batches=16)
async def one(items: list[int]) -> list[int]:
    return items

@app.endpoint("/steps", fill="continuous", max_batch_size=16)
async def steps(batch: shoal.OpenBatch[int, int]) -> None:
    while await batch.join():
        while batch.active:
            await anyio.sleep(0.02)
            for request in batch.active:
                request.finish(request.item)
            batch.join_nowait()
"""
PATHS = ("/double", "/one", "/steps")


async def main(rate: float, rounds: int, seconds: float, folder: Path) -> None:
    (folder / "dashboard_app.py").write_text(APP)
    command = [sys.executable, "-m", "shoal", "serve", "dashboard_app:app", "--port", "0"]
    with subprocess.Popen(  # noqa: ASYNC220 - once, before anything is measured
        command, cwd=folder, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        started = next(line for line in server.stderr if line.startswith("Shoal serving "))
        found = re.search(r"http://[\d.]+:(\d+)", started)
        assert found is not None
        port = int(found[1])
        try:
            async with anyio.create_task_group() as tasks:
                for path in PATHS:
                    tasks.start_soon(partial(send, port, path, rate / len(PATHS)))
                await anyio.sleep(2)
                await report(server.pid, port, rounds, seconds)
                tasks.cancel_scope.cancel()
        finally:
            server.terminate()


async def report(pid: int, port: int, rounds: int, seconds: float) -> None:
    without: list[float] = []
    differences: list[float] = []
    for _ in range(rounds):
        idle = await share(pid, seconds)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(view, port)
            await anyio.sleep(1)
            watched = await share(pid, seconds)
            tasks.cancel_scope.cancel()
        await anyio.sleep(0.5)
        without.append(idle)
        differences.append(watched - idle)
        print(f"without {100 * idle:6.2f} %   with {100 * watched:6.2f} %")
    print(
        f"a viewer: {100 * statistics.median(differences):.2f} % of a core (median), beside "
        f"{100 * statistics.median(without):.2f} % without one"
    )


async def share(pid: int, seconds: float) -> float:
    """The share of one core that a process uses for a while."""
    began, used = time.monotonic(), processor_ns(pid)
    await anyio.sleep(seconds)
    return (processor_ns(pid) - used) / 1e9 / (time.monotonic() - began)


def processor_ns(pid: int) -> int:
    """The processor time of a process's main thread, in which its event loop runs."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


async def view(port: int) -> None:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"GET /-/dashboard/feed HTTP/1.1\r\nhost: localhost\r\n\r\n")
        while True:
            await stream.receive()


async def send(port: int, path: str, rate: float) -> None:
    """Sends requests at a rate, on one connection each while it is free."""
    body = json.dumps(3).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    free: list[anyio.abc.SocketStream] = []

    async def call() -> None:
        stream = free.pop() if free else await anyio.connect_tcp("127.0.0.1", port)
        try:
            await stream.send(request)
            answer = b""
            while not answer.partition(b"\r\n\r\n")[2]:
                answer += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):  # it was idle for too long
            await stream.aclose()
        else:
            free.append(stream)

    async with anyio.create_task_group() as tasks:
        due = anyio.current_time()
        while True:
            tasks.start_soon(call)
            due += 1 / rate
            await anyio.sleep_until(due)


if __name__ == "__main__":
    import tempfile

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=300, help="requests a second (%(default)g)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5, help="of a round (%(default)g)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        anyio.run(main, chosen.rate, chosen.rounds, chosen.seconds, Path(made))
