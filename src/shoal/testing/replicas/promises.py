"""The checks of a replica, one for each promise or a few: its work, and its life cycle."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from shoal.batching.calls.stream import END, SKIP
from shoal.batching.current import current_replica_tag
from shoal.errors import HandlerFailed, ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.definition import Definition
from shoal.testing.replicas.code import (
    Mistake,
    Panic,
    raise_keyboard_interrupt,
    raise_panic,
    raise_system_exit,
)
from shoal.testing.replicas.stage import (
    IDENTITY,
    READY,
    STOPPED,
    CheckedCall,
    Played,
    Stage,
    a_batch_of,
    outcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable


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
    batch: list[Any] = [(7, 2, "full", {"place": place}) for place in (0, 1)]
    if stage.own_batches:
        got, batch = _metadata_of(got), _metadata_of(batch)
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
                stage.expect(step == [IDENTITY.replica], f"a generator got {step!r}")
                stage.expect(_is_elsewhere(), "a reader could ask too")


async def at_once(stage: Stage, played: Played) -> None:
    async with anyio.create_task_group() as tasks:
        stage.promise = AT_ONCE
        calls = [CheckedCall(stage, played.run("one", [number])) for number in range(5)]
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
        if stage.own_batches:
            got, wanted = _by_request(got, len(items)), _by_request(wanted, len(items))
        stage.expect(got == wanted, f"{method} of {items} gave {got!r}, not {wanted}")
    stage.promise = ERRORS
    got = await played.steps("break_off", [1])
    if stage.own_batches:
        [got] = _by_request(got, 1)
    is_kept = got[:-1] in ([[1]], [1]) and isinstance(got[-1], Mistake)
    stage.expect(is_kept, f"a step and an error were {got!r}")
    stage.promise = SLOTS
    got = await played.steps("marks", [1, 2, 3, 4, 5])
    is_kept = len(got) == 1 and _are_marks(list(got[0]))
    if stage.own_batches:
        *ended, [error], last = _by_request(got, 5)
        is_kept = (ended, last) == ([[], [], []], [1]) and isinstance(error, Mistake)
    stage.expect(is_kept, f"they were {got!r}")


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
        if stage.own_batches and not has_died:
            await stage.until("leaves a")
            call.notes = stage.folder.notes()
        stage.expect(has_died or "leaves a" in call.notes, "the code was still at work")
        stage.promise = GOES_ON
        stage.expect(has_died or got == [2], f"it gave {got!r}")


async def _leave(stage: Stage, work: Any, name: str) -> CheckedCall:
    stage.promise = LEFT
    call = CheckedCall(stage, work)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.run)
        await stage.until(f"holds {name}")
        call.scope.cancel()
        if stage.kind == "plain":
            for _ in range(_A_FEW_TURNS):
                await anyio.lowlevel.checkpoint()
            stage.folder.release(name)
        await call.ended.wait()
    return call


def _metadata_of(batch: Any) -> Any:
    slots: list[Any] = batch if issubclass(type(batch), list) else []
    return [slot[-1] for slot in slots]


def _by_request(steps: list[Any], count: int) -> list[list[Any]]:
    """Returns what each stream of a batch gave, however it was divided into steps."""
    streams: list[list[Any]] = [[] for _ in range(count)]
    for step in steps:
        slots: list[Any] = [step] * count if isinstance(step, Exception) else step
        for stream, slot in zip(streams, slots, strict=True):
            if slot not in (END, SKIP, StopIteration, StopAsyncIteration):
                stream.append(slot)
    return streams


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


DESCRIBED: Final = "the description from serve describes the methods of the code"
ORDER: Final = (
    "before it is ready the code is constructed, given its user config and warmed up, "
    "in this order and once each"
)
ARGUMENTS: Final = "a class gets its init args, positional and keyword"
IMPORTED: Final = "code is loaded by its import path, functions too"
NOT_READY: Final = "run raises ReplicaDied before the replica is ready and after its end"
NOT_STARTED: Final = "a start that fails makes serve raise ReplicaNotStarted with the cause"
IN_TIME: Final = "a start that takes longer than start_timeout_s is given up"
RECONFIGURED: Final = "reconfigure calls the code, and raises what it raises"
HEALTH: Final = "check_health raises if health() raises or returns False, and only then"
BESIDE: Final = "a health check runs concurrently with the work, and can be cancelled"
KILLED: Final = "kill makes running work, and serve, raise ReplicaDied with its reason"
CANCELLED: Final = "if serve is cancelled, running work raises ReplicaDied"
RAISED: Final = (
    "code that raises a BaseException that is no Exception ends its batch, or its replica, "
    "and nothing else"
)
CRASHED: Final = "if the code ends its process, its work and serve raise ReplicaDied"

_MODULE: Final = "shoal.testing.replicas.code"


async def start(stage: Stage, played: Played) -> None:
    """Checks a start with ``greeting="hello"`` and the user config ``"first"``."""
    stage.promise = ORDER
    notes = stage.folder.notes()
    if stage.own_batches:  # what forms the batches may also check the health
        notes = [note for note in notes if note != "health"]
    stage.expect(notes == ["constructed", "configured first", "warmed up"], f"it was {notes}")
    stage.promise = DESCRIBED
    description = played.description
    assert description is not None
    names = ("__call__", "one", "count", "count_one")
    kinds = [(description.method(name).batched, description.method(name).streams) for name in names]
    wanted = [(True, False), (False, False), (True, True), (False, True)]
    stage.expect(kinds == wanted, f"{names} take lists and stream as {kinds}, not {wanted}")
    parameters = list(description.method("add").signature.parameters)
    stage.expect(parameters == ["left", "right"], f"add has the parameters {parameters}")
    stage.expect("close" not in description.methods, "close() is among them")
    stage.expect(description.reconfigures and description.checks_health, "it has no hooks")


async def arguments(stage: Stage, played: Played) -> None:
    stage.promise = ARGUMENTS
    greeting, config, *_ = (await played.run("state", [1]))[0]
    stage.expect(greeting == "hello", f"greeting='hello' was {greeting!r}")
    stage.promise = RECONFIGURED
    stage.expect(config == "first", f"the first user config was {config!r}")


async def import_path(stage: Stage) -> None:
    name = "double" if stage.kind == "plain" else "double_async"
    stage.promise = IMPORTED
    async with stage.playing(Definition(f"{_MODULE}:{name}")) as played:
        stage.promise = IMPORTED
        got = await outcome(played.run("__call__", [1, 2]))
        stage.expect(got == [2, 4], f"it gave {got!r}")
        stage.promise = HEALTH
        got = await outcome(played.replica.check_health())
        stage.expect(got is None, f"without health() it raised {got!r}")


async def not_ready(stage: Stage) -> None:
    stage.promise = NOT_READY
    played = Played(stage.make(stage.code("wait")))
    got = await outcome(played.run("__call__", [1]))
    stage.expect(isinstance(got, ReplicaDied), f"before the start it gave {got!r}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.serve)
        await stage.until("constructed")
        got = await outcome(played.run("__call__", [1]))
        stage.expect(isinstance(got, ReplicaDied), f"during the start it gave {got!r}")
        stage.promise = READY
        stage.expect(not played.ready.is_set(), f"it was ready too early, or {played.error!r}")
        stage.folder.release("constructor")
        await played.ready.wait()
        stage.expect(played.description is not None, f"it ended with {played.error!r}")
        stage.promise = STOPPED
        played.replica.stop()
        await played.ended.wait()


async def starts_that_fail(stage: Stage) -> None:
    stage.promise = NOT_STARTED
    for definition, user_config, why in [
        (stage.code("raise"), None, "constructor"),
        (stage.code(), "mistake", "reconfigure"),
        (stage.code("warm_up"), None, "warm_up"),
        (Definition(f"{_MODULE}:nothing_there"), None, "nothing_there"),
    ]:
        error = await stage.failed_start(definition, user_config=user_config)
        is_kept = isinstance(error, ReplicaNotStarted) and why in f"{error} {error.__cause__}"
        stage.expect(is_kept, f"after an error in {why} serve ended with {error!r}")


async def start_in_time(stage: Stage) -> None:
    stage.promise = IN_TIME
    error = await stage.failed_start(stage.code("wait"), start_timeout_s=0.1)
    stage.expect(isinstance(error, ReplicaNotStarted), f"serve ended with {error!r}")


async def reconfigure(stage: Stage, played: Played) -> None:
    stage.promise = RECONFIGURED
    await played.replica.reconfigure("second")
    config = (await played.run("state", [1]))[0][1]
    stage.expect(config == "second", f"the second user config was {config!r}")
    got = await outcome(played.replica.reconfigure("mistake"))
    stage.expect(isinstance(got, Mistake), f"it ended with {got!r}")
    got = await outcome(played.run("__call__", [1]))
    stage.expect(got == [2], f"the replica then gave {got!r}")


async def health(stage: Stage, played: Played) -> None:
    async with anyio.create_task_group() as tasks:
        stage.promise = HEALTH
        for config, is_well in [("well", True), ("ill", False), ("false", False), ("well", True)]:
            await played.replica.reconfigure(config)
            got = await outcome(played.replica.check_health())
            stage.expect(is_well == (got is None), f"with the config {config!r} it gave {got!r}")
        stage.promise = BESIDE
        work = CheckedCall(stage, played.run("hold", ["a"]))
        tasks.start_soon(work.run)
        await stage.until("holds a")
        await played.replica.check_health()
        stage.expect(not work.ended.is_set(), f"the work had ended with {work.result!r}")
        stage.folder.release("a")
        await work.ended.wait()
        await played.replica.reconfigure("hang")
        looks = stage.folder.notes().count("health")
        look = CheckedCall(stage, played.replica.check_health())
        tasks.start_soon(look.run)
        await stage.until("health", times=looks + 1)
        stage.expect(not look.ended.is_set(), f"health() was still at it, and it {look.result!r}")
        look.scope.cancel()
        await look.ended.wait()
        got = await outcome(played.run("__call__", [1]))
        stage.expect(got == [2], f"the replica then gave {got!r}")
        stage.folder.release("health")


async def stop(stage: Stage) -> None:
    async with stage.playing() as played:
        stage.promise = STOPPED
        played.replica.stop()
        played.replica.stop()
        await played.ended.wait()
        stage.expect(played.error is None, f"serve raised {played.error!r}")
        notes = stage.folder.notes()
        stage.expect(
            notes.count("closed") == 1, f"close() was called {notes.count('closed')} times"
        )
        await _is_over(stage, played)


async def kill(stage: Stage) -> None:
    for method in ("hold", "hold_step"):
        async with stage.playing() as played, anyio.create_task_group() as tasks:
            stage.promise = KILLED
            work = played.run if method == "hold" else played.steps
            call = CheckedCall(stage, work(method, [method]))
            tasks.start_soon(call.run)
            await stage.until(f"holds {method}")
            played.replica.kill("out of luck")
            played.replica.kill("a second reason")
            await call.ended.wait()
            got = call.result if method == "hold" else call.result[-1]
            stage.expect(_has_died(got, "out of luck"), f"{method} ended with {got!r}")
            stage.folder.release(method)
            await played.ended.wait()
            how = f"serve ended with {played.error!r}"
            stage.expect(_has_died(played.error, "out of luck"), how)
            await _is_over(stage, played)


async def cancelled(stage: Stage) -> None:
    async with stage.playing() as played, anyio.create_task_group() as tasks:
        stage.promise = CANCELLED
        call = CheckedCall(stage, played.run("hold", ["a"]))
        tasks.start_soon(call.run)
        await stage.until("holds a")
        played.scope.cancel()
        await call.ended.wait()
        stage.expect(_has_died(call.result), f"a call ended with {call.result!r}")
        await played.ended.wait()
        await _is_over(stage, played)


async def _raises_no_exception(stage: Stage, function: Callable[[], None]) -> None:
    what = function.__name__
    async with stage.playing() as played:
        stage.promise = RAISED
        got = await outcome(played.run("call", [function]))
        # What forms the batches may outlive the code, and start it again.
        if stage.own_batches and issubclass(type(got), list) and isinstance(got[0], ReplicaDied):
            got = HandlerFailed(str(got[0]))
        if _has_died(got):
            await played.ended.wait()
            stage.expect(_has_died(played.error), f"{what} made serve end with {played.error!r}")
            return
        stage.expect(isinstance(got, HandlerFailed), f"{what} ended a call with {got!r}")
        got = await outcome(played.run("__call__", [1]))
        stage.expect(got == [2], f"after {what} the replica gave {got!r}")


async def no_exceptions(stage: Stage) -> None:
    for function in (raise_panic, raise_system_exit, raise_keyboard_interrupt):
        try:
            await _raises_no_exception(stage, function)
        except (Panic, SystemExit, KeyboardInterrupt, BaseExceptionGroup) as error:
            if isinstance(error, ExceptionGroup):
                raise
            raise stage.broken(f"{function.__name__} ended its caller with {error!r}") from error
    stage.promise = NOT_STARTED
    failure = await stage.failed_start(stage.code(crash=raise_system_exit))
    stage.expect(isinstance(failure, ReplicaNotStarted), f"after a SystemExit it was {failure!r}")


async def crash(stage: Stage) -> None:
    if stage.crash is None:
        return
    async with stage.playing() as played:
        stage.promise = CRASHED
        got = await outcome(played.run("call", [stage.crash]))
        stage.expect(_has_died(got), f"a call ended with {got!r}")
        await played.ended.wait()
        stage.expect(_has_died(played.error), f"serve ended with {played.error!r}")
        await _is_over(stage, played)
    stage.promise = NOT_STARTED
    error = await stage.failed_start(stage.code(crash=stage.crash))
    stage.expect(isinstance(error, ReplicaNotStarted), f"after a crash it was {error!r}")


def _has_died(error: Any, reason: str = "") -> bool:
    return (
        isinstance(error, ReplicaDied)
        and error.replica == IDENTITY.replica
        and reason in str(error)
    )


async def _is_over(stage: Stage, played: Played) -> None:
    stage.promise = NOT_READY
    got = await outcome(played.run("__call__", [1]))
    stage.expect(_has_died(got), f"after its end it gave {got!r}")
