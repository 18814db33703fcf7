"""Batchers in the caller's process on asyncio: Shoal, and the libraries that people use for it.

peers.py runs this module in the environment of `make bench-peers`, and prints its figures. Each
library gets the options that its documentation advises for batches of at most 64, and forms them
for the same function. A caller calls again when it has its result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import time
import warnings
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    Call = Callable[[int], Awaitable[int]]
    Batched = Callable[[list[int]], Awaitable[list[int]]]

SIZE: Final = 64
WAIT_S: Final = 0.002
POISON: Final = -1
LEAVES: Final = 3
"""The item whose caller leaves in the fault of that name."""


class Model:
    """The batched function: 2 ms per batch and 0.05 ms per item, or no work at all."""

    def __init__(self, works: bool) -> None:
        self.sizes: list[int] = []
        self.items: Counter[int] = Counter()
        self._works = works

    async def run(self, items: list[int]) -> list[int]:
        """Returns the double of each item, after a wait; fails if an item is `POISON`."""
        self.began(items)
        if self._works:
            await asyncio.sleep(0.002 + 0.00005 * len(items))
        return self.ended(items)

    def run_in_thread(self, items: list[int]) -> list[int]:
        """The same, for batchers that use threads."""
        self.began(items)
        if self._works:
            time.sleep(0.002 + 0.00005 * len(items))
        return self.ended(items)

    def began(self, items: list[int]) -> None:
        """Counts a batch."""
        self.sizes.append(len(items))
        self.items.update(items)

    def ended(self, items: list[int]) -> list[int]:
        """Returns the results."""
        if POISON in items:
            raise ValueError("poison")
        return [2 * item for item in items]


@asynccontextmanager
async def shoal(model: Model) -> AsyncIterator[Call]:
    """Shoal, with its default wait of 0."""
    import shoal

    function = shoal.batch(max_batch_size=SIZE)(model.run)
    async with shoal.open_batchers(function):
        yield function


@asynccontextmanager
async def aiodataloader(model: Model) -> AsyncIterator[Call]:
    """A loader that remembers nothing: as many batches at once as there are."""
    from aiodataloader import DataLoader  # type: ignore[import-not-found, unused-ignore]

    yield DataLoader(model.run, max_batch_size=SIZE, cache=False).load


@asynccontextmanager
async def async_batcher(model: Model) -> AsyncIterator[Call]:
    """async-batcher, which runs one batch at a time."""
    from async_batcher.batcher import AsyncBatcher  # type: ignore[import-not-found, unused-ignore]

    class Batcher(AsyncBatcher):  # type: ignore[misc, unused-ignore]
        async def process_batch(self, batch: list[int]) -> list[int]:
            return await model.run(batch)

    batcher = Batcher(max_batch_size=SIZE, max_queue_time=WAIT_S)
    try:
        yield batcher.process
    finally:
        await batcher.stop(force=True)


@asynccontextmanager
async def batched(model: Model) -> AsyncIterator[Call]:
    """`batched`, without its threshold for small batches."""
    from batched.aio import dynamically  # type: ignore[import-not-found, unused-ignore]

    yield dynamically(model.run, batch_size=SIZE, timeout_ms=WAIT_S * 1e3, small_batch_threshold=0)


@asynccontextmanager
async def bentoml(model: Model) -> AsyncIterator[Call]:
    """BentoML's dispatcher, which `@bentoml.api(batchable=True)` uses, with its defaults."""
    from bentoml._internal.marshal.dispatcher import (  # type: ignore[import-not-found, unused-ignore]
        CorkDispatcher,
    )

    dispatcher = CorkDispatcher(60_000, SIZE, fallback=lambda: None, get_batch_size=lambda _: 1)
    try:
        yield dispatcher(model.run)
    finally:
        dispatcher.shutdown()


@asynccontextmanager
async def caikit(model: Model) -> AsyncIterator[Call]:
    """caikit's batcher, called from as many threads as there are callers, as its server does."""
    from concurrent.futures import ThreadPoolExecutor

    from caikit.runtime.model_management.batcher import (  # type: ignore[import-not-found, unused-ignore]
        Batcher,
    )

    class Module:
        def run(self, item: int) -> int:
            return model.run_in_thread([item])[0]

        def run_batch(self, item: list[int]) -> list[int]:
            return model.run_in_thread(item)

    batcher = Batcher("model", Module(), SIZE, WAIT_S)
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(256)
    try:
        yield lambda item: loop.run_in_executor(threads, lambda: batcher.run(item=item))
    finally:
        batcher.stop()
        threads.shutdown(wait=False)  # some calls never end


@asynccontextmanager
async def ray(model: Model) -> AsyncIterator[Call]:
    """Ray Serve's decorator, without a cluster: it only needs to think that a replica runs it."""
    from ray import serve  # type: ignore[import-not-found, unused-ignore]
    from ray.serve import context  # type: ignore[import-not-found, unused-ignore]
    from ray.serve._private.common import (  # type: ignore[import-not-found, unused-ignore]
        DeploymentID,
        ReplicaID,
    )
    from ray.serve._private.config import (  # type: ignore[import-not-found, unused-ignore]
        DeploymentConfig,
    )
    from ray.serve.schema import ReplicaRank  # type: ignore[import-not-found, unused-ignore]

    context._set_internal_replica_context(
        replica_id=ReplicaID("replica", DeploymentID("model", "app")),
        servable_object=None,
        _deployment_config=DeploymentConfig(max_ongoing_requests=10 * SIZE),
        rank=ReplicaRank(rank=0, node_rank=0, local_rank=0),
        world_size=1,
    )

    @serve.batch(max_batch_size=SIZE, batch_wait_timeout_s=WAIT_S)  # type: ignore[untyped-decorator, unused-ignore]
    async def run(items: list[int]) -> list[int]:
        return await model.run(items)

    yield run


LIBRARIES: Final[dict[str, Callable[[Model], AbstractAsyncContextManager[Call]]]] = {
    "Shoal": shoal,
    "aiodataloader": aiodataloader,
    "async-batcher": async_batcher,
    "batched": batched,
    "BentoML's dispatcher": bentoml,
    "caikit": caikit,
    "Ray's decorator": ray,
}


async def loaded(name: str, callers: int, works: bool, seconds: float) -> dict[str, float]:
    """Loads a library with callers; returns calls a second, their CPU time, and the mean batch."""
    model = Model(works)
    done = 0
    ends = 0.0

    async def caller(call: Call, number: int) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            assert await call(number) == 2 * number
            done += 1

    async def all_callers(call: Call, span: float) -> None:
        nonlocal ends
        ends = time.perf_counter() + span
        async with asyncio.TaskGroup() as tasks:
            for number in range(callers):
                tasks.create_task(caller(call, number))

    async with LIBRARIES[name](model) as call:
        await all_callers(call, seconds / 4)  # warm-up
        done = 0
        model.sizes.clear()
        began, cpu = time.perf_counter(), time.process_time()
        await all_callers(call, seconds)
        took, used = time.perf_counter() - began, time.process_time() - cpu
    return {
        "calls_per_s": done / took,
        "cpu_us": used / done * 1e6,
        "mean_batch": done / max(1, len(model.sizes)),
    }


async def outcomes(name: str, items: list[int], leaver: int | None) -> dict[str, Any]:
    """Calls with the items at once, behind a batch that runs; returns what became of each call."""
    model = Model(works=True)
    async with AsyncExitStack() as stack:
        call = await stack.enter_async_context(LIBRARIES[name](model))
        first = asyncio.ensure_future(call(100))
        await asyncio.sleep(0.001)
        calls = [asyncio.ensure_future(call(item)) for item in items]
        await asyncio.sleep(0)
        if leaver is not None:
            calls[leaver].cancel()
        done, hanging = await asyncio.wait([first, *calls], timeout=5)
        found = Counter(
            "left"
            if one.cancelled()
            else "result"
            if one.exception() is None
            else type(one.exception()).__name__
            for one in done
            if one is not first
        )
        for one in hanging:
            one.cancel()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*hanging, return_exceptions=True), 1)
    ran = None if leaver is None else model.items[items[leaver]] > 0
    return {"outcomes": dict(found), "hanging": len(hanging), "leaver_ran": ran}


def run_for(seconds: float, work: Coroutine[Any, Any, dict[str, float]]) -> dict[str, float]:
    """Runs it in a loop that is not closed, since that would wait for threads that hang."""
    return asyncio.new_event_loop().run_until_complete(asyncio.wait_for(work, seconds))


def main() -> None:
    """Prints the figures of one library as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 64, 256])
    arguments = parser.parse_args()
    logging.disable()
    warnings.simplefilter("ignore")
    name = arguments.library
    found: dict[str, Any] = {"library": name}
    for works in (False, True):
        for callers in arguments.callers:
            figures: dict[str, float] | None = None  # some calls had no result
            with suppress(TimeoutError):
                figures = run_for(
                    10 * arguments.seconds + 10, loaded(name, callers, works, arguments.seconds)
                )
            found[f"{'model' if works else 'no work'}, {callers}"] = figures
    items = list(range(8))
    found["a caller leaves"] = asyncio.run(outcomes(name, items, LEAVES))
    poisoned = [POISON if item == LEAVES else item for item in items]
    found["a poison item"] = asyncio.run(outcomes(name, poisoned, None))
    print(json.dumps(found), flush=True)
    os._exit(0)  # some libraries leave threads that never end


if __name__ == "__main__":
    main()
