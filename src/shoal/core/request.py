"""The request of one call, and its states.

`TRANSITIONS` has all allowed transitions. The engine sets states without checking them, because
this is on the hot path; the tests check every change against the table::

    parked ──> queued ──> running ──> finished
      │          │           ├──────> failed, declined
      │          │           └──────> cancelled
      └──────────┴──────────────────> failed, cancelled

A request that has ended stays in its final state. A later event (a result for a caller that has
left, a caller that leaves after its result) then has no effect, so every accepted call ends exactly
once.

Invariants:
    ``batch`` is set only while the request is running. A batch refers to its requests, so keeping
    it for longer would create a reference cycle for every batch, and collecting those costs more
    than all the rest of a call.
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
    """The state of a request."""

    PARKED = "parked"
    """Waits to be admitted to the queue."""
    QUEUED = "queued"
    """Waits in the queue for a worker slot."""
    RUNNING = "running"
    """Is in a batch that the handler processes."""
    FINISHED = "finished"
    """Ended with a result, or with the end of its stream."""
    FAILED = "failed"
    """Ended with an error."""
    DECLINED = "declined"
    """Ended with an ``HTTPException`` below 500, a response that the code chose."""
    CANCELLED = "cancelled"
    """Its caller left."""


_ENDS = frozenset({State.FINISHED, State.FAILED, State.DECLINED, State.CANCELLED})

TRANSITIONS: Final[Mapping[State | None, frozenset[State]]] = {
    None: frozenset({State.PARKED, State.QUEUED}),
    State.PARKED: frozenset({State.QUEUED, State.FAILED, State.CANCELLED}),
    State.QUEUED: frozenset({State.RUNNING, State.FAILED, State.CANCELLED}),
    State.RUNNING: _ENDS,
    State.FINISHED: frozenset(),
    State.FAILED: frozenset(),
    State.DECLINED: frozenset(),
    State.CANCELLED: frozenset(),
}

_WITHOUT_RESULT: Final = _ENDS - {State.FINISHED}


class RequestBatch:
    """The part of a batch that its requests refer to.

    Attributes:
        active: How many of its requests are in the state RUNNING.
        on_left: Called with a request whose caller has left, or with None if a caller left before
            this was set. None for no callback.
    """

    __slots__ = ("active", "on_left")

    active: int

    @property
    def waits(self) -> bool:
        """Whether its requests wait for a request that they share, and which is still queued."""
        return False

    on_left: Callable[[Request | None], object] | None


class RequestOptions:
    """The options of one request: what its call asked for, and its priority, cost and bucket key.

    In a queue whose requests are not all alike, each request has its own record. Otherwise requests
    share one, or have None.

    Attributes:
        deadline: When the request must have ended, on the event loop's clock; None for no limit.
        metadata: Whatever the caller wants the handler to know about this request.
        priority: Its priority level; 1 is the highest.
        cost: How much of ``max_batch_size`` it takes up.
        key: The bucket key; all requests of one batch have equal keys.
        queue_timeout_s: How long it may wait in the queue, in seconds; None for no limit.
        due: The time by which it is ordered and dispatched: the deadline, or that of the caller's
            cancel scope if that is earlier and counts. None for no limit.
        number: Its position in the order of arrival; set by the queue.
        delayed_at: When it was moved behind others because it had waited too long; None if not.
        asked_priority: The level that its caller asked for; None if the caller named none.
        options_factory: The factory that made the record. On admission it is checked whether this
            is still the current one.
        waits_for_room: Whether it waits for a place in a full queue, whatever ``overload`` says.
        timer: The timer of its deadline, while it is watched.
        queue_timer: The timer of its time limit in the queue, while it is watched.
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
        "waits_for_room",
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
        self.waits_for_room = False


class Request:
    """The request of one call: what the caller passed, and where its result goes.

    A handler finds the requests of its batch in ``current_batch().requests`` and may read the
    attributes below; the rest is internal to the engine.

    Attributes:
        item: What the caller passed; a tuple in the order of the handler's parameters if it has
            several.
        arrived_at: When the call was made, in seconds on the event loop's clock.
        context: The caller's `contextvars.Context`, as it was when the call was made.
    """

    # No constructor: a request is created for each call, and a Python-level __init__ would be the
    # most expensive part of it. `error`, `batch` and `options` are None until they are set.
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
        """When the request must have ended, on the event loop's clock; None for no limit."""
        return None if self.options is None else self.options.deadline

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the caller passed as ``options(metadata=...)``; empty by default.

        In a backend it describes the request: ``"endpoint"``, the endpoint's name; ``"context"``,
        which is ``"http"`` or ``"python"``; and, if it has them, ``"method_name"`` (the code's
        method), ``"shard_key"``, ``"shadow"`` (True for a copy), ``"method"`` and ``"headers"``.
        """
        return NOTHING if self.options is None else self.options.metadata

    @property
    def priority(self) -> int:
        """Its priority level; 1 is the highest."""
        return 1 if self.options is None else self.options.priority

    @property
    def waits_for_room(self) -> bool:
        """Whether it waits for a place in a full queue, whatever ``overload`` says."""
        return self.options is not None and self.options.waits_for_room

    @property
    def cost(self) -> float:
        """How much of ``max_batch_size`` it takes up: 1, or the result of ``batch_size_fn``."""
        return 1 if self.options is None else self.options.cost

    @property
    def key(self) -> Hashable:
        """The result of ``bucket_by`` for its item; None without that option."""
        return None if self.options is None else self.options.key

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled or failed, so that its results are not needed."""
        return self.state in _WITHOUT_RESULT

    def __repr__(self) -> str:
        return f"<Request {self.state.value} item={self.item!r:.60}>"
