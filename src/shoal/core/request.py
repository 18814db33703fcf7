"""One call's request, and every state that it can be in.

The table is the whole life of a request. The engine writes states without asking it, because these
writes are on the hot path; the tests watch every write and hold it against the table::

    parked ──> queued ──> running ──> finished
      │          │           ├──────> failed
      │          │           └──────> cancelled
      └──────────┴──────────────────> failed, cancelled

A request that has come to an end stays there, so whoever comes second (a result for a caller that
has left, a caller that leaves after its result) finds nothing to do. That is what makes every
accepted call end exactly once.

Invariants:
    ``batch`` is set while the request is running and at no other time: a batch refers to its
    requests, so keeping it for longer would make a reference cycle of every batch, and the garbage
    collector's work on those costs more than all the rest of a call.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Context


class State(Enum):
    """Where a request is in its life."""

    PARKED = "parked"
    """Waits to be admitted to the line."""
    QUEUED = "queued"
    """Waits in line for a slot."""
    RUNNING = "running"
    """Is in a batch that the handler has."""
    FINISHED = "finished"
    """Ended with a result, or with the end of its stream."""
    FAILED = "failed"
    """Ended with an error."""
    CANCELLED = "cancelled"
    """Its caller left."""


_ENDS = frozenset({State.FINISHED, State.FAILED, State.CANCELLED})

TRANSITIONS: Final[Mapping[State | None, frozenset[State]]] = {
    None: frozenset({State.PARKED, State.QUEUED}),
    State.PARKED: frozenset({State.QUEUED, State.FAILED, State.CANCELLED}),
    State.QUEUED: frozenset({State.RUNNING, State.FAILED, State.CANCELLED}),
    State.RUNNING: _ENDS,
    State.FINISHED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}


class Company:
    """The requests that run together, as far as one of them has to know.

    Attributes:
        active: How many of them are in the state RUNNING.
        on_abandoned: Called when the last of them is left by its caller; None for nothing.
    """

    __slots__ = ("active", "on_abandoned")

    active: int
    on_abandoned: Callable[[], object] | None


class CallOptions:
    """What one call asks for beside its item.

    Attributes:
        deadline: When the request must have ended, on the event loop's clock; None for never.
        metadata: Whatever the caller wants the handler to know about this request.
    """

    __slots__ = ("deadline", "metadata")

    def __init__(self, deadline: float | None, metadata: Mapping[str, Any] | None) -> None:
        self.deadline = deadline
        self.metadata: Mapping[str, Any] = {} if metadata is None else metadata


class Request:
    """One call: what the caller passed, and where its result goes.

    A handler meets the requests of its batch in ``current_batch().requests`` and may read the
    attributes below; the rest belongs to the engine.

    Attributes:
        item: What the caller passed; a tuple in the order of the handler's parameters where it has
            several.
        arrived_at: When the call was made, in seconds on the event loop's clock.
        context: The caller's `contextvars.Context`, as it was when the call was made.
    """

    # No constructor: one is made for each call, and a Python-level __init__ would be the dearest
    # line of it. `error` and `batch` are None and `options` is None until something sets them.
    __slots__ = (
        "arrived_at",
        "batch",
        "cell",
        "context",
        "error",
        "item",
        "options",
        "state",
        "value",
    )

    item: Any
    arrived_at: float
    context: Context
    options: CallOptions | None
    state: State
    cell: Any
    batch: Company | None
    value: Any
    error: Any  # an exception or None; a narrower type would be taken for None for good

    @property
    def deadline(self) -> float | None:
        """When the request must have ended, on the event loop's clock; None for never."""
        return None if self.options is None else self.options.deadline

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the caller passed as ``options(metadata=...)``; empty if nothing."""
        return {} if self.options is None else self.options.metadata

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this request's results any more."""
        return self.state is State.CANCELLED or self.state is State.FAILED

    def __repr__(self) -> str:
        return f"<Request {self.state.value} item={self.item!r:.60}>"
