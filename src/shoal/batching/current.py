"""`shoal.current_batch`: the batch that the calling handler runs."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from shoal.core.batch import Batch

running_batch: Final[ContextVar[Batch]] = ContextVar("shoal.running_batch")

running_replica: Final[ContextVar[Any]] = ContextVar("shoal.running_replica")
"""The `Identity` of the replica that the calling code runs in."""

calls_from_thread: Final[ContextVar[bool]] = ContextVar("shoal.calls_from_thread", default=False)
"""Whether a thread is blocked until the call made in this context is answered."""


def current_batch() -> Batch:
    """Returns the batch that the calling handler runs.

    It works in the handler, in functions that it calls, in tasks that it starts and in the worker
    thread of a plain handler. When the handler has ended, the batch has no requests any more.

    Returns:
        The batch: its id, size and dispatch reason, and its requests with their metadata,
        deadlines, contexts and whether they are cancelled.

    Raises:
        RuntimeError: No handler is running here.
    """
    try:
        return running_batch.get()
    except LookupError:
        raise RuntimeError("current_batch() is for handlers: no batch is running here") from None


def time_left(now: Callable[[], float]) -> float | None:
    """Returns the time left to the running batch that makes a call, in seconds; None for no limit.

    This is the time until the last deadline of its requests: before it, a caller still waits.

    Args:
        now: The clock of the deadlines.
    """
    batch = running_batch.get(None)
    if batch is None:
        return None
    deadlines = [request.deadline for request in batch.members]
    limits = [deadline for deadline in deadlines if deadline is not None]
    if len(limits) < len(deadlines) or not limits:
        return None
    return max(0.0, max(limits) - now())
