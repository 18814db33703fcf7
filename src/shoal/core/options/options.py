"""The options of a batcher: one frozen record, checked when it is made.

Frozen, so that a running batcher can be given another set atomically: a batch is formed and run
under the record that was in force when it was cut. The names are Ray Serve's where it has one, then
TensorFlow's and Triton's.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, get_args

from shoal.core.options.checks import ascending, function, one_of, seconds, whole, yes_or_no
from shoal.core.options.keywords import Order, Overload, Padding, PriorityMixing
from shoal.core.options.mixes import refused_mix
from shoal.core.options.names import suggested
from shoal.core.options.records import LatencyTarget, QueuePolicy
from shoal.core.policy import BatchPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How batches are formed, bounded and timed.

    Attributes:
        max_batch_size: The most requests in one batch, at least 1; with `batch_size_fn` the most
            that their costs may sum up to.
        batch_wait_timeout_s: How long the oldest request may wait for company, in seconds, counted
            from its arrival. 0 takes what is there after one pass of the scheduler. None waits
            until the batch is full, flushed or drained.
        idle_timeout_s: The wait also ends when no request came for so many seconds. Beside it, a
            `batch_wait_timeout_s` of 0 means that the wait has no other end. None for no such end.
        max_concurrent_batches: How many batches may be in the handler at once, at least 1; None for
            any number.
        max_queued_requests: The most requests that may wait for a slot; None for no bound. 0 admits
            only what can start now.
        overload: What a call meets when the line is full: ``"reject"`` raises `Overloaded` at once,
            ``"wait"`` parks the caller, in order, ``"shed_oldest"`` fails the oldest request of the
            lowest level instead, ``"shed_lowest"`` the newest of the lowest level if that is below
            the newcomer's.
        batch_size_fn: The cost of one item, at least 0. One that costs more than `max_batch_size`
            is refused with `ItemTooLarge`. An item that does not fit waits, first in line.
        bucket_by: The key of one item; only requests with equal keys share a batch. Of the buckets
            that are due, the one with the oldest request goes first.
        allowed_batch_sizes: The sizes that the handler may be given, ascending; the last is
            `max_batch_size`. Batches in between are padded.
        padding: ``"up"`` pads to the next allowed size, ``"down"`` cuts back to the one before,
            ``"cost"`` does what costs less per request by the run times measured.
        pad: Makes a list of items up to a size: ``pad(items, n)`` returns `items` and as many more
            as it takes. By default the last item is repeated. The results of padding are dropped.
        preferred_batch_sizes: Sizes that are worth sending at once, ascending. A smaller batch
            waits; a larger one than the last forms only of requests whose wait is over, up to
            `max_batch_size`.
        priority_levels: How many levels of priority there are; 1 is the highest.
        default_priority: The level of a call that names none; the middle one by default.
        priority_aging_s: How many seconds of waiting make up for one level, so that no level
            starves. None for strict priorities.
        priority_mixing: ``"merge"`` lets a batch have requests of several levels, the lower ones in
            the room that the higher ones leave; ``"isolate"`` does not.
        queue_policies: How the requests of a level may wait, by level.
        default_queue_policy: The same for all other levels.
        order: ``"arrival"`` or ``"deadline"``: which request of a level goes first. A request
            without a deadline counts as due `priority_aging_s` after its arrival.
        use_scope_deadline: Whether the deadline of the caller's cancel scope counts as the call's,
            for the order, for leaving in time and for `refuse_late`.
        refuse_late: Whether a call that can't end by its deadline, by the run times measured, is
            refused with `Overloaded`.
        split: Divides an item that does not fit: ``split(item, room)`` returns its parts, in order,
            the first of which costs at most `room`, and each other at most `max_batch_size`.
        join: Makes one result of the results of the parts, in their order.
        adaptive: The latency against which batch size and wait are chosen; None for fixed ones.
        policy: Makes a rule of your own, a `BatchPolicy`, from these options.
        stream_buffer: How many items of a stream may wait for its reader, at least 1.
        slow_reader_timeout_s: For how long in all a slow reader may hold its batch back before it
            alone fails; its allowance is whole again once it has caught up. None for no limit.
        cancel_abandoned: Whether a handler is cancelled when every caller of its batch has left.
        handler_timeout_s: How long one run of the handler may take; None for no limit.
        request_timeout_s: How long one call may take, in line and in the handler together; None for
            no limit. A shorter deadline of the call itself wins.
        isolate_errors: Whether a failed batch is split and run again until the items that make it
            fail stand alone.
        graceful_shutdown_timeout_s: How long closing waits for what is in line and running.
        drop_queued_on_shutdown: Whether closing fails what is in line at once, and answers only
            what runs.
    """

    max_batch_size: int = 10
    batch_wait_timeout_s: float | None = 0.0
    idle_timeout_s: float | None = None
    max_concurrent_batches: int | None = 1
    max_queued_requests: int | None = None
    overload: Overload = "reject"
    batch_size_fn: Callable[[Any], float] | None = None
    bucket_by: Callable[[Any], Hashable] | None = None
    allowed_batch_sizes: Sequence[int] | None = None
    padding: Padding = "up"
    pad: Callable[[list[Any], int], Sequence[Any]] | None = None
    preferred_batch_sizes: Sequence[int] | None = None
    priority_levels: int = 1
    default_priority: int | None = None
    priority_aging_s: float | None = 10.0
    priority_mixing: PriorityMixing = "merge"
    queue_policies: Mapping[int, QueuePolicy] = field(
        default_factory=dict[int, QueuePolicy], hash=False
    )
    default_queue_policy: QueuePolicy | None = None
    order: Order = "arrival"
    use_scope_deadline: bool = False
    refuse_late: bool = False
    split: Callable[[Any, float], Sequence[Any]] | None = None
    join: Callable[[list[Any]], Any] | None = None
    adaptive: LatencyTarget | None = None
    policy: Callable[["BatchOptions"], BatchPolicy] | None = None
    stream_buffer: int = 16
    slow_reader_timeout_s: float | None = 10.0
    cancel_abandoned: bool = True
    handler_timeout_s: float | None = None
    request_timeout_s: float | None = None
    isolate_errors: bool = False
    graceful_shutdown_timeout_s: float = 20.0
    drop_queued_on_shutdown: bool = False

    def __post_init__(self) -> None:
        put = object.__setattr__  # the record is frozen; this is its own constructor
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                put(self, name, whole(name, value, least=least))
        for name in _SECONDS:
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                put(self, name, seconds(name, value))
        for name in _SWITCHES:
            yes_or_no(name, getattr(self, name))
        for name, choice in _CHOICES.items():
            one_of(name, getattr(self, name), get_args(choice))
        for name, form in _FUNCTIONS.items():
            if getattr(self, name) is not None:
                function(name, getattr(self, name), form)
        for name in ("allowed_batch_sizes", "preferred_batch_sizes"):
            if getattr(self, name) is not None:
                put(self, name, ascending(name, getattr(self, name), self.max_batch_size))
        self._check_sizes_and_levels()
        put(self, "queue_policies", dict(self.queue_policies))
        if (refusal := refused_mix(self)) is not None:
            raise ValueError(refusal)

    def _check_sizes_and_levels(self) -> None:
        sizes = self.allowed_batch_sizes
        if sizes is not None and sizes[-1] != self.max_batch_size:
            raise ValueError(
                f"the last of allowed_batch_sizes must be max_batch_size={self.max_batch_size}, "
                f"not {sizes[-1]}"
            )
        adaptive: Any = self.adaptive
        if adaptive is not None and not isinstance(adaptive, LatencyTarget):
            raise TypeError(
                f"adaptive must be a LatencyTarget or None, not {adaptive!r}; "
                "write adaptive=shoal.LatencyTarget(p99_s=0.1)"
            )
        by_level: Any = self.queue_policies
        if not isinstance(by_level, Mapping):
            raise TypeError(
                f"queue_policies must map levels to QueuePolicy records, not "
                f"{by_level!r}; write queue_policies={{2: QueuePolicy(timeout_s=1)}}"
            )
        for level in self.queue_policies:
            self.checked_priority("a level of queue_policies", level)
        policies: list[Any] = list(self.queue_policies.values())
        if self.default_queue_policy is not None:
            policies.append(self.default_queue_policy)
        for policy in policies:
            if not isinstance(policy, QueuePolicy):
                raise TypeError(f"a queue policy must be a QueuePolicy record, not {policy!r}")
        if self.default_priority is not None:
            self.checked_priority("default_priority", self.default_priority)

    def checked_priority(self, name: str, value: Any) -> int:
        """Checks a level of priority.

        Raises:
            TypeError: It is no whole number.
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
    def slots(self) -> float:
        """`max_concurrent_batches` as a number: infinity for None."""
        return math.inf if self.max_concurrent_batches is None else self.max_concurrent_batches

    @property
    def usual_priority(self) -> int:
        """The level of a call that names none."""
        return self.default_priority or (self.priority_levels + 1) // 2

    def queue_policy(self, priority: int) -> QueuePolicy | None:
        """Returns how the requests of a level may wait; None if nothing is said about it."""
        return self.queue_policies.get(priority, self.default_queue_policy)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Makes the record from keywords as a user typed them.

        Args:
            given: Option names to values.

        Returns:
            The checked record.

        Raises:
            TypeError: A name is no option, or a value has the wrong type.
            ValueError: A value is out of its range, or two options do not go together.
        """
        _refuse_unknown(cls, given)
        return cls(**given)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Makes the record that differs from this one by `changes`, checked as a whole.

        Args:
            changes: Option names to their new values.

        Returns:
            The new record; this one stays as it is.

        Raises:
            TypeError: A name is no option, or a value has the wrong type.
            ValueError: A value is out of its range, or two options do not go together.
        """
        _refuse_unknown(type(self), changes)
        return replace(self, **changes)

    def oddity(self) -> str | None:
        """Says what is allowed about these options, and hardly meant; None for nothing."""
        if not self.max_queued_requests or self.max_concurrent_batches is None:
            return None  # without a bound on batches the handler is never too busy for one
        wanted = self.max_batch_size * self.max_concurrent_batches
        if self.max_queued_requests >= wanted:
            return None
        return (
            f"max_queued_requests={self.max_queued_requests} is below max_batch_size * "
            f"max_concurrent_batches = {wanted}, so full batches can't gather while the handler is "
            "busy"
        )


_WHOLE = {
    "max_batch_size": 1,
    "max_concurrent_batches": 1,
    "stream_buffer": 1,
    "max_queued_requests": 0,
    "priority_levels": 1,
}
_SECONDS = (
    "batch_wait_timeout_s",
    "idle_timeout_s",
    "priority_aging_s",
    "slow_reader_timeout_s",
    "handler_timeout_s",
    "request_timeout_s",
    "graceful_shutdown_timeout_s",
)
_MAY_BE_NONE = {*_SECONDS, "max_queued_requests", "max_concurrent_batches"} - {
    "graceful_shutdown_timeout_s"
}
_SWITCHES = (
    "cancel_abandoned",
    "drop_queued_on_shutdown",
    "isolate_errors",
    "refuse_late",
    "use_scope_deadline",
)
_CHOICES = {
    "overload": Overload,
    "padding": Padding,
    "order": Order,
    "priority_mixing": PriorityMixing,
}
_FUNCTIONS = {
    "batch_size_fn": "batch_size_fn=lambda item: len(item)",
    "bucket_by": "bucket_by=lambda item: item.shape",
    "pad": "pad=lambda items, n: items + [blank] * (n - len(items))",
    "split": "split=lambda item, room: [item[:room], item[room:]]",
    "join": "join=lambda results: sum(results, [])",
    "policy": "policy=MyPolicy, a function of the options that makes a BatchPolicy",
}


def _refuse_unknown(cls: type[BatchOptions], given: Mapping[str, Any]) -> None:
    names = [field.name for field in fields(cls)]
    for name in given:
        if name not in names:
            raise TypeError(no_option(name, names))


def no_option(name: str, names: Sequence[str]) -> str:
    """Says that there is no such option, and which is likely to be meant."""
    hint = suggested(name, names) or f"there are {', '.join(names)}"
    return f"{name!r} is not an option of a batcher; {hint}"
