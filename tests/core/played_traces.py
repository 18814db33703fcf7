"""Batchers over the traces of simulations, and the comparison of the two."""

from __future__ import annotations

import inspect
import itertools
import math
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest

import shoal
from shoal.core.events import BatchObserver
from shoal.core.simulation_results import Arrival, Outcome
from shoal.errors import ItemTooLarge
from shoal.replicas.code.instance import Method
from shoal.serving.backends.method_batcher import closed_handler
from shoal.serving.backends.models import LOAD, ModelLoader
from shoal.serving.backends.pool import Pool, PoolCapacity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.core.request import DispatchReason
    from shoal.core.simulation_results import ClosedLoop, Simulation

SAME_TIME_S = 1e-6
LOAD_S = 0.0317


class Item(NamedTuple):
    place: int
    cost: float
    bucket: int


class Engine:
    """What the engine did with a trace, in the terms of a simulation."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.latency_s: dict[int, float] = {}
        self.batches: list[tuple[float, DispatchReason, tuple[int, ...]]] = []
        self.replicas: dict[int, int] = {}  # by the batch
        self.run_s: dict[int, float] = {}


class Began(BatchObserver):
    """Notes the batches when they are dispatched: they may still wait for a model."""

    def __init__(self, seen: Engine, began_at: float, run_time: Callable[[float], float]) -> None:
        self._seen = seen
        self._run_time = run_time
        self._began_at = began_at

    def batch_began(self, batcher: str, batch: shoal.Batch, now: float) -> None:
        places = tuple(request.item.place for request in batch.requests)
        self._seen.run_s[batch.id] = self._run_time(batch.load)
        self._seen.batches.append((now - self._began_at, batch.reason, places))


class InThisTask:
    """Stands in for a replica: it calls a function in the task of the batch."""

    takes_work = True

    def __init__(self, tag: str, function: Callable[[list[Any]], Any]) -> None:
        self.tag = tag
        self._function = function

    async def run(self, method: str, items: list[Any]) -> Any:
        if method == LOAD:
            return await anyio.sleep(LOAD_S)
        replica.set(int(self.tag))
        return await self._function(items)


replica: ContextVar[int] = ContextVar("replica", default=1)


def on_replicas(
    function: Callable[[list[Any]], Any],
    options: dict[str, Any],
    replicas: int,
    start_task: Callable[..., None],
) -> shoal.Batcher[Any]:
    """Makes a batcher whose batches run on the replicas of a pool, as those of a backend."""
    pool = Pool("b")
    slots = options.get("max_concurrent_batches", 1)
    for number in range(1, replicas + 1):
        stand_in: Any = InThisTask(str(number), function)
        pool.add(stand_in, slots)
    method = Method("__call__", inspect.Signature([ITEM]), streams=False, batched=True)
    models = ModelLoader(pool, start_task, lambda: False, lambda: options.get("models"))
    return shoal.Batcher(
        closed_handler("b", method, pool, lambda: 0, models),
        capacity=PoolCapacity(pool, options["max_batch_size"]),
        **{**options, "max_concurrent_batches": slots * replicas},
    )


ITEM = inspect.Parameter("item", inspect.Parameter.POSITIONAL_OR_KEYWORD)


async def played(
    trace: Sequence[Arrival],
    options: dict[str, Any],
    run_time: Callable[[float], float],
    drain_at: float,
    replicas: int | None = None,
) -> Engine:
    """Runs a trace against a batcher, each call in its own task."""
    seen = Engine()
    began_at = anyio.current_time()

    async def handler(items: list[Item]) -> list[Item]:
        seen.replicas[shoal.current_batch().id] = replica.get()
        await anyio.sleep(seen.run_s[shoal.current_batch().id])
        return items

    async with AsyncExitStack() as stack:
        if replicas is None:
            batcher = shoal.Batcher(handler, **options)
        else:
            loads = await stack.enter_async_context(anyio.create_task_group())
            batcher = on_replicas(handler, options, replicas, loads.start_soon)
        batcher.observers.add(Began(seen, began_at, run_time))
        call = await stack.enter_async_context(batcher)

        async def caller(arrival: Arrival) -> None:
            call_options = {
                name: value
                for name in ("priority", "timeout_s", "queue_timeout_s")
                if (value := getattr(arrival, name)) is not None
            }
            if arrival.shard_key is not None or arrival.model is not None:
                names = {"shard_key": arrival.shard_key, "model": arrival.model}
                call_options["metadata"] = {k: one for k, one in names.items() if one is not None}
            await anyio.sleep_until(began_at + arrival.at)
            place = arrival.item.place
            try:
                await (call.options(**call_options) if call_options else call)(arrival.item)
            except shoal.errors.Overloaded as error:
                shed = "shed" in str(error)
                seen.outcomes[place] = Outcome.SHED if shed else Outcome.REJECTED
            except ItemTooLarge:
                seen.outcomes[place] = Outcome.REJECTED
            except shoal.errors.DeadlineExceeded:
                seen.outcomes[place] = Outcome.EXPIRED
            except shoal.errors.HandlerTimeout:
                seen.outcomes[place] = Outcome.FAILED
            else:
                seen.outcomes[place] = Outcome.FINISHED
                seen.latency_s[place] = anyio.current_time() - began_at - arrival.at

        async with anyio.create_task_group() as tasks:
            for arrival in trace:
                tasks.start_soon(caller, arrival)
            await anyio.sleep_until(began_at + drain_at)
            batcher.drain()
    return seen


async def played_by_callers(
    loop: ClosedLoop, options: dict[str, Any], run_time: Callable[[float], float]
) -> Engine:
    """Runs callers that call again and again against a batcher, each in its own task."""
    seen = Engine()
    began_at = anyio.current_time()
    thinks = loop.sampler()
    places = itertools.count()

    async def handler(items: list[int]) -> list[int]:
        at = anyio.current_time() - began_at
        seen.batches.append((at, shoal.current_batch().reason, tuple(items)))
        await anyio.sleep(run_time(len(items)))
        return items

    async with shoal.Batcher(handler, **options) as call, anyio.create_task_group() as tasks:

        async def caller(at: float) -> None:
            while at < loop.duration_s:
                await anyio.sleep_until(began_at + at)
                place = next(places)
                await call(place)
                now = anyio.current_time() - began_at
                seen.outcomes[place] = Outcome.FINISHED
                seen.latency_s[place] = now - at
                # Whoever is first takes the next one: callers are alike.
                at = now + thinks()

        for _ in range(loop.callers):
            tasks.start_soon(caller, thinks())
    return seen


def assert_the_same(simulation: Simulation, engine: Engine) -> None:
    ours = [(batch.reason, batch.requests) for batch in simulation.batches]
    theirs = [(reason, places) for _, reason, places in engine.batches]
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        assert one == other, f"batch {number}"
    assert len(ours) == len(theirs)
    dispatch_at = [batch.dispatched_at for batch in simulation.batches]
    assert dispatch_at == pytest.approx([at for at, _, _ in engine.batches], abs=SAME_TIME_S)
    outcomes = [engine.outcomes[place] for place in range(len(simulation.outcomes))]
    assert simulation.outcomes == outcomes
    latency_s = [engine.latency_s.get(place, math.nan) for place in range(len(outcomes))]
    assert list(simulation.latency_s) == pytest.approx(latency_s, abs=SAME_TIME_S, nan_ok=True)
