"""What a model server costs its ingress, and how large its batches are.

The first part measures the ingress's processor time for a batch of 64 small items, beside a process
replica; rounds are interleaved. The second part has one ingress with 64 clients and two with 32
each, which call again at once or after a pause, and counts the items in the model server's batches.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import random
import statistics
import subprocess
import tempfile
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import anyio

import shoal  # noqa: TC001 - annotations are looked at
from benchmarks.report import print_table
from shoal.batching.current import Identity, running_batch, setting
from shoal.core.request import Batch, DispatchReason
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, ReplicaOptions
from shoal.replicas.process.replica import ProcessReplica
from shoal.replicas.remote.replica import RemoteReplica
from shoal.serving.controller.controller import Controller
from shoal.testing.policies import make_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.replicas.contract import Replica


ITEMS: Final = 64
SMALL: Final = [{"text": "a few words", "id": number} for number in range(ITEMS)]
ROUNDS: Final = 7
CALLS: Final = 150
PAUSES_S: Final = (0.0, 0.05, 0.2)
STREAMS: Final = 16
STEP_S: Final = 0.006
CONTINUOUS: Final[dict[str, Any]] = {
    "fill": "continuous",
    "streams": True,
    "max_batch_size": STREAMS,
}
APP: Final = """
import anyio
import shoal  # noqa: TC001 - annotations are looked at

from benchmarks.model_servers import CONTINUOUS

app = shoal.App()


async def sizes(items: list[object]) -> list[int]:
    await anyio.sleep(0.02 + 0.0002 * len(items))
    return [len(items)] * len(items)


async def nothing(items: list[object]) -> list[int]:
    return [0] * len(items)


app.backend("sizes", sizes, max_batch_size=64)
app.backend("nothing", nothing, max_batch_size=64)
app.backend("tokens", "benchmarks.model_servers:tokens", **CONTINUOUS)
"""


async def nothing(items: list[object]) -> list[int]:
    return [0] * len(items)


async def tokens(batch: shoal.OpenBatch[object, str]) -> None:
    """Sends a token to each request in each step, and never ends."""
    async for _ in batch.steps():
        await anyio.sleep(STEP_S)
        await batch.send(dict.fromkeys(batch.active, "token"))


async def played(replica: Replica, tasks: Any) -> Replica:
    await tasks.start(serve, replica)
    return replica


async def serve(replica: Replica, *, task_status: Any) -> None:
    await replica.serve(task_status=task_status)


async def cost_ms(replica: Replica) -> float:
    """Returns this process's processor time for a batch, in milliseconds."""
    batch = Batch(7, DispatchReason.FULL, [])
    # As calls through one handle have it.
    metadata = {"context": "python", "endpoint": "nothing"}
    batch.admit([make_request(item, metadata=metadata) for item in SMALL])
    with setting(running_batch, batch):
        began = time.process_time()
        for _ in range(CALLS):
            await replica.run("__call__", SMALL)
        return (time.process_time() - began) / CALLS * 1000


async def costs(address: str) -> list[float]:
    """Returns the medians for a process replica and for a remote one."""
    options = ReplicaOptions()
    identity = Identity("nothing", "nothing#0")
    definition = Definition("benchmarks.model_servers:nothing")
    process = ProcessReplica(Blueprint(identity=identity, definition=definition, options=options))
    remote = RemoteReplica(
        Blueprint(identity=identity, definition=definition, options=options, address=address)
    )
    found: list[list[float]] = [[], []]
    async with anyio.create_task_group() as tasks:
        replicas: tuple[Replica, ...] = (process, remote)
        for replica in replicas:
            await played(replica, tasks)
            await cost_ms(replica)
        for _ in range(ROUNDS):
            for one, replica in zip(found, replicas, strict=True):
                one.append(await cost_ms(replica))
        process.stop()
        remote.stop()
    return [statistics.median(one) for one in found]


async def call_on(handle: Any, pause_s: float, until: float, sizes: list[int]) -> None:
    while time.monotonic() < until:
        sizes.append(await handle.call("x"))
        if pause_s:
            await anyio.sleep(random.expovariate(1 / pause_s))


async def mean_batch(address: str, ingresses: int, pause_s: float, lasts_s: float) -> float:
    sizes: list[int] = []
    async with AsyncExitStack() as stack:
        handles: list[Any] = []
        for _ in range(ingresses):
            ingress = await stack.enter_async_context(Controller())
            config = {"placement": "remote", "model_servers": address}
            await ingress.create_backend("sizes", "nowhere:Nothing", config=config)
            await ingress.create_endpoint("sizes", backend="sizes")
            handles.append(await ingress.get_handle("sizes"))
        until = time.monotonic() + lasts_s
        async with anyio.create_task_group() as tasks:
            for number in range(64):
                handle = handles[number % ingresses]
                tasks.start_soon(call_on, handle, pause_s, until, sizes)
    # Each item tells the size of its batch.
    settled = sizes[len(sizes) // 4 :]
    return len(settled) / sum(1 / size for size in settled)


async def token_costs(config: dict[str, Any], lasts_s: float) -> tuple[float, float]:
    """Returns tokens/s and this process's processor time for a token, in microseconds."""
    count = 0

    async def read(handle: Any) -> None:
        nonlocal count
        async with handle.stream("x") as stream:
            async for _ in stream:
                count += 1

    async with Controller() as controller:
        code = "benchmarks.model_servers:tokens"
        await controller.create_backend("tokens", code, config=config)
        await controller.create_endpoint("tokens", backend="tokens")
        handle = await controller.get_handle("tokens")
        async with anyio.create_task_group() as tasks:
            for _ in range(STREAMS):
                tasks.start_soon(read, handle)
            await anyio.sleep(0.5)
            count, began = 0, time.process_time()
            await anyio.sleep(lasts_s)
            used_s, found = time.process_time() - began, count
            tasks.cancel_scope.cancel()
    return found / lasts_s, used_s / found * 1e6


def model_server() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(APP)
        address = f"unix:{folder}/models.sock"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "shoal", "serve", f"{folder}/app.py", "--port", "0"),
                *("--model-server", address, "--event-loop", "asyncio", "--log-level", "error"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            while "to other Shoal servers" not in (line := process.stderr.readline()):
                if not line:
                    raise SystemExit("the model server did not start")
            yield address
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    for address in model_server():
        rows: list[list[str]] = []
        for loop in ("trio", "asyncio"):
            process_ms, remote_ms = anyio.run(costs, address, backend=loop)
            rows.append([loop, f"{process_ms:.3f} ms", f"{remote_ms:.3f} ms"])
        print_table(["event loop", "process", "remote"], rows)
        rows = []
        placements = {
            "process": {"placement": "process", **CONTINUOUS},
            "remote": {"placement": "remote", "model_servers": address},
        }
        for loop in ("trio", "asyncio"):
            for name, config in placements.items():
                per_s, cost_us = anyio.run(token_costs, config, 3.0, backend=loop)
                rows.append([loop, name, f"{per_s:,.0f}", f"{cost_us:.0f} µs"])
        print_table(["event loop", "placement", "tokens/s", "a token"], rows)
        rows = []
        for pause_s in PAUSES_S:
            one = anyio.run(mean_batch, address, 1, pause_s, 4.0, backend="asyncio")
            two = anyio.run(mean_batch, address, 2, pause_s, 4.0, backend="asyncio")
            rows.append([f"{pause_s:g} s", f"{one:.1f}", f"{two:.1f}", f"{two / one:.2f}"])
        print_table(["pause", "1 ingress, 64 clients", "2 with 32 each", "ratio"], rows)


if __name__ == "__main__":
    main()
