"""`shoal.current_batch`: the batch that the calling handler runs."""

from contextvars import ContextVar
from typing import Final

from shoal.core.batch import Batch

running_batch: Final[ContextVar[Batch]] = ContextVar("shoal.running_batch")

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
