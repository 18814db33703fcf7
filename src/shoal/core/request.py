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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from contextvars import Context

    from shoal.core.timers import Timer


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
"""The metadata of a call that has none."""


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


class RequestBatch:
    """The requests that run together, as far as one of them has to know.

    Attributes:
        active: How many of them are in the state RUNNING.
        on_left: Called with one that its caller has left, or with None if one was left before; None
            for nothing.
    """

    __slots__ = ("active", "on_left")

    active: int
    on_left: Callable[[Request | None], object] | None


class RequestOptions:
    """What one call asks for beside its item, and what its item counts for in line.

    A line in which requests are not all alike has one for each request; else it is shared, or None.

    Attributes:
        deadline: When the request must have ended, on the event loop's clock; None for never.
        metadata: Whatever the caller wants the handler to know about this request.
        priority: Its level; 1 is the highest.
        cost: How much of ``max_batch_size`` it takes up.
        key: What requests of one batch must have in common.
        queue_timeout_s: How long it may wait in line, in seconds; None for no limit.
        due: When its order in line says that it is due; the deadline, or that of the caller's
            cancel scope.
        number: Its place in the order of arrival; the line sets it.
        delayed_at: Since when it must let others go first, for it waited too long; None if not.
        asked_priority: The level that its caller asked for; None if the caller named none.
        options_factory: What made the record; whoever lets the request in looks whether that holds
            still.
        timer: What ends it at its deadline; whoever watches it sets it.
        queue_timer: What ends its wait in line, likewise.
    """

    __slots__ = (
        "asked_priority",
        "cost",
        "deadline",
        "delayed_at",
        "due",
        "key",
        "metadata",
        "number",
        "options_factory",
        "priority",
        "queue_timeout_s",
        "queue_timer",
        "timer",
    )

    def __init__(
        self,
        deadline: float | None = None,
        metadata: Mapping[str, Any] = NOTHING,
        priority: int = 1,
        cost: float = 1,
        key: Hashable = None,
    ) -> None:
        self.deadline = self.due = deadline
        self.metadata = metadata
        self.priority = priority
        self.cost = cost
        self.key = key
        self.queue_timeout_s: float | None = None
        self.number = 0
        self.delayed_at: float | None = None
        self.asked_priority: int | None = None
        self.options_factory: object = None
        self.timer: Timer | None = None
        self.queue_timer: Timer | None = None


SHARED: Final = object()
"""In place of `RequestOptions.options_factory`: many requests share the record, so nothing of it
but the metadata may differ from the usual."""


def shared_options(metadata: Mapping[str, Any]) -> RequestOptions:
    """Makes the record of all calls that have this metadata and ask for nothing else.

    A call with it is as cheap as one without a record. Where a line has to tell its requests apart,
    whoever lets them in makes a record of its own for each.
    """
    options = RequestOptions(metadata=metadata)
    options.options_factory = SHARED
    return options


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
        "context",
        "error",
        "item",
        "options",
        "state",
        "value",
        "waiter",
    )

    item: Any
    arrived_at: float
    context: Context
    options: RequestOptions | None
    state: State
    waiter: Any
    batch: RequestBatch | None
    value: Any
    error: Any  # an exception or None; a narrower type would be taken for None for good

    @property
    def deadline(self) -> float | None:
        """When the request must have ended, on the event loop's clock; None for never."""
        return None if self.options is None else self.options.deadline

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the caller passed as ``options(metadata=...)``; empty if nothing.

        In a backend it is what is known of the request: ``"endpoint"``, the endpoint's name;
        ``"context"``, which is ``"http"`` or ``"python"``; and ``"method"`` and ``"headers"``
        where it has them.
        """
        return NOTHING if self.options is None else self.options.metadata

    @property
    def priority(self) -> int:
        """Its priority level; 1 is the highest."""
        return 1 if self.options is None else self.options.priority

    @property
    def cost(self) -> float:
        """How much of ``max_batch_size`` it takes up: 1, or what ``batch_size_fn`` says."""
        return 1 if self.options is None else self.options.cost

    @property
    def key(self) -> Hashable:
        """What ``bucket_by`` says about its item; None without one."""
        return None if self.options is None else self.options.key

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this request's results any more."""
        return self.state is State.CANCELLED or self.state is State.FAILED

    def __repr__(self) -> str:
        return f"<Request {self.state.value} item={self.item!r:.60}>"
