"""Checks of a replica's work: results, steps, errors, and cancelled calls."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from shoal.batching.calls.stream import END, SKIP
from shoal.errors import ReplicaDied
from shoal.replicas.code.current import current_replica_tag
from shoal.testing.replicas.code import Mistake
from shoal.testing.replicas.stage import IDENTITY, Call, a_batch_of, outcome

if TYPE_CHECKING:
    from shoal.testing.replicas.stage import Played, Stage

RESULTS: Final = "run returns what the code returned, for methods of lists and of single items"
ERRORS: Final = "what the code raises keeps its type"
SLOTS: Final = "exceptions and marks in a result or a step are passed on unchanged"
WHERE: Final = "the code, and only the code, can ask which backend and replica it is in"
BATCH: Final = "the engine's batch is current_batch() for the code as well"
AT_ONCE: Final = "each of several concurrent runs gets its own result"
STEPS: Final = "run_stream yields what the code yields, step by step"
CLOSING: Final = "a stream whose reader stops is closed, together with the code's generator"
LEFT: Final = "a cancelled call ends only when its work has ended"
GOES_ON: Final = "a replica continues after a call was cancelled, or has died"

_A_FEW_TURNS: Final = 20


async def results(stage: Stage, played: Played) -> None:
    stage.promise = RESULTS
    calls: list[tuple[str, list[Any], list[int]]] = [
        ("__call__", [1, 2, 3], [2, 4, 6]),
        ("one", [4], [8]),
        ("add", [(1, 2), (3, 4)], [3, 7]),
    ]
    for method, items, wanted in calls:
        got = await outcome(played.run(method, items))
        stage.expect(got == wanted, f"{method} of {items} gave {got!r}, not {wanted}")
    stage.promise = ERRORS
    got = await outcome(played.run("fail", [1, 2]))
    stage.expect(isinstance(got, Mistake) and "call of 2" in str(got), f"it was {got!r}")
    stage.promise = SLOTS
    got = await played.run("slots", [1, 2])
    stage.expect(isinstance(got[0], Mistake) and got[1] == 1, f"they were {got!r}")
    stage.promise = BATCH
    got = await outcome(played.run("batch", [5, 6]))
    batch = [(7, 2, "full", {"place": place}) for place in (0, 1)]
    stage.expect(got == batch, f"it was {got!r}, not {batch}")


async def knowing(stage: Stage, played: Played) -> None:
    stage.promise = WHERE
    _, _, now, born = (await played.run("state", [1]))[0]
    stage.expect(tuple(now) == IDENTITY[:2], f"a method found {now!r}, not {IDENTITY}")
    stage.expect(tuple(born) == IDENTITY[:2], f"the constructor found {born!r}")
    stage.expect(_is_elsewhere(), "its caller could ask too")
    with a_batch_of(["a"]):
        async with aclosing(played.replica.run_stream("go_on", ["a"])) as reading:
            for _ in range(2):
                step = await anext(reading)
                stage.expect(step == [IDENTITY.replica], f"a generator was told {step!r}")
                stage.expect(_is_elsewhere(), "a reader could ask too")


async def at_once(stage: Stage, played: Played) -> None:
    async with anyio.create_task_group() as tasks:
        stage.promise = AT_ONCE
        calls = [Call(stage, played.run("one", [number])) for number in range(5)]
        for call in calls:
            tasks.start_soon(call.run)
        for number, call in enumerate(calls):
            await call.ended.wait()
            stage.expect(call.result == [2 * number], f"{number} got {call.result!r}")


async def steps(stage: Stage, played: Played) -> None:
    stage.promise = STEPS
    for method, items, wanted in [
        ("count", [1, 5], [[1, 5], [2, 6]]),
        ("count_one", [3], [[3], [4]]),
    ]:
        got = await played.steps(method, items)
        stage.expect(got == wanted, f"{method} of {items} gave {got!r}, not {wanted}")
    stage.promise = ERRORS
    got = await played.steps("break_off", [1])
    is_kept = got[:-1] == [[1]] and isinstance(got[-1], Mistake)
    stage.expect(is_kept, f"a step and an error were {got!r}")
    stage.promise = SLOTS
    got = await played.steps("marks", [1, 2, 3, 4, 5])
    stage.expect(len(got) == 1 and _are_marks(list(got[0])), f"they were {got!r}")


async def streams_that_are_left(stage: Stage) -> None:
    async with stage.playing() as played:
        stage.promise = CLOSING
        with a_batch_of(["a"]):
            reading = played.replica.run_stream("go_on", ["a"])
            await anext(reading)
            await reading.aclose()
        await stage.until("closes a")
        got = await outcome(played.run("__call__", [1]))
        stage.expect(got == [2], f"the replica then gave {got!r}")
        await _leave(stage, played.steps("hold_step", ["b"]), "b")
        stage.promise = CLOSING
        got = await outcome(played.run("__call__", [1]))
        if not isinstance(got, ReplicaDied):
            await stage.until("closes b")


async def calls_that_are_left(stage: Stage) -> None:
    async with stage.playing() as played:
        call = await _leave(stage, played.run("hold", ["a"]), "a")
        got = await outcome(played.run("__call__", [1]))
        has_died = isinstance(got, ReplicaDied)
        stage.expect(has_died or "leaves a" in call.notes, "the code was still at work")
        stage.promise = GOES_ON
        stage.expect(has_died or got == [2], f"it gave {got!r}")


async def _leave(stage: Stage, work: Any, name: str) -> Call:
    """Cancels a running call, and waits for its end."""
    stage.promise = LEFT
    call = Call(stage, work)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.run)
        await stage.until(f"holds {name}")
        call.scope.cancel()
        if stage.kind == "plain":
            for _ in range(_A_FEW_TURNS):
                await anyio.lowlevel.checkpoint()
            stage.folder.let_go(name)
        await call.ended.wait()
    return call


def _are_marks(slots: list[Any]) -> bool:
    return (
        len(slots) == 5
        and all(a is b for a, b in zip(slots, (END, SKIP, StopIteration), strict=False))
        and isinstance(slots[3], Mistake)
        and slots[4] == 1
    )


def _is_elsewhere() -> bool:
    try:
        current_replica_tag()
    except RuntimeError:
        return True
    return False
