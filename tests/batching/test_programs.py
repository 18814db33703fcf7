"""Random programs in two vocabularies, each against its model; `program_world` says how."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, NamedTuple

import anyio
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shoal
from base_exceptions import Panic
from batching.callers import outcome
from batching.open_program_model import OpenWorld, open_programs
from batching.policy_model import PolicyWorld
from batching.policy_programs import Asks, Calls, Map, Shape, policy_programs
from batching.program_world import Advance, Cancel, Configure, Op, Program, World, run_program
from batching.scenes import settle
from shoal.testing import run_virtually

SOAK_PROGRAMS = int(os.environ.get("SHOAL_SOAK_PROGRAMS", "20000"))


class Vocabulary(NamedTuple):
    """What programs may say, and what must hold then; the world is told by the harness."""

    programs: Any
    world: type[World]
    examples: int


VOCABULARIES = {
    "policies": Vocabulary(policy_programs, PolicyWorld, 25),
    "open": Vocabulary(open_programs, OpenWorld, 15),
}
common = settings(report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
long = settings(common, max_examples=SOAK_PROGRAMS // 4, print_blob=True)


def calls(count: int, kind: str = "ok", **asks: Any) -> Calls:
    return Calls((Shape(kind),) * count, Asks(**asks))


def mapped(*kinds: str, **asks: Any) -> Map:
    return Map(tuple(map(Shape, kinds)), True, Asks(**asks))


# Short programs that broke a promise once, by the promise.
FOUND: dict[str, Program] = {
    "a map is answered after its last batch": Program(
        False, {"max_batch_size": 2}, [mapped("slot", "slot", "ok", "ok"), Advance(1)]
    ),
    "an item is not failed for one whose caller has left": Program(
        False,
        {"isolate_errors": True, "batch_wait_timeout_s": 0.5},
        [Op.HOLD, calls(1, "raise"), Op.SETTLE, calls(1), Advance(1), Cancel(0)],
    ),
    "fewer slots make less room": Program(
        False,
        {"max_batch_size": 2, "max_queued_requests": 0, "max_concurrent_batches": 3},
        [
            Op.HOLD,
            Op.SETTLE,
            Configure({"max_concurrent_batches": 1}),
            Op.SETTLE,
            calls(5),
            Op.SETTLE,
        ],
    ),
    "parked callers are not overtaken": Program(
        False,
        {
            "max_batch_size": 1,
            "max_queued_requests": 0,
            "max_concurrent_batches": 3,
            "overload": "wait",
        },
        [
            *(Op.HOLD, calls(3), Op.SETTLE, mapped("ok", "ok"), Op.SETTLE),
            *(Cancel(13), Op.RELEASE, calls(4), Op.SETTLE),
        ],
    ),
    "a deadline at the end of a run is counted once": Program(
        False, {}, [calls(3, run_s=1.0, timeout_s=1.0), Advance(2)]
    ),
    "a deadline at the end of a window is counted once": Program(
        False, {"batch_wait_timeout_s": 1.0}, [mapped("ok", "ok", timeout_s=1.0), Advance(2)]
    ),
    "more slots help while closing": Program(
        False,
        {"max_batch_size": 1},
        [
            *[Op.SETTLE] * 7,
            Op.CLOSE,
            calls(1),
            calls(2, run_s=0.25),
            Op.SETTLE,
            Configure({"max_concurrent_batches": 2}),
        ],
        releases=False,
    ),
    "a request that is dropped ends once": Program(
        False,
        {"max_batch_size": 1, "drop_queued_on_shutdown": True},
        [Op.HOLD, calls(3), Op.SETTLE, Op.CLOSE],
    ),
    "options can change after closing": Program(
        False, {}, [calls(1), Op.CLOSE, Advance(1), Configure({"max_batch_size": 3})]
    ),
}


def run(backend: str, world: type[World], program: Program) -> None:
    trio._core._run._r.seed(program.seed)  # type: ignore[attr-defined] # its scheduler is random
    run_virtually(run_program, world, program, backend=backend)


def search(name: str, backend: str, *, streams: bool, how: settings) -> None:
    """Looks for a program after which a promise is not kept."""
    vocabulary = VOCABULARIES[name]

    @how
    @given(program=vocabulary.programs(streams=streams))
    def keeps_the_promises(program: Program) -> None:
        run(backend, vocabulary.world, program)

    keeps_the_promises()


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("promise", FOUND)
def test_what_was_found_once(backend: str, promise: str) -> None:
    for seed in range(4):
        run(backend, PolicyWorld, replace(FOUND[promise], seed=seed))


@pytest.mark.slow
@pytest.mark.timeout(200)  # takes seconds; but when it fails Hypothesis looks for a short program
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("streams", [False, True], ids=["calls", "streams"])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_promises_are_kept(name: str, streams: bool, backend: str) -> None:
    quick = settings(common, max_examples=VOCABULARIES[name].examples)
    search(name, backend, streams=streams, how=quick)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("streams", [False, True], ids=["calls", "streams"])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_promises_are_kept_by_many(name: str, streams: bool, backend: str) -> None:
    search(name, backend, streams=streams, how=long)


RAISES: dict[str, Any] = {
    "panic": Panic,
    "cancelled": asyncio.CancelledError,
    "closed": GeneratorExit,
    "group": lambda: BaseExceptionGroup("two", [Panic(), ValueError()]),
    "error": ValueError,
}
CHANGES: dict[str, Any] = {
    "clear": list.clear,
    "more": lambda items: items.append("more"),
    "first": lambda items: items.insert(0, "first"),
}
OPS = st.lists(st.sampled_from([*RAISES, *CHANGES, "sleep", "step", "shield"]), max_size=5)


async def does(op: str, items: list[Any]) -> None:
    if op in RAISES:
        raise RAISES[op]()
    if op in CHANGES:
        CHANGES[op](items)
    elif op == "sleep":
        await anyio.sleep(1)
    elif op == "shield":
        with anyio.CancelScope(shield=True):
            await anyio.sleep(3)


async def unary(items: list[Any]) -> list[Any]:
    given = list(items)
    for op in given[0][0]:
        await does(op, items)
    return given


async def steps(items: list[Any]) -> AsyncIterator[list[Any]]:
    given = list(items)
    try:
        with anyio.move_on_after(100):
            for op in given[0][0]:
                await does(op, items)
                if op == "step":
                    yield given
        yield given
    finally:
        for op in given[0][1]:
            await does(op, items)


async def neighbour(items: list[Any]) -> list[Any]:
    await anyio.sleep(1)
    return items


async def last(batcher: shoal.Batcher[Any], item: Any, leaves: bool) -> Any:
    if not batcher.streams:
        return await batcher.call(item)
    async with batcher.call(item) as stream:
        got: list[Any] = [item]
        async for step in stream:
            got.append(step)
            if leaves:
                break
        return got[-1]


async def plays(handler: Any, programs: list[tuple[list[str], list[str], bool]]) -> None:
    batcher: Any = shoal.Batcher(handler, max_batch_size=1, handler_timeout_s=5)
    async with batcher, shoal.Batcher(neighbour, max_batch_size=1) as beside:
        for program, at_the_end, leaves in programs:
            item = (program, at_the_end)
            got = await outcome(last(batcher, item, leaves))
            assert got == item or isinstance(got, Exception), got
            is_broken = any(op in RAISES for op in program)
            is_in_time = program.count("sleep") + 3 * program.count("shield") < 5
            if not batcher.streams and not is_broken and is_in_time:
                assert got == item
            await settle()
            assert batcher.is_alive
            assert await beside(7) == 7
    statistics = batcher.statistics()
    assert (statistics.state, statistics.batches_running) == ("closed", 0)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("handler", [unary, steps])
@settings(max_examples=25)
@given(programs=st.lists(st.tuples(OPS, OPS, st.booleans()), min_size=1, max_size=4))
def test_a_batcher_outlives_whatever_its_handler_does(backend, handler, programs):
    run_virtually(plays, handler, programs, backend=backend)
