"""Does a placement keep the promises of `Replica`?

Code that tells what happens to it is played on replicas of the placement: it answers, streams,
raises, waits, is cancelled, killed and stopped, as plain code and as async code. What is looked at
is what a backend relies on, and each promise has a name; the message of a check that fails says
which was broken, and how.

The code may be in another process. So it tells in a file, and waits for files, and the check runs
on the real clock. It waits for what happens, and for no time to pass, except that its patience
comes to an end where something does not happen at all.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from shoal.testing.replicas import lives, runs
from shoal.testing.replicas.folder import Folder
from shoal.testing.replicas.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shoal.replicas.contract import Placement
    from shoal.testing.replicas.stage import Kind, Played

_OF_ONE_REPLICA: Final[Sequence[Callable[[Stage, Played], Awaitable[None]]]] = (
    lives.start,
    runs.results,
    runs.knowing,
    runs.at_once,
    runs.steps,
    lives.arguments,
    lives.reconfigure,
    lives.health,
)


async def _one_replica(stage: Stage) -> None:
    code = stage.code(greeting="hello")
    async with stage.playing(code, user_config="first") as played:
        for check in _OF_ONE_REPLICA:
            await check(stage, played)


_CHECKS: Final[Sequence[Callable[[Stage], Awaitable[None]]]] = (
    _one_replica,
    lives.import_path,
    lives.not_ready,
    lives.stop,
    runs.streams_that_are_left,
    runs.calls_that_are_left,
    lives.starts_that_fail,
    lives.start_in_time,
    lives.kill,
    lives.cancelled,
    lives.no_exceptions,
    lives.crash,
)


async def check_replica(
    placement: Placement,
    *,
    kinds: Sequence[Kind] = ("plain", "async"),
    crash: Callable[[], Any] | None = None,
    patience_s: float = 10.0,
) -> None:
    """Checks that the replicas of a placement keep the promises of `Replica`.

    It runs on the real clock, and takes seconds where a replica takes long to start. The code is
    ``shoal.testing.replicas.code``, which must be there where the replicas run, on this machine.

    Args:
        placement: Makes a replica from its blueprint.
        kinds: The kinds of code that it runs: ``"plain"`` functions, ``"async"`` ones, or both.
        crash: A function that ends whatever the code runs in, such as
            ``functools.partial(os._exit, 3)``; the code is made to call it. None where that would
            end the caller's process.
        patience_s: How long each part of the check may take, in seconds; what takes longer will
            never happen, and that breaks the promise that is looked at.

    Raises:
        AssertionError: The placement breaks a promise. The message says which, and how.

    Cancellation: ends the replica that is being checked.
    """
    for kind in kinds:
        for check in _CHECKS:
            with TemporaryDirectory(prefix="shoal-check-", ignore_cleanup_errors=True) as path:
                stage = Stage(placement, kind, Folder(path), patience_s, crash)
                await _run(check, stage, patience_s)


async def _run(check: Callable[[Stage], Awaitable[None]], stage: Stage, patience_s: float) -> None:
    failure: Exception | None = None
    scope = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.expire, scope)
        try:
            with scope:
                await check(stage)
        except Exception as error:
            failure = _first(error)
        finally:
            stage.folder.let_go("all")
            tasks.cancel_scope.cancel()
    if scope.cancel_called:
        raise stage.broken(f"nothing happened for {patience_s:g} s")
    if isinstance(failure, AssertionError):
        raise failure
    if failure is not None:
        raise stage.broken(f"it raised {failure!r}") from failure


def _first(error: Exception) -> Exception:
    if isinstance(error, ExceptionGroup):
        return _first(cast("ExceptionGroup[Exception]", error).exceptions[0])
    return error
