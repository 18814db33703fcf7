"""Simulations: they match the engine under all options, and report the results."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from core.played_traces import LOAD_S, Item, assert_the_same, played, played_by_callers
from shoal.core.options.options import BatchOptions
from shoal.core.options.records import LatencyTarget, Limit, Models, QueuePolicy
from shoal.core.policy import Dispatch, Pressure, Wait, WholeQueuePolicy
from shoal.core.request import DispatchReason, Request
from shoal.core.simulation import simulate
from shoal.core.simulation_results import Arrival, ClosedLoop, Linear, Outcome, Simulation
from shoal.testing import run_virtually

pytestmark = pytest.mark.slow

# They vary, so that no two batches end at one instant, when the order in an event loop is random.
RUN_TIME = Linear(0.0113, 0.00171, jitter=0.05)


def compared(
    backend: str,
    trace: Sequence[Arrival],
    options: dict[str, Any],
    run_time: Any = RUN_TIME,
    replicas: int | None = None,
) -> Simulation:
    """Simulates a trace, runs it on the engine, and compares the two."""
    simulation = simulate(
        trace, BatchOptions(**options), run_time, replicas=replicas, load_s=LOAD_S
    )
    drains = [
        batch.dispatched_at for batch in simulation.batches if batch.reason is DispatchReason.DRAIN
    ]
    drain_at = min([*drains, 1e6])
    engine = run_virtually(
        played, trace, options, run_time.sampler(), drain_at, replicas, backend=backend
    )
    assert_the_same(simulation, engine)
    if replicas is not None:
        # Batches that time out while their model is loaded never get to the handler.
        replicas_of = {id_: simulation.batches[id_ - 1].replica for id_ in engine.replicas}
        assert replicas_of == engine.replicas
    return simulation


def some_trace(
    *, rate: float = 250.0, requests: int = 300, seed: int = 2, **call_options: Sequence[Any]
) -> list[Arrival]:
    """Makes a trace of calls in bursts, each with randomly chosen call options."""
    chance = random.Random(seed)
    at = 0.0
    trace = []
    for place in range(requests):
        at += chance.expovariate(rate * chance.choice([0.3, 1, 5]))
        item = Item(place, chance.choice([1, 2, 3.5]), chance.randrange(3))
        chosen = {name: chance.choice(values) for name, values in call_options.items()}
        trace.append(Arrival(at, item, **chosen))
    return trace


class Pairs(WholeQueuePolicy):
    """A user's policy: two at a time, the newest first."""

    def choose(
        self, queue: Sequence[Request], now: float, pressure: Pressure | None
    ) -> tuple[Sequence[Request], DispatchReason] | Wait:
        if len(queue) < 2 and pressure is None:
            until = queue[0].arrived_at + 0.05
            return Wait(until) if until > now else (queue, DispatchReason.TIMER)
        return queue[:-3:-1], DispatchReason.FULL if pressure is None else pressure.reason


def cost(item: Item) -> float:
    return item.cost


def bucket(item: Item) -> int:
    return item.bucket


EIGHT = {"max_batch_size": 8}
FOUR = {"max_batch_size": 4}
OF_FIVE = {**FOUR, "max_queued_requests": 5}
SIZES = {**EIGHT, "allowed_batch_sizes": (2, 4, 8)}
LEVELS = {**FOUR, "priority_levels": 3, "priority_aging_s": 0.05}
WAITS = {"batch_wait_timeout_s": 0.0207}
LIMITED = {"limit": Limit(batches_per_s=33, burst_s=0.05)}
TARGET = {"max_batch_size": 16, "adaptive": LatencyTarget(p99_s=0.08)}
OF_EACH_LEVEL = {
    1: QueuePolicy(batch_wait_timeout_s=0.0),
    2: QueuePolicy(timeout_s=0.0407),
    3: QueuePolicy(timeout_s=0.0203, timeout_action="delay", max_queued_requests=4),
}
SCENES: dict[str, dict[str, Any]] = {
    "what is there": EIGHT,
    "a window": {**EIGHT, **WAITS},
    "three slots": {**FOUR, **WAITS, "max_concurrent_batches": 3},
    "any number of slots": {**FOUR, **WAITS, "max_concurrent_batches": None},
    "a bounded line": OF_FIVE,
    "no line": {**FOUR, "max_queued_requests": 0},
    "a line outside": {**OF_FIVE, "overload": "wait"},
    "shedding the oldest": {**OF_FIVE, "overload": "shed_oldest", **LEVELS},
    "shedding the lowest": {**OF_FIVE, "overload": "shed_lowest", **LEVELS},
    "until idle": {"max_batch_size": 16, "idle_timeout_s": 0.0031, "batch_wait_timeout_s": 0.0403},
    "costs": {"max_batch_size": 9, **WAITS, "batch_size_fn": cost},
    "costs above the bound": {"max_batch_size": 3, "batch_size_fn": cost},
    "buckets": {"max_batch_size": 6, **WAITS, "bucket_by": bucket},
    "sizes, up": SIZES,
    "sizes, down": {**SIZES, "padding": "down"},
    "sizes, by cost": {**SIZES, "padding": "cost"},
    "preferred sizes": {**EIGHT, **WAITS, "preferred_batch_sizes": (4, 6)},
    "priorities": LEVELS,
    "priorities apart": {**LEVELS, **WAITS, "priority_mixing": "isolate"},
    "levels that wait differently": {**LEVELS, **WAITS, "queue_policies": OF_EACH_LEVEL},
    "deadlines": {**FOUR, "batch_wait_timeout_s": 0.0301},
    "deadlines and a bounded line": {**FOUR, "max_queued_requests": 2},
    "the earliest deadline": {**FOUR, "order": "deadline"},
    "a time for every call": {**FOUR, "request_timeout_s": 0.0531},
    "nobody late": {**FOUR, "refuse_late": True},
    "a handler that is cut short": {**EIGHT, "handler_timeout_s": 0.0217},
    "a handler that goes on alone": {**EIGHT, "cancel_abandoned": False},
    "a latency target": TARGET,
    "a latency target for two slots": {**TARGET, "max_concurrent_batches": 2},
    "a limited number of batches": {**FOUR, "limit": Limit(batches_per_s=30)},
    "a limited cost": (
        {"max_batch_size": 9, **WAITS, "batch_size_fn": cost, "max_concurrent_batches": 3}
        | {"limit": Limit(cost_per_min=12_000, burst_s=0.1)}
    ),
    "a limit and a bounded line": {**OF_FIVE, "max_concurrent_batches": 2, **LIMITED},
    "a limit and a line outside": {**OF_FIVE, "overload": "wait", **LIMITED},
    "a limit and buckets": {**EIGHT, **WAITS, "bucket_by": bucket, **LIMITED},
    "a limit and deadlines": {**FOUR, "batch_wait_timeout_s": 0.0301, **LIMITED},
    "a limit and a rule of one's own": {**FOUR, "policy": lambda _options: Pairs(), **LIMITED},
    "a rule of one's own": {**FOUR, "policy": lambda _options: Pairs()},
    "nearly everything": (
        {**LEVELS, **WAITS, "max_batch_size": 9, "max_concurrent_batches": 2}
        | {"max_queued_requests": 12, "overload": "shed_lowest", "order": "deadline"}
        | {"batch_size_fn": cost, "bucket_by": bucket}
        | {"idle_timeout_s": 0.0071, "request_timeout_s": 0.2003}
        | {"limit": Limit(batches_per_s=40, cost_per_min=20_000)}
    ),
}
TIMEOUTS_S: dict[str, Sequence[float | None]] = {
    "deadlines": (None, 0.0, 0.0237, 0.0601),
    "a limit and deadlines": (None, 0.0, 0.0237, 0.0601),
    "deadlines and a bounded line": (None, 0.0, 0.0601),
    "the earliest deadline": (None, 0.0437, 0.0871),
    "nobody late": (None, 0.0237, 0.0601),
    "a handler that is cut short": (None, 0.0437),
    "a handler that goes on alone": (0.0137, 0.0437),
    "nearly everything": (None, 0.0601, 0.1007),
}


# The engine is the same on each loop; these are scenes in which the loop cancels or wakes much.
ON_ASYNCIO_TOO = (
    *("three slots", "a line outside", "until idle", "deadlines and a bounded line"),
    *("a limit and deadlines", "a handler that is cut short", "nearly everything"),
)


@pytest.mark.parametrize(
    ("scene", "backend"),
    [*((scene, "trio") for scene in SCENES), *((scene, "asyncio") for scene in ON_ASYNCIO_TOO)],
)
def test_a_simulation_does_what_the_engine_does(scene, backend):
    options = SCENES[scene]
    asked = {"timeout_s": TIMEOUTS_S[scene]} if scene in TIMEOUTS_S else {}
    if "priority_levels" in options:
        asked["priority"] = (None, 1, 2, 3)
    if "queue_policies" in options:
        asked["queue_timeout_s"] = (None, 0.0301)
    compared(backend, some_trace(**asked), options)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_batch_is_not_limited_by_a_wait_in_which_its_queue_was_left(backend):
    options = {"limit": Limit(batches_per_s=10)}
    first, later, last = (Item(place, 1, 0) for place in range(3))
    trace = [Arrival(0, first), Arrival(0.02, later, queue_timeout_s=0.03), Arrival(0.5, last)]
    simulation = compared(backend, trace, options)
    assert simulation.outcomes[1] is Outcome.EXPIRED
    assert simulation.batches[1].reason is DispatchReason.TIMER


KEYS = (None, *(f"user-{number}" for number in range(20)))
STICKY: dict[str, dict[str, Any]] = {
    "replicas without keys": FOUR,
    "what is there": {**FOUR, "sticky_load_factor": 1.5},
    "balanced": {**FOUR, "sticky_load_factor": 1},
    "always waiting": {**FOUR, "sticky_load_factor": 1000},
    "a window": {**FOUR, **WAITS, "sticky_load_factor": 2},
    "two slots for each": {**FOUR, "max_concurrent_batches": 2, "sticky_load_factor": 1.2},
    "nobody late": {**FOUR, "refuse_late": True, "sticky_load_factor": 1.5},
    "a latency target": {**TARGET, "sticky_load_factor": 1.5},
    "levels that wait differently": (
        {**LEVELS, **WAITS, "queue_policies": OF_EACH_LEVEL, "sticky_load_factor": 1.5}
    ),
    "nearly everything": {**SCENES["nearly everything"], "sticky_load_factor": 1.5},
}


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("scene", STICKY)
def test_a_simulation_chooses_the_replica_that_the_engine_chooses(scene, backend):
    options = STICKY[scene]
    asked = {"timeout_s": TIMEOUTS_S[scene]} if scene in TIMEOUTS_S else {}
    if "priority_levels" in options:
        asked["priority"] = (None, 1, 2, 3)
    simulation = compared(
        backend, some_trace(rate=400, shard_key=KEYS, **asked), options, replicas=3
    )
    assert {batch.replica for batch in simulation.batches} == {1, 2, 3}


MODELS = (None, *(f"model-{number}" for number in range(7)))
MULTIPLEXED: dict[str, dict[str, Any]] = {
    "what is there": {**FOUR, "models": Models(most=2)},
    "a long wait": {**FOUR, "models": Models(most=1, max_switch_wait_s=0.2003)},
    "no wait": {**FOUR, "models": Models(most=2, max_switch_wait_s=0)},
    "a window": {**FOUR, **WAITS, "models": Models(most=2, max_switch_wait_s=0.0503)},
    "three slots for each": (
        {**FOUR, "max_concurrent_batches": 3, "models": Models(most=2, max_switch_wait_s=0.0403)}
    ),
    "cut short": {**FOUR, "handler_timeout_s": 0.0403, "models": Models(most=2)},
    "nearly everything": {**SCENES["nearly everything"], "models": Models(most=2)},
}


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("scene", MULTIPLEXED)
def test_a_simulation_loads_the_models_that_the_engine_loads(scene, backend):
    options = MULTIPLEXED[scene]
    asked = {"priority": (None, 1, 2, 3)} if "priority_levels" in options else {}
    simulation = compared(backend, some_trace(model=MODELS, **asked), options, replicas=3)
    assert simulation.loads > 5


_MODELS = st.builds(
    Models, most=st.integers(1, 4), max_switch_wait_s=st.sampled_from([0, 0.0503, 0.2003])
)
_FACTORS = st.sampled_from([1, 1.2, 2, 1000])


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([*SCENES]),
    st.one_of(
        st.tuples(st.just("models"), _MODELS, st.just({"model": MODELS, "rate": 60.0})),
        st.tuples(
            st.just("sticky_load_factor"), _FACTORS, st.just({"shard_key": KEYS, "rate": 80.0})
        ),
    ),
    st.integers(1, 5),
    st.integers(0, 10_000),
)
@example(
    "a latency target",
    ("models", Models(most=1, max_switch_wait_s=0), {"model": MODELS, "rate": 60.0}),
    1,
    1,
)
def test_a_simulation_chooses_the_replicas_and_models_that_the_engine_chooses_at_random(
    scene, preference, replicas, seed
):
    name, value, traffic = preference
    options = {**SCENES[scene], name: value}
    assume(options.get("max_queued_requests") != 0 and "policy" not in options)
    assume(options.get("max_concurrent_batches", 1) is not None)
    asked = {"priority": (None, 1, 2, 3)} if "priority_levels" in options else {}
    traffic = {**traffic, "rate": traffic["rate"] * replicas}
    compared(
        "trio", some_trace(requests=80, seed=seed, **traffic, **asked), options, replicas=replicas
    )


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    ("callers", "options"),
    [
        (16, {"max_batch_size": 32}),
        (32, {"max_batch_size": 32, "max_concurrent_batches": 2}),
        (16, {"max_batch_size": 32, "batch_wait_timeout_s": 0.0013}),
        (16, {"max_batch_size": 32, "priority_levels": 2, "request_timeout_s": 5}),
    ],
    ids=["one batch", "two slots", "a window", "ranked, with deadlines"],
)
def test_callers_are_gathered_again_in_a_simulation_as_by_the_engine(backend, callers, options):
    loop = ClosedLoop(callers, 0.001, 1, jitter=0.3, seed=2)
    run_time = Linear(0.0113, 0.00021, jitter=0.05, seed=1)
    simulation = simulate(loop, BatchOptions(**options), run_time)
    engine = run_virtually(played_by_callers, loop, options, run_time.sampler(), backend=backend)
    assert_the_same(simulation, engine)
    assert simulation.reasons[DispatchReason.REGATHER] >= 10


# What a simulation tells


def test_latencies_and_waits_are_told_by_place_in_the_trace_where_there_was_an_answer():
    options = BatchOptions(max_batch_size=1, max_queued_requests=1)
    simulation = simulate([0, 0.25, 0.5], options, Linear(1.0, 0.0))
    assert simulation.count[Outcome.REJECTED] == 1
    latencies, waits = list(simulation.latency_s), list(simulation.waits_s())
    assert latencies == pytest.approx([1.0, 1.75, math.nan], nan_ok=True)
    assert waits == pytest.approx([0.0, 0.75, math.nan], nan_ok=True)
    figures = (simulation.duration_s, simulation.busy_share, simulation.mean_batch)
    assert figures == (2.0, 1.0, 1.0)
    assert simulation.percentile_s(100) == 1.75


@pytest.mark.parametrize(
    ("percent", "latency_s"), [(0, 1.0), (1, 1.0), (50, 2.0), (75, 3.0), (76, 4.0), (100, 4.0)]
)
def test_a_percentile_is_the_latency_of_a_request(percent, latency_s):
    simulation = simulate([0] * 4, BatchOptions(max_batch_size=1), Linear(1.0, 0.0))
    assert simulation.percentile_s(percent) == latency_s


def test_an_empty_trace_makes_no_batch():
    simulation = simulate([], BatchOptions(), RUN_TIME)
    assert (simulation.batches, simulation.duration_s, simulation.busy_share) == ([], 0.0, 0.0)
    assert math.isnan(simulation.percentile_s(99))
    assert math.isnan(simulation.mean_batch)


def test_what_would_wait_for_ever_is_drained_when_nobody_comes_any_more():
    options = BatchOptions(max_batch_size=2, batch_wait_timeout_s=None)
    simulation = simulate([0, 1, 2], options, Linear(5.0, 0.0))
    assert [(batch.dispatched_at, batch.reason) for batch in simulation.batches] == [
        (1, DispatchReason.FULL),
        (6, DispatchReason.DRAIN),
    ]
    assert simulation.reasons[DispatchReason.DRAIN] == 1


def test_a_batch_that_everybody_leaves_frees_its_slot():
    trace = [Arrival(0, timeout_s=1.0), Arrival(0.5, timeout_s=3.0)]
    simulation = simulate(trace, BatchOptions(max_batch_size=1), Linear(2.0, 0.0))
    assert [(batch.dispatched_at, batch.run_s) for batch in simulation.batches] == [
        (0, 1.0),
        (1.0, 2.0),
    ]
    assert simulation.outcomes == [Outcome.EXPIRED, Outcome.FINISHED]


def test_times_that_vary_are_the_same_in_every_simulation():
    model = Linear(0.01, 0.001, jitter=0.2, seed=3)
    trace = [arrival.at for arrival in some_trace()]
    first, second = (simulate(trace, BatchOptions(), model) for _ in range(2))
    assert first.batches == second.batches
    ratios = [batch.run_s / model(batch.size) for batch in first.batches]
    assert 0.1 < math.sqrt(sum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios)) < 0.3
    other = simulate(trace, BatchOptions(), Linear(0.01, 0.001, jitter=0.2, seed=4))
    assert other.batches != first.batches


# What can't be simulated


@pytest.mark.parametrize("at", [0.5, math.nan, math.inf])
def test_the_times_of_a_trace_ascend(at):
    with pytest.raises(ValueError, match=f"request 1 arrives at {at} s, after one at 1.0 s"):
        simulate([1.0, at], BatchOptions(), RUN_TIME)


@pytest.mark.parametrize("run_s", [-1.0, math.nan, math.inf])
def test_a_model_must_return_a_time(run_s):
    with pytest.raises(ValueError, match="for a batch of size 2 it returned"):
        simulate([0, 0], BatchOptions(), lambda _size: run_s)


def test_items_that_are_split_are_refused():
    options = BatchOptions(
        batch_size_fn=cost, split=lambda item, _room: [item], join=lambda results: results
    )
    with pytest.raises(ValueError, match="split can't be simulated"):
        simulate([0], options, RUN_TIME)


class Never(WholeQueuePolicy):
    def choose(self, queue: Sequence[Request], now: float, pressure: Pressure | None) -> Wait:
        return Wait(None)


def test_a_rule_that_never_makes_a_batch_is_told():
    options = BatchOptions(policy=lambda _options: Never())
    with pytest.raises(RuntimeError, match="forms no batch"):
        simulate([0], options, RUN_TIME)


class Polls(Pairs):
    """It looks at an empty queue again and again."""

    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        return super().decide(now, pressure) if list(self.waiting()) else Wait(now + 0.01)


def test_a_rule_that_polls_an_empty_queue_does_not_keep_a_simulation_from_its_end():
    trace = [0.0, 0.001, 0.1, 0.101]
    polling = simulate(trace, BatchOptions(policy=lambda _options: Polls()), RUN_TIME)
    waiting = simulate(trace, BatchOptions(policy=lambda _options: Pairs()), RUN_TIME)
    assert list(polling.latency_s) == list(waiting.latency_s)
