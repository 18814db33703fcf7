"""The request of one call and its states, and the batch that it runs in.

The engine sets states without checking them, because this is on the hot path; the tests check every
change against these transitions::

    parked ──> queued ──> running ──> finished
      │          │           ├──────> failed, declined
      │          │           └──────> cancelled
      └──────────┴──────────────────> failed, cancelled

A handler's `RetryLater` puts the running requests of its batch back into the queue, and so may the
death of its replica.

A request that has ended stays in its final state. A later event (a result for a caller that has
left, a caller that leaves after its result) then has no effect, so every accepted call ends exactly
once.

An ``HTTPException`` of Starlette chooses a status; below 500 the request is declined. jinja2's
``TemplateError`` chooses 400: templates raise that class on purpose, and its subclasses for
mistakes. The chat templates of Hugging Face's models refuse messages with it.

Invariants:
    ``batch`` is set only while the request is running. A batch refers to its requests, so keeping
    it for longer would create a reference cycle for every batch, and collecting those costs more
    than all the rest of a call.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from shoal.errors import ItemTooLarge, NoSuchModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping
    from contextlib import AbstractContextManager
    from contextvars import Context


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
"""The metadata of a call that has none."""


class State(Enum):
    PARKED = "parked"
    """Waits to be admitted to the queue."""
    QUEUED = "queued"
    """Waits in the queue for a worker slot."""
    RUNNING = "running"
    """Is in a batch that the handler processes, or shares the request of an equal call."""
    FINISHED = "finished"
    """Ended with a result, or with the end of its stream."""
    FAILED = "failed"
    """Ended with an error."""
    DECLINED = "declined"
    """Ended with an ``HTTPException`` below 500, a response that the code chose."""
    CANCELLED = "cancelled"
    """Its caller left, or its time ran out; then `error` is set."""


UNDER_WAY: Final = (State.QUEUED, State.PARKED, State.RUNNING)
_WITHOUT_RESULT: Final = frozenset({State.FAILED, State.DECLINED, State.CANCELLED})


class RequestBatch:
    """The part of a batch that its requests refer to."""

    __slots__ = ("active", "on_left")

    # How many of its requests are RUNNING.
    active: int

    @property
    def is_queued(self) -> bool:
        """Whether its requests wait for a shared request that is still queued."""
        return False

    # Called with a request that its caller has left; with None when an open batch closes after
    # callers have left.
    on_left: Callable[[Request | None], object] | None


class RequestOptions:
    """The options of one request: those of its call, its priority, cost and bucket key."""

    # In a queue of requests that are not all alike, each has its own record. Otherwise requests
    # share one, or have None. Most records change few of these, so there is no constructor.

    deadline: float | None = None
    # Its deadline, or that of its caller's scopes if it is earlier: batches are formed for it.
    due: float | None = None
    metadata: Mapping[str, Any] = NOTHING
    priority: int = 1
    cost: float = 1
    # All requests of one batch have equal keys.
    key: Hashable = None
    # The `Member` that it prefers; None for no preference.
    home: Any = None
    # The model that it needs; None for none.
    model: str | None = None
    queue_timeout_s: float | None = None
    # Its position in the order of arrival; set by the queue.
    number: int = 0
    # When it was moved behind others because it had waited too long.
    delayed_at: float | None = None
    # The level that its caller requested, if any.
    asked_priority: int | None = None
    # The factory of this record; admission checks whether it is still the current one.
    options_factory: object = None
    # Entries of the batcher's `Timers`, for its deadline and for its time in the queue.
    timer: list[Any] | None = None
    queue_timer: list[Any] | None = None
    # Whether the end of its time in the queue moves it behind others, instead of failing it.
    delays: bool | None = None
    # Whether it waits for a place in a full queue, whatever `overload` says.
    waits_for_room: bool = False


class Returned(NamedTuple):
    """The first batch that a request was put back from, and its place there."""

    batch: int
    place: int
    times: int = 0  # how often it has been put back
    deaths: int = 0  # and how many of these times because its replica had died


@dataclass(slots=True, init=False, eq=False, repr=False)
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
    item: Any
    arrived_at: float
    context: Context
    options: RequestOptions | None
    returned: Returned  # only of a request that was put back
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
        """The result of ``batch_size_fn`` for its item; 1 without that option."""
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


def request_of_nobody(
    item: Any, arrived_at: float, state: State, options: RequestOptions | None, context: Context
) -> Request:
    """Makes a request without a caller."""
    request = Request()
    request.item, request.arrived_at, request.state = item, arrived_at, state
    request.options, request.context = options, context
    request.batch = request.waiter = request.value = request.error = None
    return request


class DispatchReason(StrEnum):
    """Why a batch was dispatched."""

    FULL = "full"
    """It had reached ``max_batch_size``, or another size at which a batch is dispatched."""
    TIMER = "timer"
    """Its oldest request had waited for ``batch_wait_timeout_s``."""
    IDLE = "idle"
    """No request had arrived for ``idle_timeout_s``."""
    REGATHER = "regather"
    """The callers of the last batch were waited for: those expected are back, or late."""
    LIMIT = "limit"
    """It was due before, and waited for the option ``limit``, or after a `RetryLater`."""
    DEADLINE = "deadline"
    """One of its requests would have missed its deadline by waiting longer."""
    FLUSH = "flush"
    """`Batcher.flush` was called."""
    RETRY = "retry"
    """A request went back after a `RetryLater` or a replica's death; it waits only for a slot."""
    DRAIN = "drain"
    """The batcher is closing, and no longer waits for batches to fill."""
    OPEN = "open"
    """It is an open batch: requests join it while the handler runs."""


class Draining(Protocol):
    """An event that tells a handler that its batcher is draining and it must end soon."""

    def is_set(self) -> bool:
        """May be called from any thread."""
        ...

    def wait(self) -> Awaitable[None]: ...


class _Never:
    def is_set(self) -> bool:
        return False

    def wait(self) -> Awaitable[None]:
        raise RuntimeError("this batch has no batcher, so its draining event is never set")


NEVER: Final[Draining] = _Never()


class Batch(RequestBatch):
    """The batch that a handler was called with.

    Attributes:
        id: A number that is unique within the batcher.
        reason: Why the batch was dispatched.
        members: Its requests; internal to the engine, which reads them after the handler has run.
        size: The number of its requests.
        arrived_at: When the oldest of the requests it began with arrived, in seconds on the event
            loop's clock; 0 until it begins.
        failure: The first error that one of its requests ended with; internal to the engine.
        free_at: When a worker slot became free for it, on that clock; internal to the engine.
        group: The waiter of all its requests, if they have one in common; internal to the engine.
        trace: The headers with which a call continues the batch's trace, such as W3C's
            ``traceparent``; None if it is not traced. Set by an observer when it begins.
        surroundings: A context manager around its handler; None for none. Set by an observer.
        is_continuous: Whether requests join it for as long as its batcher is open.
        load: The sum of their costs, including padding.
        draining: Set when the batcher drains or begins to close. A handler of endless streams
            should then end them; closing cancels it after ``graceful_shutdown_timeout_s``.
        is_overdue: Whether its handler has used up the operator's time: ``handler_timeout_s`` or
            ``graceful_shutdown_timeout_s``. Callers that leave don't make it overdue.
        on_overdue: Called when it becomes overdue; internal to the engine.
        scope: The cancel scope that its handler runs in, and that ends with it; else None.
            Internal, too.
    """

    __slots__ = (
        *("arrived_at", "draining", "failure", "free_at", "group", "id", "is_continuous", "load"),
        *("is_overdue", "members", "on_overdue", "reason", "scope", "size", "surroundings"),
        "trace",
    )

    def __init__(
        self,
        id_: int,
        reason: DispatchReason,
        requests: list[Request],
        load: float | None = None,
        draining: Draining = NEVER,
    ) -> None:
        self.draining = draining
        self.id = id_
        self.reason = reason
        self.members = requests
        self.size = len(requests)
        self.arrived_at = 0.0
        self.failure: BaseException | None = None
        self.scope: Any = None
        self.free_at = 0.0
        self.group: Any = None
        self.is_continuous = self.is_overdue = False
        self.on_overdue: Callable[[], object] | None = None
        self.trace: Mapping[str, str] | None = None
        self.surroundings: AbstractContextManager[object] | None = None
        self.load: float = self.size if load is None else load
        self.active = self.size
        self.on_left = None

    @property
    def requests(self) -> tuple[Request, ...]:
        """Its requests, in the order of the items that the handler was given.

        Requests of an open batch that have ended are left out. The tuple is empty once the handler
        has ended: an object that keeps the handler's context alive, such as a cancelled asyncio
        timer, also keeps the batch alive, and must not keep items and results.
        """
        return tuple(self.members)

    def admit(self, requests: list[Request]) -> None:
        """Adds requests that join while the handler runs."""
        for request in requests:
            request.state = State.RUNNING
            request.batch = self
        self.members += requests
        self.size += len(requests)
        self.active += len(requests)

    def forget_ended(self) -> None:
        """Drops the members that have ended; else a batch that stays open for long keeps all."""
        if len(self.members) > self.active:
            self.members[:] = [each for each in self.members if each.state is State.RUNNING]

    def set_overdue(self) -> None:
        """Records that its handler must end now."""
        self.is_overdue = True
        if self.on_overdue is not None:
            self.on_overdue()

    def __repr__(self) -> str:
        return f"<Batch {self.id} size={self.size} reason={self.reason}>"


def chosen_status(error: BaseException) -> int | None:
    """Returns the status (300 to 599) that an error chooses; None if it chooses none."""
    if is_of_template(error):
        return 400
    starlette = sys.modules.get("starlette.exceptions")  # else nobody has raised one
    if starlette is None or not isinstance(error, starlette.HTTPException):
        return None
    chosen: Any = error
    try:
        status: object = chosen.status_code
    except KeyboardInterrupt:
        raise
    except BaseException:  # of a subclass, which may raise anything, or not have it
        return None
    return int(status) if isinstance(status, int) and 300 <= status <= 599 else None


def is_of_template(error: BaseException) -> bool:
    """Returns whether a template has raised this error on purpose."""
    jinja2 = sys.modules.get("jinja2.exceptions")
    return jinja2 is not None and type(error) is jinja2.TemplateError


def is_declined(error: BaseException) -> bool:
    """Returns whether an error is a response below 500 that the code chose, and no failure."""
    status = chosen_status(error)
    return status < 500 if status is not None else isinstance(error, (ItemTooLarge, NoSuchModel))
