"""What a handler may ask about the batch that it was called for."""

from contextvars import ContextVar
from typing import Final

from shoal.core.batch import Batch

running_batch: Final[ContextVar[Batch]] = ContextVar("shoal.running_batch")

calls_from_thread: Final[ContextVar[bool]] = ContextVar("shoal.calls_from_thread", default=False)
"""Whether a thread is blocked until the call is answered that is made here."""


def current_batch() -> Batch:
    """Returns the batch that the calling handler is running.

    It works in the handler, in functions that it calls, in tasks that it starts and in the worker
    thread of a plain handler. A task that outlives the handler finds no requests in it any more.

    Returns:
        The batch: its id, size, the reason it was cut, and its requests with their metadata,
        deadlines, contexts and whether they are cancelled.

    Raises:
        RuntimeError: No handler is running here.
    """
    try:
        return running_batch.get()
    except LookupError:
        raise RuntimeError("current_batch() is for handlers: no batch is running here") from None
