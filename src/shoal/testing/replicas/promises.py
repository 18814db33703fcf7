"""The promises of a replica, each with the function that checks it."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

import anyio.lowlevel

from shoal.batching.calls.stream import END, SKIP
from shoal.batching.current import current_replica_tag
from shoal.errors import HandlerFailed, ReplicaDied
from shoal.replicas.code.definition import Definition
from shoal.testing.replicas.code import Mistake, Panic, throw
from shoal.testing.replicas.stage import (
    IDENTITY,
    READY,
    STOPPED,
    CheckedCall,
    Stage,
    a_batch_of,
    outcome,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shoal.batching.handlers.handler import Fill

    Check = Callable[[Stage], Awaitable[None]]


CLOSING: Final = "a stream whose reader stops is closed, together with the code's generator"
LEFT: Final = "a cancelled call ends only when its work has ended"
HEALTH: Final = "check_health raises if health() raises or returns False, and only then"
OVER: Final = "run raises ReplicaDied before the replica is ready and after its end"
NOT_STARTED: Final = "a start that fails makes serve raise ReplicaNotStarted with the cause"

_A_FEW_TURNS: Final = 20
_FILLS: Final[Sequence[Fill]] = ("open", "continuous")
_MODULE: Final = "shoal.testing.replicas.code"


def promise(text: str) -> Callable[[Check], Check]:
    def named(check: Check) -> Check:
        @wraps(check)
        async def run(stage: Stage) -> None:
            stage.promise = text
            await check(stage)

        return run

    return named


def on_one_replica(*checks: Check) -> Check:
    async def run(stage: Stage) -> None:
        async with stage.playing():
            for check in checks:
                await check(stage)

    return run


@promise(
    "before it is ready the code is constructed, given its user config and warmed up, "
    "in this order and once each"
)
async def order(stage: Stage) -> None:
    stage.same("its start", stage.folder.notes(), ["constructed", "configured first", "warmed up"])


@promise("the description from serve describes the methods of the code")
async def description(stage: Stage) -> None:
    described = stage.played.description
    assert described is not None
    wanted = {"__call__": (1, 0), "one": (0, 0), "count": (1, 1), "count_one": (0, 1)}
    for name, kind in wanted.items():
        method = described.method(name)
        stage.same(f"{name} takes lists, streams:", (method.batched, method.streams), kind)
    parameters = [*described.method("add").signature.parameters]
    stage.same("the parameters of add", parameters, ["left", "right"])
    stage.expect("close" not in described.methods, "close() is among them")
    stage.expect(described.reconfigures and described.checks_health, "it has no hooks")


@promise("run returns what the code returned, for methods of lists and of single items")
async def results(stage: Stage) -> None:
    await stage.gives("__call__", [1, 2, 3], [2, 4, 6])
    await stage.gives("one", [4], [8])
    await stage.gives("add", [(1, 2), (3, 4)], [3, 7])


@promise("run_stream yields what the code yields, step by step")
async def steps(stage: Stage) -> None:
    await stage.yields("count", [1, 5], [[1, 5], [2, 6]])
    await stage.yields("count_one", [3], [[3], [4]])


@promise("what the code raises keeps its type")
async def errors(stage: Stage) -> None:
    await stage.gives("fail", [1, 2], Mistake("call of 2"))
    await stage.yields("break_off", [1], [[1], Mistake()])


@promise("exceptions and marks in a result or a step are passed on unchanged")
async def slots(stage: Stage) -> None:
    await stage.gives("slots", [1, 2], [Mistake(), 1])
    await stage.yields("marks", [1, 2, 3, 4, 5], [[END, SKIP, StopIteration, Mistake(), 1]])


@promise("the engine's batch is current_batch() for the code as well")
async def batch(stage: Stage) -> None:
    await stage.gives("metadata", [5, 6], [{"place": 0}, {"place": 1}])
    if not stage.own_batches:
        await stage.gives("batch", [5, 6], 2 * [[7, 2, "full"]])


@promise("the code, and only the code, can ask which backend and replica it is in")
async def place(stage: Stage) -> None:
    await stage.gives("recall", ["tags"], [2 * [[*IDENTITY[:2]]]])
    stage.refused(RuntimeError, "its caller", current_replica_tag)
    with a_batch_of(["a"]):
        async with aclosing(stage.played.replica.run_stream("go_on", ["a"])) as reading:
            for _ in range(2):
                stage.same("a generator", await anext(reading), [IDENTITY.replica])
                stage.refused(RuntimeError, "a reader", current_replica_tag)


@promise("each of several concurrent runs gets its own result")
async def at_once(stage: Stage) -> None:
    calls = [stage.begin(stage.played.run("one", [number])) for number in range(5)]
    for number, call in enumerate(calls):
        stage.same(f"one of {number}", await call.end(), [2 * number])


@promise("a class gets its init args, positional and keyword")
async def arguments(stage: Stage) -> None:
    await stage.gives("recall", ["greeting"], ["hello"])


@promise("reconfigure calls the code, and raises what it raises")
async def reconfigure(stage: Stage) -> None:
    await stage.gives("recall", ["config"], ["first"])
    await stage.played.replica.reconfigure("second")
    await stage.gives("recall", ["config"], ["second"])
    got = await outcome(stage.played.replica.reconfigure("mistake"))
    stage.same("a mistake in it", got, Mistake())
    await stage.gives("__call__", [1], [2])


@promise(HEALTH)
async def health(stage: Stage) -> None:
    for config, is_well in [("well", True), ("ill", False), ("false", False), ("well", True)]:
        await stage.played.replica.reconfigure(config)
        got = await outcome(stage.played.replica.check_health())
        stage.expect(is_well == (got is None), f"with the config {config!r} it gave {got!r}")


@promise("a health check runs concurrently with the work, and can be cancelled")
async def health_beside_work(stage: Stage) -> None:
    replica = stage.played.replica
    work = await stage.holding(stage.played.run("hold", ["a"]), "a")
    await replica.check_health()
    stage.expect(not work.ended.is_set(), f"the work had ended with {work.result!r}")
    stage.folder.release("a")
    await work.end()
    await replica.reconfigure("hang")
    look = await stage.holding(replica.check_health(), "health")
    stage.expect(not look.ended.is_set(), f"health() was still at it, and it {look.result!r}")
    look.scope.cancel()
    await look.end()
    await stage.gives("__call__", [1], [2])
    stage.folder.release("health")


@promise("code is loaded by its import path, functions too")
async def import_path(stage: Stage) -> None:
    name = "double" if stage.kind == "plain" else "double_async"
    async with stage.playing(Definition(f"{_MODULE}:{name}")) as played:
        await stage.gives("__call__", [1, 2], [2, 4])
        stage.promise = HEALTH
        got = await outcome(played.replica.check_health())
        stage.expect(got is None, f"without health() it raised {got!r}")


@promise(OVER)
async def not_ready(stage: Stage) -> None:
    stage.played = played = stage.made(stage.code(waits=True))
    await stage.gives("__call__", [1], _died())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.serve)
        await stage.until("constructed")
        await stage.gives("__call__", [1], _died())
        stage.promise = READY
        stage.expect(not played.ready.is_set(), f"it was ready too early, or {played.error!r}")
        stage.folder.release("start")
        await played.ready.wait()
        stage.expect(played.description is not None, f"it ended with {played.error!r}")
        stage.promise = STOPPED
        played.replica.stop()
        await played.ended.wait()


@promise(STOPPED)
async def stop(stage: Stage) -> None:
    played = stage.played
    played.replica.stop()
    played.replica.stop()
    await played.ended.wait()
    stage.expect(played.error is None, f"serve raised {played.error!r}")
    count = stage.folder.notes().count("closed")
    stage.expect(count == 1, f"close() was called {count} times")
    await _is_over(stage)


@promise(CLOSING)
async def streams_that_are_left(stage: Stage) -> None:
    played = stage.played
    with a_batch_of(["a"]):
        reading = played.replica.run_stream("go_on", ["a"])
        await anext(reading)
        await reading.aclose()
    await stage.until("closes a")
    await stage.gives("__call__", [1], [2])
    stage.promise = LEFT
    await _cancelled(stage, played.steps("hold_step", ["b"]), "b")
    stage.promise = CLOSING
    got = await outcome(played.run("__call__", [1]))
    if not isinstance(got, ReplicaDied):
        await stage.until("closes b")


@promise(LEFT)
async def calls_that_are_left(stage: Stage) -> None:
    played = stage.played
    call = await _cancelled(stage, played.run("hold", ["a"]), "a")
    got = await outcome(played.run("__call__", [1]))
    if isinstance(got, ReplicaDied):
        return
    if stage.own_batches:
        await stage.until("leaves a")
    else:
        stage.expect("leaves a" in call.notes, "the code was still at work")
    stage.promise = "a replica continues after a call was cancelled, or has died"
    stage.same("it", got, [2])


async def _cancelled(stage: Stage, work: Awaitable[Any], name: str) -> CheckedCall:
    call = await stage.holding(work, name)
    call.scope.cancel()
    if stage.kind == "plain":
        for _ in range(_A_FEW_TURNS):
            await anyio.lowlevel.checkpoint()
        stage.folder.release(name)
    await call.end()
    return call


@promise(NOT_STARTED)
async def starts_that_fail(stage: Stage) -> None:
    for mistake in ("constructed", "configured first", "warmed up"):
        await stage.does_not_start(stage.made(stage.code(mistake), "first"), mistake)
    nothing = Definition(f"{_MODULE}:nothing_there")
    await stage.does_not_start(stage.made(nothing), "nothing_there")
    if stage.crash is not None:
        await stage.does_not_start(stage.made(stage.code(crash=stage.crash)))


@promise("a start that takes longer than start_timeout_s is given up")
async def start_in_time(stage: Stage) -> None:
    await stage.does_not_start(stage.made(stage.code(waits=True), start_timeout_s=0.1))


@promise("kill makes running work, and serve, raise ReplicaDied with its reason")
async def kill(stage: Stage) -> None:
    for method, is_stream in (("hold", False), ("hold_step", True)):
        async with stage.playing() as played:
            work = played.steps if is_stream else played.run
            call = await stage.holding(work(method, [method]), method)
            played.replica.kill("out of luck")
            played.replica.kill("a second reason")
            got = await call.end()
            stage.same(method, got[-1] if is_stream else got, _died("out of luck"))
            stage.folder.release(method)
            await _has_died(stage, "out of luck")


@promise("if serve is cancelled, running work raises ReplicaDied")
async def cancel(stage: Stage) -> None:
    played = stage.played
    call = await stage.holding(played.run("hold", ["a"]), "a")
    played.scope.cancel()
    stage.same("a call", await call.end(), _died())
    await played.ended.wait()
    await _is_over(stage)


@promise(
    "code that raises a BaseException that is no Exception ends its batch, or its replica, "
    "and nothing else"
)
async def no_exceptions(stage: Stage) -> None:
    for raised in (Panic("in the code"), SystemExit(3), KeyboardInterrupt()):
        try:
            await _raises(stage, raised)
        except (Panic, SystemExit, KeyboardInterrupt, BaseExceptionGroup) as error:
            if isinstance(error, ExceptionGroup):
                raise
            raise stage.broken(f"{raised!r} ended its caller with {error!r}") from error
    stage.promise = NOT_STARTED
    await stage.does_not_start(stage.made(stage.code(crash=partial(throw, SystemExit(3)))))


async def _raises(stage: Stage, raised: BaseException) -> None:
    async with stage.playing() as played:
        got = await outcome(played.run("call", [partial(throw, raised)]))
        if isinstance(got, ReplicaDied):
            stage.same(repr(raised), got, _died())
            await _has_died(stage)
            return
        # What forms the batches may outlive the code, and start it again.
        if not (stage.own_batches and isinstance(got, list) and isinstance(got[0], ReplicaDied)):
            stage.same(repr(raised), got, HandlerFailed(""))
        await stage.gives("__call__", [1], [2])


@promise("if the code ends its process, its work and serve raise ReplicaDied")
async def crash(stage: Stage) -> None:
    if stage.crash is None:
        return
    async with stage.playing() as played:
        stage.same("a call", await outcome(played.run("call", [stage.crash])), _died())
        await _has_died(stage)


def _died(reason: str = "") -> ReplicaDied:
    return ReplicaDied(reason, replica=IDENTITY.replica)


async def _has_died(stage: Stage, reason: str = "") -> None:
    await stage.played.ended.wait()
    stage.same("serve", stage.played.error, _died(reason))
    await _is_over(stage)


async def _is_over(stage: Stage) -> None:
    stage.promise = OVER
    await stage.gives("__call__", [1], _died())


@promise("open_binding is that of a call with one item, and refuses other code")
async def open_binding(stage: Stage) -> None:
    binding = stage.played.replica.open_binding
    stage.same("its parameters", [*binding("open_batch").signature.parameters], ["item"])
    stage.refused(TypeError, "a generator", partial(binding, "count"))


@promise("run_open answers each request of an open batch by itself, and in order")
async def open_answers(stage: Stage) -> None:
    for fill in _FILLS:
        async with stage.batcher("open_batch", fill) as call:
            calls = {number: stage.begin(call(number)) for number in (1, 2, -3, 4, 5)}
            for number, one in calls.items():
                wanted = (2 * number, IDENTITY.replica) if number > 0 else Mistake()
                stage.same(str(number), await one.end(), wanted)


@promise("a caller that leaves an open batch frees its place, and its code is notified")
async def open_calls_that_are_left(stage: Stage) -> None:
    for fill in _FILLS:
        async with stage.batcher("open_batch", fill) as call:
            for name in (f"{fill} {one}" for one in "abc"):  # there are two places
                one = await stage.holding(call(name), name)
                one.scope.cancel()
                await stage.until(f"leaves {name}")


@promise("run_open streams what the code sends, in order and to the end")
async def open_streams(stage: Stage) -> None:
    for fill in _FILLS:
        async with stage.batcher("open_streams", fill, streams=True) as stream:
            for length in (0, 3, 40):
                async with aclosing(stream(length)) as reading:
                    got = [item async for item in reading]
                stage.same(f"{length} items", got, [*range(length)])


@promise("kill fails the requests of an open batch with ReplicaDied, which names the replica")
async def open_kill(stage: Stage) -> None:
    played = stage.played
    async with stage.batcher("open_batch", "continuous") as call:
        one = await stage.holding(call("killed"), "killed")
        played.replica.kill("out of luck")
        for got in (await one.end(), await outcome(call(1))):
            stage.same("a request", got, _died())
    await played.ended.wait()


_RESULTS: Final = (order, description, results, steps, errors, slots, batch, place, at_once)
_HOOKS: Final = (arguments, reconfigure, health, health_beside_work)
_OPEN: Final = (open_binding, open_answers, open_calls_that_are_left, open_streams)
CHECKS: Final[tuple[Check, ...]] = (
    on_one_replica(*_RESULTS, *_HOOKS),
    *(import_path, not_ready, starts_that_fail, start_in_time),
    *map(on_one_replica, (stop, streams_that_are_left, calls_that_are_left, cancel)),
    *(kill, no_exceptions, crash),
)
OPEN_CHECKS: Final[tuple[Check, ...]] = (on_one_replica(*_OPEN), on_one_replica(open_kill))
