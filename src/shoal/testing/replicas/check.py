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

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio

from shoal.failures.exceptions import alone
from shoal.replicas.placements import takes_open_batches
from shoal.testing.replicas.code import Folder
from shoal.testing.replicas.promises import CHECKS, OPEN_CHECKS
from shoal.testing.replicas.stage import Kind, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.replicas.contract import Placement
    from shoal.testing.replicas.promises import Check


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
        is_open = kind == "async" and takes_open_batches(placement)
        for check in CHECKS + (OPEN_CHECKS if is_open else ()):
            with TemporaryDirectory(prefix="shoal-check-", ignore_cleanup_errors=True) as path:
                stage = Stage(placement, kind, Folder(path), patience_s, crash, own_batches)
                await _run(check, stage)


async def _run(check: Check, stage: Stage) -> None:
    failure: BaseException | None = None
    scope = anyio.CancelScope()

    async def expire() -> None:
        await anyio.sleep(stage.patience_s)
        scope.cancel()
        stage.folder.release("all")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(expire)
        try:
            with scope:
                await check(stage)
        except Exception as error:
            failure = alone(error)
        finally:
            stage.folder.release("all")
            tasks.cancel_scope.cancel()
    if scope.cancel_called:
        raise stage.broken(f"nothing happened for {stage.patience_s:g} s")
    if failure is not None and not isinstance(failure, AssertionError):
        raise stage.broken(f"it raised {failure!r}") from failure
    if failure is not None:
        raise failure
