"""The wait for cancelled work that runs elsewhere and can't be interrupted.

A caller that disconnects never ends a process, since loading a model costs more than the caller's
work. The wait has no limit until the operator's time limit for the batch has passed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from shoal.batching.current import running_batch

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def until_overdue(grace_s: float) -> Generator[anyio.CancelScope]:
    """Shields the block until the running batch has been overdue for the grace period."""
    waiting = anyio.CancelScope(shield=True)

    def limit() -> None:
        waiting.deadline = anyio.current_time() + grace_s

    batch = running_batch.get(None)
    if batch is not None:
        batch.on_overdue = limit
        if batch.is_overdue:
            limit()
    try:
        with waiting:
            yield waiting
    finally:
        if batch is not None:
            batch.on_overdue = None
