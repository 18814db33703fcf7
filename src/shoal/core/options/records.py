"""Options that are records: queue policies, a cache, a latency target, models, and a rate limit.

The queue policy, modelled on Triton's, sets how the requests of one level may wait. With a latency
target a batcher chooses its batch sizes and waits by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from shoal.core.options.option import (
    SAME,
    Same,
    above_0,
    check_options,
    choice,
    number,
    option,
    required,
    seconds,
    text,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_rate = partial(above_0, wanted="a number, such as 100")

TimeoutAction = Literal["reject", "delay"]


def _same_or_seconds(name: str, value: Any) -> float | Same:
    return value if isinstance(value, Same) else seconds(name, value)


def _names(name: str, value: Any) -> tuple[str, ...]:
    names: tuple[Any, ...] = ()
    if not isinstance(value, str) and hasattr(value, "__iter__"):
        names = (*value,)
    if not names or not all(isinstance(one, str) for one in names):
        raise TypeError(f'{name} must be names of models, such as ["en-fr"], not {value!r:.80}')
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How the requests of one priority level may wait in the queue.

    Attributes:
        max_queued_requests: The most requests of the level that may wait; a call beyond it raises
            `Overloaded`, whatever ``overload`` is. None for no bound of its own.
        timeout_s: How long a request may wait in the queue, in seconds; None for no limit. A call's
            own ``queue_timeout_s`` can only shorten it.
        timeout_action: What happens after that time: ``"reject"`` fails the request with
            `DeadlineExceeded`, ``"delay"`` moves it behind all others of its level.
        batch_wait_timeout_s: How long a request of the level may wait for a batch to fill, in
            seconds; by default as long as the batcher's. None: the level's requests never cause a
            batch to be dispatched, and only fill the room that other levels leave.
    """

    max_queued_requests: int | None = option(None, partial(whole, least=1))
    timeout_s: float | None = option(None, seconds)
    timeout_action: TimeoutAction = choice("reject", TimeoutAction)
    batch_wait_timeout_s: float | Same | None = option(SAME, _same_or_seconds, may_be_none=True)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """How many results are kept for equal calls, and for how long.

    When it is full, the result that was used least recently is dropped.

    Attributes:
        max_size: The most results, at least 1.
        ttl_s: How long each may be used after it was made, in seconds, above 0.
    """

    max_size: int = field(metadata=required(partial(whole, least=1)))
    ttl_s: float = field(
        metadata=required(
            partial(above_0, wanted="a number of seconds, such as 60", unit=" seconds")
        )
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """How many models each replica of a backend keeps loaded, and how long requests wait for one.

    The backend's class loads a model in its method ``load_model(self, model: str)``, and drops it
    in ``unload_model(self, model: str)``, if it has that. Both may be plain or async.

    Attributes:
        most: The most models that a replica has loaded, at least 1. The one that was used least
            recently is unloaded for another.
        max_switch_wait_s: How long requests wait for a replica that has their model, while another
            one would have to load it; and how long for their turn, while the models of all replicas
            have requests waiting. In seconds.
        load_timeout_s: How long it may take to load a model, after unloading another one, in
            seconds; None for no limit.
        field: The field of an item, an attribute or a key, that names the model of a request which
            names none otherwise; None for no such field.
        names: The models that requests may name; for another one a request fails at once with
            `NoSuchModel`. None: any, so clients that make up names cause models to be unloaded.
    """

    most: int = option(1, partial(whole, least=1))
    max_switch_wait_s: float = option(1.0, seconds)
    load_timeout_s: float | None = option(60.0, seconds, may_be_none=True)
    field: str | None = option(None, text)
    names: Sequence[str] | None = option(None, _names)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many batches may start, and how much they may cost, over time.

    It is for a service behind the handler that refuses requests above such a rate. It applies to
    all worker slots and replicas together. At least one of the two rates must be given.

    Attributes:
        batches_per_s: The most batches a second, above 0; None for no limit.
        cost_per_min: The most cost a minute, above 0, by ``batch_size_fn``; without it each request
            costs 1. Padding costs nothing. None for no limit.
        burst_s: For how many seconds unused rate is saved up, to be spent at once. With 0 only one
            batch starts at once, and each is paid for before the next one starts: services often
            enforce a rate a minute within seconds.
    """

    batches_per_s: float | None = option(None, _rate)
    cost_per_min: float | None = option(None, _rate)
    burst_s: float = option(0.0, seconds)

    def __post_init__(self) -> None:
        check_options(self)
        if math.isinf(self.burst_s):
            raise ValueError("burst_s must be finite, or all that is unused is saved for ever")
        if self.batches_per_s is None and self.cost_per_min is None:
            raise ValueError("a limit needs batches_per_s, cost_per_min, or both")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTarget:
    """A target for the latency of 99% of the calls.

    It is held as long as the handler can keep up. Under more load, batches grow up to
    ``max_batch_size``, because small ones would only make the queue longer. Bound the queue, or use
    deadlines, to refuse calls that would be late.

    Attributes:
        p99_s: How long 99% of the calls may take, from the call to the result, in seconds.
        headroom: The part of `p99_s` to plan with, above 0 and at most 1. The rest is reserved for
            overhead around the handler.
        growth: How large a batch may be, as a multiple of the largest size measured, above 1. A
            batcher starts with a batch of one, and reaches large ones in a few steps.
    """

    p99_s: float = field(
        metadata=required(
            partial(above_0, wanted="a number of seconds, such as 0.1", unit=" seconds")
        )
    )
    headroom: float = option(0.9, partial(number, wanted="a number, such as 0.9"))
    growth: float = option(4.0, partial(number, wanted="a number, such as 4"))

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 < self.headroom <= 1:
            raise ValueError(f"headroom must be above 0 and at most 1, not {self.headroom!r}")
        if not 1 < self.growth < math.inf:
            raise ValueError(f"growth must be above 1, and finite, not {self.growth!r}")

    @property
    def planned_s(self) -> float:
        """The latency to plan with, in seconds: `p99_s` times `headroom`."""
        return self.p99_s * self.headroom
