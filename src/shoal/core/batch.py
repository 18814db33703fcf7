"""One batch: the requests that travel together, and why they left when they did."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from shoal.core.request import Company

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.core.request import Request


class CutReason(StrEnum):
    """Why a batch was cut."""

    FULL = "full"
    """It had ``max_batch_size`` requests."""
    TIMER = "timer"
    """Its oldest request had waited for ``batch_wait_timeout_s``."""
    FLUSH = "flush"
    """`Batcher.flush` was called."""
    DRAIN = "drain"
    """The batcher is closing, and no longer waits for company."""


class Batch(Company):
    """What a handler knows about the batch that it was called for.

    Attributes:
        id: A number that no other batch of this batcher has.
        reason: Why the batch was cut.
        requests: Its requests, in the order of the items that the handler was given.
        size: How many requests it has.
    """

    __slots__ = ("id", "reason", "requests", "size")

    def __init__(self, id_: int, reason: CutReason, requests: Sequence[Request]) -> None:
        self.id = id_
        self.reason = reason
        self.requests = requests
        self.size = len(requests)
        self.active = self.size
        self.on_abandoned = None

    def __repr__(self) -> str:
        return f"<Batch {self.id} size={self.size} cut={self.reason}>"
