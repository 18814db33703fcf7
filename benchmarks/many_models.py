"""Many models on few replicas: Shoal's option ``models`` beside Ray Serve's ``@serve.multiplexed``.

Requests for several models arrive at random. Two replicas keep two models each. Loading a model and
running a batch are sleeps, so the figures show the decisions, and not the speed of a model.

    python -m benchmarks.many_models
    python -m benchmarks.many_models --peer ray     # in an environment with Ray Serve
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from importlib import import_module
from typing import Any

REPLICAS, MOST = 2, 2
MAX_BATCH_SIZE, WAIT_S = 8, 0.02
LOAD_S, BATCH_S, ITEM_S = 0.2, 0.02, 0.002


def traffic(rate: float, seconds: float, models: int) -> list[tuple[float, str]]:
    """Makes arrivals, of models that are used less and less often."""
    chance = random.Random(1)
    names = [f"model-{number}" for number in range(models)]
    weights = [1 / (number + 1) for number in range(models)]
    at, found = 0.0, list[tuple[float, str]]()
    while (at := at + chance.expovariate(rate)) < seconds:
        found.append((at, chance.choices(names, weights)[0]))
    return found


class Model:
    """The code of both: it counts its loads and its batches."""

    def __init__(self) -> None:
        self.loads = 0
        self.sizes: list[int] = []

    async def load(self) -> None:
        self.loads += 1
        await asyncio.sleep(LOAD_S)

    async def work(self, items: list[int]) -> list[int]:
        self.sizes.append(len(items))
        await asyncio.sleep(BATCH_S + ITEM_S * len(items))
        return items


async def sent(arrivals: list[tuple[float, str]], call: Any) -> list[float]:
    """Sends the requests at their times; returns their latencies."""
    latencies: list[float] = []

    async def one(at: float, model: str) -> None:
        await asyncio.sleep(began_at + at - time.perf_counter())
        await call(model)
        latencies.append(time.perf_counter() - began_at - at)

    for name in sorted({name for _, name in arrivals}):
        await call(name)  # the first loads are not measured
    began_at = time.perf_counter()
    await asyncio.gather(*[one(at, name) for at, name in arrivals])
    return sorted(latencies)


async def of_shoal(arrivals: list[tuple[float, str]]) -> tuple[list[float], int, list[int]]:
    import shoal

    made: list[Code] = []

    class Code(Model):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        async def load_model(self, model: str) -> None:
            await self.load()

        async def __call__(self, items: list[int]) -> list[int]:
            return await self.work(items)

    async with shoal.start() as client:
        config: Any = {
            "num_replicas": REPLICAS,
            "max_batch_size": MAX_BATCH_SIZE,
            "batch_wait_timeout_s": WAIT_S,
            "models": shoal.Models(most=MOST),
        }
        await client.create_backend("b", Code, config=config)
        await client.create_endpoint("b", backend="b")
        handle = await client.get_handle("b")
        latencies = await sent(arrivals, lambda model: handle.options(model=model).call(1))
    return latencies, sum(one.loads for one in made), [size for one in made for size in one.sizes]


def of_ray(arrivals: list[tuple[float, str]]) -> tuple[list[float], int, list[int]]:
    ray: Any = import_module("ray")
    serve: Any = import_module("ray.serve")

    class Code:
        def __init__(self) -> None:
            self.model = Model()

        @serve.multiplexed(max_num_models_per_replica=MOST)  # type: ignore[untyped-decorator]
        async def get_model(self, model: str) -> str:
            await self.model.load()
            return model

        @serve.batch(max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=WAIT_S)  # type: ignore[untyped-decorator]
        async def run_batch(self, items: list[int]) -> list[int]:
            await self.get_model(serve.get_multiplexed_model_id())
            await self.model.work(items)
            return [len(items)] * len(items)

        async def __call__(self, item: int) -> tuple[str, int, int]:
            decorated: Any = self
            size = await decorated.run_batch(item)
            replica = serve.get_replica_context().replica_id.unique_id
            return replica, self.model.loads, size

    class Client:
        """Sends the traffic inside of the cluster, in one event loop."""

        def __init__(self, code: Any) -> None:
            self.code = code

        async def __call__(self, arrivals: list[tuple[float, str]]) -> Any:
            loads: dict[str, int] = {}
            sizes: list[int] = []

            async def call(model: str) -> None:
                remote = self.code.options(multiplexed_model_id=model).remote(1)
                replica, loaded, size = await remote
                loads[replica] = max(loads.get(replica, 0), loaded)
                sizes.append(size)

            return await sent(arrivals, call), sum(loads.values()), sizes

    ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False)
    deployed: Any = serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=100)(Code)
    handle = serve.run(serve.deployment(Client).bind(deployed.bind()))
    latencies, loads, sizes_of_requests = handle.remote(arrivals).result()
    serve.shutdown()
    # Each request reports the size of its batch: a batch of n does so n times.
    batches = sum(1 / size for size in sizes_of_requests)
    mean = round(len(sizes_of_requests) / batches, 2)
    return latencies, loads, [mean]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=["shoal", "ray"], default="shoal")
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--models", type=int, default=6)
    given = parser.parse_args()
    arrivals = traffic(given.rate, given.seconds, given.models)
    if given.peer == "ray":
        latencies, loads, sizes = of_ray(arrivals)
    else:
        latencies, loads, sizes = asyncio.run(of_shoal(arrivals))
    p50, p99 = (latencies[int(len(latencies) * share)] for share in (0.5, 0.99))
    print(
        f"{given.peer:6} {len(latencies)} requests  mean batch {sum(sizes) / len(sizes):.2f}  "
        f"{loads} loads  p50 {p50 * 1e3:.0f} ms  p99 {p99 * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    main()
