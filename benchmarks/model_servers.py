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
APP: Final = """
import anyio
import shoal

app = shoal.App()


async def sizes(items: list[object]) -> list[int]:
    await anyio.sleep(0.02 + 0.0002 * len(items))
    return [len(items)] * len(items)


async def nothing(items: list[object]) -> list[int]:
    return [0] * len(items)


app.backend("sizes", sizes, max_batch_size=64)
app.backend("nothing", nothing, max_batch_size=64)
"""


async def nothing(items: list[object]) -> list[int]:
    return [0] * len(items)


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
        for pause_s in PAUSES_S:
            one = anyio.run(mean_batch, address, 1, pause_s, 4.0, backend="asyncio")
            two = anyio.run(mean_batch, address, 2, pause_s, 4.0, backend="asyncio")
            rows.append([f"{pause_s:g} s", f"{one:.1f}", f"{two:.1f}", f"{two / one:.2f}"])
        print_table(["pause", "1 ingress, 64 clients", "2 with 32 each", "ratio"], rows)


if __name__ == "__main__":
    main()
