"""The options of a batcher: one frozen record, checked when it is made.

It is frozen so that the options of a running batcher can be replaced atomically: a batch runs under
the record that was in force when it was formed. The names are those of Ray Serve if it has one,
else those of TensorFlow and Triton.
"""

import inspect
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, Self, TypedDict, cast

from shoal.core.options.mixes import refused_mix
from shoal.core.options.names import refuse_unknown
from shoal.core.options.option import (
    Check,
    above_0,
    callback,
    check_options,
    choice,
    factor,
    function,
    mapping,
    option,
    options_of,
    record,
    records_by_level,
    seconds,
    sizes_in_order,
    whole,
    yes_or_no,
)
from shoal.core.options.records import Cache, LatencyTarget, Limit, Models, QueuePolicy
from shoal.core.policy import BatchPolicy
from shoal.core.queue import Amount

Overload = Literal["reject", "wait", "shed_oldest", "shed_lowest"]
Order = Literal["arrival", "deadline"]
Padding = Literal["up", "down", "cost"]
PriorityMixing = Literal["merge", "isolate"]
Opens = Callable[[], AbstractAsyncContextManager[Any]]


class ValueKeywords(TypedDict, total=False):
    """The options in `BatchOptions` that are neither functions nor records."""

    max_batch_size: int
    max_batch_cost: float | None
    batch_wait_timeout_s: float | None
    idle_timeout_s: float | None
    regather: bool
    max_concurrent_batches: int | None
    max_queued_requests: int | None
    overload: Overload
    allowed_batch_sizes: Sequence[int] | None
    padding: Padding
    preferred_batch_sizes: Sequence[int] | None
    priority_levels: int
    default_priority: int | None
    priority_aging_s: float | None
    priority_mixing: PriorityMixing
    order: Order
    sticky_load_factor: float | None
    use_scope_deadline: bool
    refuse_late: bool
    stream_buffer: int
    slow_reader_timeout_s: float | None
    cancel_abandoned: bool
    handler_timeout_s: float | None
    request_timeout_s: float | None
    isolate_errors: bool
    graceful_shutdown_timeout_s: float
    drop_queued_on_shutdown: bool


class OptionKeywords(ValueKeywords, total=False):
    batch_size_fn: Callable[[Any], float] | None
    bucket_by: Callable[[Any], Hashable] | None
    pad: Callable[[list[Any], int], Sequence[Any]] | None
    queue_policies: Mapping[int, QueuePolicy]
    default_queue_policy: QueuePolicy | None
    split: Callable[[Any, float], Sequence[Any]] | None
    join: Callable[[list[Any]], Any] | None
    adaptive: LatencyTarget | None
    policy: Callable[[Any], BatchPolicy] | None
    dedupe: bool | Callable[[Any], Hashable]
    cache: Cache | None
    models: Models | None
    limit: Limit | None
    open: Opens | None


def _by_level(name: str, value: Any) -> dict[int, QueuePolicy]:
    by_level = mapping(name, value, f"{name}={{2: QueuePolicy(timeout_s=1)}}")
    return {level: _queue_policy(f"{name}[{level}]", policy) for level, policy in by_level.items()}


def _made_by(cls: type[Any], example: str) -> Check:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, cls):
            or_none = "" if value is None else " or None"
            raise TypeError(
                f"{name} must be a {cls.__name__}{or_none}, not {value!r}; write {name}={example}"
            )
        return value

    return check


_queue_policy = _made_by(QueuePolicy, "shoal.QueuePolicy(timeout_s=1)")


def _opens(name: str, value: Any) -> Opens:
    if hasattr(cast("Any", type(value)), "__aenter__"):
        raise TypeError(
            f"{name} takes the function that makes {value!r}, since each batcher enters a manager "
            "of its own: write open=pool, not open=pool()"
        )
    make: Opens = function(name, value, form="open=pool, an @asynccontextmanager function")
    if inspect.iscoroutinefunction(make) or inspect.isasyncgenfunction(make):
        raise TypeError(
            f"{name}={value!r} is an async function, and must return an async context manager; "
            "write @contextlib.asynccontextmanager above an async generator function"
        )
    return make


def _dedupe(name: str, value: Any) -> bool | Callable[[Any], Hashable]:
    if isinstance(value, bool):
        return value
    key_of: Callable[[Any], Hashable]
    key_of = function(name, value, form="dedupe=True, or dedupe=lambda item: item.id")
    return key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How batches are formed, bounded and timed.

    Attributes:
        max_batch_size: The most requests in one batch, at least 1; with `batch_size_fn` and without
            `max_batch_cost` the limit on the sum of their costs.
        max_batch_cost: The limit on the sum of the costs of a batch, by `batch_size_fn`.
        batch_wait_timeout_s: How long the oldest request may wait for the batch to fill, in
            seconds, counted from its arrival. 0 takes what is queued after one pass of the
            scheduler. None waits until the batch is full, flushed or drained.
        idle_timeout_s: The wait also ends when no request has arrived for this many seconds. With
            it, a `batch_wait_timeout_s` of 0 sets no limit on the wait. None for no idle timeout.
        regather: Whether a batch that is due waits for callers of the last one that are about to
            call again. Their share and their delay are learned. The batch waits only while that
            takes less time than running their calls separately. It has no effect with `adaptive`,
            `bucket_by`, `policy`, ``priority_mixing="isolate"``, `sticky_load_factor` or
            `models`.
        max_concurrent_batches: How many batches may be in the handler at once, at least 1; None for
            no limit.
        max_queued_requests: The most requests that may wait for a worker slot; None for no bound. 0
            admits only requests that can start now.
        overload: What happens to a call when the queue is full: ``"reject"`` raises `Overloaded` at
            once, ``"wait"`` parks the caller, in order, ``"shed_oldest"`` fails the oldest request
            of the lowest level instead, ``"shed_lowest"`` the newest of the lowest level if that is
            below the new call's.
        batch_size_fn: The cost of one item, at least 0. An item that costs more than a batch may
            is refused with `ItemTooLarge`. An item that does not fit into a batch waits at the head
            of the queue.
        bucket_by: The key of one item; only requests with equal keys share a batch. Of the buckets
            that are due, the one with the oldest request goes first.
        allowed_batch_sizes: The sizes that the handler may be given, ascending; the last is
            `max_batch_size`. Batches in between are padded.
        padding: ``"up"`` pads to the next allowed size, ``"down"`` reduces the batch to the one
            before, ``"cost"`` chooses the cheaper of both per request, by the measured run times.
        pad: Extends a list of items to a size: ``pad(items, n)`` returns `items` followed by
            padding, `n` in total. By default the last item is repeated. Results of padding are
            dropped.
        preferred_batch_sizes: Sizes at which a batch is dispatched at once, ascending. A smaller
            batch waits; one larger than the last size has only requests that have waited long
            enough, up to `max_batch_size`.
        priority_levels: The number of priority levels; 1 is the highest.
        default_priority: The level of a call that names none; the middle one by default.
        priority_aging_s: How many seconds of waiting make up for one level, so that no level
            starves. None for strict priorities.
        priority_mixing: ``"merge"`` lets a batch contain requests of several levels, the lower ones
            in the room that the higher ones leave; ``"isolate"`` does not.
        queue_policies: How the requests of a level may wait, by level.
        default_queue_policy: How the requests of all other levels may wait.
        order: ``"arrival"`` or ``"deadline"``: which request of a level goes first. A request
            without a deadline is treated as due `priority_aging_s` after its arrival.
        sticky_load_factor: Makes requests with equal shard keys prefer one replica of a backend,
            and share their batches with that replica's requests only. The replica may have up to
            this many times the average load, in requests that run or wait; then the next one with
            room takes them. At least 1; with the number of replicas or more, they always wait for
            the preferred one.
        use_scope_deadline: Whether the deadline of the caller's cancel scope applies to the call:
            for the order, for timely dispatch and for `refuse_late`.
        refuse_late: Whether a call that can't end by its deadline, according to the measured run
            times, is refused with `Overloaded`.
        split: Divides an item that does not fit: ``split(item, room)`` returns its parts, in order,
            the first of which costs at most `room`, and each other at most as much as a batch may.
        join: Combines the results of the parts, in order, into one result.
        adaptive: The latency target by which batch size and wait are chosen; None for fixed ones.
        policy: Makes a `BatchPolicy` of your own from these options.
        dedupe: Whether equal calls share one request and its result, while it is queued or running.
            A function returns the key of an item; True compares the items and the calling users.
        cache: How many results are kept for later equal calls, and for how long; None for none. It
            also shares requests.
        models: Lets the requests of a backend name a model, in a header or by ``options(model=)``.
            A batch has requests of one model, and prefers a replica that has it loaded.
        limit: How many batches may start, and how much they may cost, over time; None for no limit.
            A batch that is due waits until the limit allows it.
        open: Returns the async context manager that is entered in the batcher's event loop before
            its first batch, and left after its last: for connections that the handler uses. Context
            variables that it sets are set for the handler. A context manager serves one opening.
        stream_buffer: How many items of a stream may wait for its reader, at least 1.
        slow_reader_timeout_s: How long in total a slow reader may hold its batch back before its
            stream alone fails; the time is reset once the reader has caught up. None for no limit.
        cancel_abandoned: Whether a handler is cancelled when every caller of its batch has left.
        handler_timeout_s: How long one run of the handler may take; None for no limit.
        request_timeout_s: How long one call may take, in the queue and in the handler together;
            None for no limit. A shorter deadline of the call itself takes precedence.
        isolate_errors: Whether a failed batch is split and run again until the items that make it
            fail are isolated.
        graceful_shutdown_timeout_s: How long closing waits for queued and running requests.
        drop_queued_on_shutdown: Whether closing fails queued requests at once, and finishes only
            those that are running.
    """

    max_batch_size: int = option(10, partial(whole, least=1), for_lists=True)
    max_batch_cost: float | None = option(None, partial(above_0, wanted="a number"), for_lists=True)
    batch_wait_timeout_s: float | None = option(0.0, seconds, for_lists=True, may_be_none=True)
    idle_timeout_s: float | None = option(None, seconds, for_lists=True)
    regather: bool = option(True, yes_or_no, for_lists=True)
    max_concurrent_batches: int | None = option(
        1, partial(whole, least=1), may_be_none=True, at_once=True
    )
    max_queued_requests: int | None = option(None, partial(whole, least=0), at_once=True)
    overload: Overload = choice("reject", Overload, at_once=True)
    batch_size_fn: Callable[[Any], float] | None = callback(
        "batch_size_fn=lambda item: len(item)", for_lists=True
    )
    bucket_by: Callable[[Any], Hashable] | None = callback("bucket_by=lambda item: item.shape")
    allowed_batch_sizes: Sequence[int] | None = option(None, sizes_in_order, for_lists=True)
    padding: Padding = choice("up", Padding)
    pad: Callable[[list[Any], int], Sequence[Any]] | None = callback(
        "pad=lambda items, n: items + [blank] * (n - len(items))", for_lists=True
    )
    preferred_batch_sizes: Sequence[int] | None = option(None, sizes_in_order, for_lists=True)
    priority_levels: int = option(1, partial(whole, least=1))
    default_priority: int | None = option(None, partial(whole, least=1))
    priority_aging_s: float | None = option(10.0, seconds, may_be_none=True)
    priority_mixing: PriorityMixing = choice("merge", PriorityMixing)
    queue_policies: Mapping[int, QueuePolicy] = records_by_level(QueuePolicy, _by_level)
    default_queue_policy: QueuePolicy | None = record(QueuePolicy, _queue_policy)
    order: Order = choice("arrival", Order)
    sticky_load_factor: float | None = option(None, factor, at_once=True)
    use_scope_deadline: bool = option(False, yes_or_no)
    refuse_late: bool = option(False, yes_or_no, at_once=True)
    split: Callable[[Any, float], Sequence[Any]] | None = callback(
        "split=lambda item, room: [item[:room], item[room:]]", for_lists=True
    )
    join: Callable[[list[Any]], Any] | None = callback(
        "join=lambda results: sum(results, [])", for_lists=True
    )
    adaptive: LatencyTarget | None = record(
        LatencyTarget, _made_by(LatencyTarget, "shoal.LatencyTarget(p99_s=0.1)")
    )
    policy: Callable[["BatchOptions"], BatchPolicy] | None = callback(
        "policy=MyPolicy, a function of the options that makes a BatchPolicy"
    )
    dedupe: bool | Callable[[Any], Hashable] = option(
        False, _dedupe, is_function=True, at_once=True
    )
    cache: Cache | None = record(
        Cache, _made_by(Cache, "shoal.Cache(max_size=1000, ttl_s=60)"), at_once=True
    )
    models: Models | None = record(Models, _made_by(Models, "shoal.Models(most=4)"))
    limit: Limit | None = record(
        Limit, _made_by(Limit, "shoal.Limit(batches_per_s=5)"), at_once=True
    )
    open: Opens | None = option(None, _opens, is_function=True)
    stream_buffer: int = option(16, partial(whole, least=1), at_once=True)
    slow_reader_timeout_s: float | None = option(10.0, seconds, may_be_none=True)
    cancel_abandoned: bool = option(True, yes_or_no)
    handler_timeout_s: float | None = option(None, seconds)
    request_timeout_s: float | None = option(None, seconds, at_once=True)
    isolate_errors: bool = option(False, yes_or_no)
    graceful_shutdown_timeout_s: float = option(20.0, seconds, at_once=True)
    drop_queued_on_shutdown: bool = option(False, yes_or_no, at_once=True)

    def __post_init__(self) -> None:
        check_options(self)
        self._check_sizes_and_levels()
        if (refusal := refused_mix(self)) is not None:
            raise ValueError(refusal)

    def _check_sizes_and_levels(self) -> None:
        most = self.max_batch_size
        for name in ("allowed_batch_sizes", "preferred_batch_sizes"):
            sizes: Sequence[int] | None = getattr(self, name)
            if sizes is not None and sizes[-1] > most:
                raise ValueError(
                    f"{name} must not go beyond max_batch_size={most}, but {list(sizes)!r} does"
                )
        sizes = self.allowed_batch_sizes
        if sizes is not None and sizes[-1] != most:
            raise ValueError(
                f"the last of allowed_batch_sizes must be max_batch_size={most}, not {sizes[-1]}"
            )
        for level in self.queue_policies:
            self.checked_priority("a level of queue_policies", level)
        if self.default_priority is not None:
            self.checked_priority("default_priority", self.default_priority)

    def checked_priority(self, name: str, value: Any) -> int:
        """Checks and returns a priority level.

        Raises:
            TypeError: It is not a whole number.
            ValueError: There is no such level.
        """
        level = whole(name, value, least=1)
        if level > self.priority_levels:
            raise ValueError(
                f"{name} must be from 1, the highest, to priority_levels={self.priority_levels}, "
                f"not {value!r}"
            )
        return level

    @property
    def batch_limit(self) -> Amount:
        """How many requests a batch may have, and how much they may cost together."""
        most, cost = self.max_batch_size, self.max_batch_cost
        if cost is not None:
            return Amount(most, cost)
        return Amount(most if self.batch_size_fn is None else math.inf, most)

    @property
    def slots(self) -> float:
        """`max_concurrent_batches` as a number: infinity for None."""
        return math.inf if self.max_concurrent_batches is None else self.max_concurrent_batches

    @property
    def usual_priority(self) -> int:
        """The level of a call that names none."""
        return self.default_priority or (self.priority_levels + 1) // 2

    def queue_policy(self, priority: int) -> QueuePolicy | None:
        """Returns the queue policy of a priority level; None if it has none."""
        return self.queue_policies.get(priority, self.default_queue_policy)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Makes the record from a user's keywords.

        Args:
            given: Option names to values.

        Returns:
            The checked record.

        Raises:
            TypeError: A name is not an option, or a value has the wrong type.
            ValueError: A value is out of range, or two options can't be combined.
        """
        refuse_unknown("a batcher", given, OPTIONS)
        return cls(**given)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Makes a copy of this record with some options changed, checked as a whole.

        Args:
            changes: Option names to their new values.

        Returns:
            The new record; this one is not changed.

        Raises:
            TypeError: A name is not an option, or a value has the wrong type.
            ValueError: A value is out of range, or two options can't be combined.
        """
        refuse_unknown("a batcher", changes, OPTIONS)
        return replace(self, **changes)

    def oddity(self) -> str | None:
        """Returns a warning about options that are valid but probably a mistake; None if fine."""
        if not self.max_queued_requests or self.max_concurrent_batches is None:
            return None  # with unlimited batches a slot is always free
        wanted = self.batch_limit.requests * self.max_concurrent_batches
        if wanted == math.inf or self.max_queued_requests >= wanted:
            return None
        return (
            f"max_queued_requests={self.max_queued_requests} is below max_batch_size * "
            f"max_concurrent_batches = {wanted}, so full batches can't gather while the handler is "
            "busy"
        )


OPTIONS: Final = options_of(BatchOptions)
"""All options of a batcher, by their names."""
