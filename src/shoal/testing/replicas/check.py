"""Checks that a placement keeps the promises of `Replica`.

Test code runs in replicas of the placement and records each event: it returns, streams, raises,
waits, is cancelled, killed and stopped, as plain code and as async code. The check covers the
promises that a backend relies on. Each has a name; the error of a failed check names the broken
promise, and how it was broken.

The test code may run in another process, so it writes its notes to a file and waits for files, and
the check runs on the real clock. It waits for events, not for fixed times; a timeout ends the check
if an event never happens.
"""

from __future__ import annotations

from contextlib import aclosing
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.batcher import Batcher
from shoal.errors import ReplicaDied
from shoal.failures.exceptions import alone
from shoal.replicas.placements import takes_open_batches
from shoal.testing.replicas import promises
from shoal.testing.replicas.code import Folder, Mistake
from shoal.testing.replicas.stage import IDENTITY, CheckedCall, Kind, Played, Stage, outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shoal.batching.handlers.handler import Fill
    from shoal.batching.open_batch import OpenBatch
    from shoal.replicas.contract import Placement


_OF_ONE_REPLICA: Final[Sequence[Callable[[Stage, Played], Awaitable[None]]]] = (
    promises.start,
    promises.results,
    promises.knowing,
    promises.at_once,
    promises.steps,
    promises.arguments,
    promises.reconfigure,
    promises.health,
)


async def _one_replica(stage: Stage) -> None:
    code = stage.code(greeting="hello")
    async with stage.playing(code, user_config="first") as played:
        for check in _OF_ONE_REPLICA:
            await check(stage, played)


_CHECKS: Final[Sequence[Callable[[Stage], Awaitable[None]]]] = (
    _one_replica,
    promises.import_path,
    promises.not_ready,
    promises.stop,
    promises.streams_that_are_left,
    promises.calls_that_are_left,
    promises.starts_that_fail,
    promises.start_in_time,
    promises.kill,
    promises.cancelled,
    promises.no_exceptions,
    promises.crash,
)


async def check_replica(
    placement: Placement,
    *,
    kinds: Sequence[Kind] = ("plain", "async"),
    crash: Callable[[], Any] | None = None,
    own_batches: bool = False,
    patience_s: float = 10.0,
) -> None:
    """Checks that the replicas of a placement keep the promises of `Replica`.

    It runs on the real clock, and takes seconds if a replica takes long to start. The test code is
    ``shoal.testing.replicas.code``, which must be importable where the replicas run, on this
    machine.

    Args:
        placement: Makes a replica from its blueprint. If its ``takes_open_batches`` is True, its
            replicas are also checked with open and continuous batches.
        kinds: The kinds of code to check: ``"plain"`` functions, ``"async"`` ones, or both.
        crash: A function that ends the process (or whatever the code runs in), such as
            ``functools.partial(os._exit, 3)``; the test code calls it. None if that would end the
            caller's process.
        own_batches: Whether the replicas form batches of their own, from the items of several
            callers, as those of ``placement="remote"`` do. Then the promises hold for each item:
            the batch has another id and reason, its steps may arrive apart, and a cancelled call
            may end before the batch that its items were in.
        patience_s: The time limit for each part of the check, in seconds. A part that takes longer
            breaks the promise that is being checked.

    Raises:
        AssertionError: The placement breaks a promise. The message says which, and how.

    Cancellation: ends the replica that is being checked.
    """
    for kind in kinds:
        checks = _CHECKS
        if kind == "async" and takes_open_batches(placement):
            checks = (*_CHECKS, open_batches_answer, open_batches_end)
        for check in checks:
            with TemporaryDirectory(prefix="shoal-check-", ignore_cleanup_errors=True) as path:
                stage = Stage(placement, kind, Folder(path), patience_s, crash, own_batches)
                await _run(check, stage, patience_s)


async def _run(check: Callable[[Stage], Awaitable[None]], stage: Stage, patience_s: float) -> None:
    failure: BaseException | None = None
    scope = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.expire, scope)
        try:
            with scope:
                await check(stage)
        except Exception as error:
            failure = alone(error)
        finally:
            stage.folder.release("all")
            tasks.cancel_scope.cancel()
    if scope.cancel_called:
        raise stage.broken(f"nothing happened for {patience_s:g} s")
    if isinstance(failure, AssertionError):
        raise failure
    if failure is not None:
        raise stage.broken(f"it raised {failure!r}") from failure


ANSWERS: Final = "run_open answers each request of an open batch by itself, and in order"
STREAMS: Final = "run_open streams what the code sends, in order and to the end"
BINDING: Final = "open_binding is that of a call with one item, and refuses other code"
LEFT: Final = "a caller that leaves an open batch frees its place, and its code is notified"
KILLED: Final = "kill fails the requests of an open batch with ReplicaDied, which names the replica"


def _batcher(played: Played, method: str, fill: Fill, *, streams: bool = False) -> Batcher[Any]:
    async def run(batch: OpenBatch[Any, Any]) -> None:
        await played.replica.run_open(method, batch)

    made: Any = Batcher
    batcher: Batcher[Any] = made(
        run, fill=fill, streams=streams, max_batch_size=2, name="checked", batch_wait_timeout_s=0
    )
    return batcher


async def open_batches_answer(stage: Stage) -> None:
    """Checks results, errors, streams and callers that leave, with both ways to fill a batch."""
    fills: tuple[Fill, ...] = ("open", "continuous")
    async with stage.playing() as played:
        stage.promise = BINDING
        names = [*played.replica.open_binding("open_batch").signature.parameters]
        stage.expect(names == ["item"], f"its parameters were {names}")
        try:
            played.replica.open_binding("count")
        except TypeError:
            pass
        else:
            raise stage.broken("it took a generator")
        for fill in fills:
            async with _batcher(played, "open_batch", fill) as call:
                stage.promise = ANSWERS
                calls = [CheckedCall(stage, call(number)) for number in (1, 2, -3, 4, 5)]
                async with anyio.create_task_group() as tasks:
                    for one in calls:
                        tasks.start_soon(one.run)
                for number, one in zip((1, 2, -3, 4, 5), calls, strict=True):
                    wanted = one.result == (2 * number, IDENTITY.replica)
                    if number < 0:
                        wanted = isinstance(one.result, Mistake)
                    stage.expect(wanted, f"{number} got {one.result!r}")
                stage.promise = LEFT
                for name in ("a", "b", "c"):  # there are two places
                    async with anyio.create_task_group() as tasks:
                        one = CheckedCall(stage, call(f"{fill} {name}"))
                        tasks.start_soon(one.run)
                        await stage.until(f"holds {fill} {name}")
                        one.scope.cancel()
                    await stage.until(f"leaves {fill} {name}")
            stage.promise = STREAMS
            async with _batcher(played, "open_streams", fill, streams=True) as stream:
                for length in (0, 3, 40):
                    async with aclosing(stream(length)) as reading:
                        got = [item async for item in reading]
                    stage.expect(got == [*range(length)], f"{length} items were {got}")


async def open_batches_end(stage: Stage) -> None:
    """Checks that a killed replica fails its requests."""
    async with stage.playing() as played, anyio.create_task_group() as tasks:
        stage.promise = KILLED
        async with _batcher(played, "open_batch", "continuous") as call:
            one = CheckedCall(stage, call("killed"))
            tasks.start_soon(one.run)
            await stage.until("holds killed")
            played.replica.kill("out of luck")
            await one.ended.wait()
            for got in (one.result, await outcome(call(1))):
                has_died = isinstance(got, ReplicaDied) and got.replica == IDENTITY.replica
                stage.expect(has_died, f"a request ended with {got!r}")
        await played.ended.wait()
