"""The options of a batcher: one frozen record, checked when it is made.

Frozen, so that a running batcher can be given another set atomically: a batch is formed and run
under the record that was in force when it was cut. The names are Ray Serve's where it has one.
"""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypedDict, get_args

Overload = Literal["reject", "wait"]


class OptionKeywords(TypedDict, total=False):
    """The options as keywords, for type checkers; `BatchOptions` says what they mean."""

    max_batch_size: int
    batch_wait_timeout_s: float | None
    max_concurrent_batches: int
    max_queued_requests: int | None
    overload: Overload
    stream_buffer: int
    slow_reader_timeout_s: float | None
    cancel_abandoned: bool
    handler_timeout_s: float | None
    request_timeout_s: float | None
    isolate_errors: bool
    graceful_shutdown_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How batches are formed, bounded and timed.

    Attributes:
        max_batch_size: The most requests in one batch, at least 1.
        batch_wait_timeout_s: How long the oldest request may wait for company, in seconds, counted
            from its arrival. 0 takes what is there after one pass of the scheduler. None waits
            until the batch is full, flushed or drained.
        max_concurrent_batches: How many batches may be in the handler at once, at least 1.
        max_queued_requests: The most requests that may wait for a slot; None for no bound. 0 admits
            only what can start now.
        overload: What a call meets when the line is full: ``"reject"`` raises `Overloaded` at once,
            ``"wait"`` parks the caller, in order.
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
    """

    max_batch_size: int = 10
    batch_wait_timeout_s: float | None = 0.0
    max_concurrent_batches: int = 1
    max_queued_requests: int | None = None
    overload: Overload = "reject"
    stream_buffer: int = 16
    slow_reader_timeout_s: float | None = 10.0
    cancel_abandoned: bool = True
    handler_timeout_s: float | None = None
    request_timeout_s: float | None = None
    isolate_errors: bool = False
    graceful_shutdown_timeout_s: float = 20.0

    def __post_init__(self) -> None:
        put = object.__setattr__  # the record is frozen; this is its own constructor
        put(self, "max_batch_size", _whole("max_batch_size", self.max_batch_size, least=1))
        put(
            self,
            "max_concurrent_batches",
            _whole("max_concurrent_batches", self.max_concurrent_batches, least=1),
        )
        put(self, "stream_buffer", _whole("stream_buffer", self.stream_buffer, least=1))
        if self.max_queued_requests is not None:
            put(
                self,
                "max_queued_requests",
                _whole("max_queued_requests", self.max_queued_requests, least=0),
            )
        for name in (
            "batch_wait_timeout_s",
            "slow_reader_timeout_s",
            "handler_timeout_s",
            "request_timeout_s",
        ):
            value = getattr(self, name)
            if value is not None:
                put(self, name, seconds(name, value))
        put(
            self,
            "graceful_shutdown_timeout_s",
            seconds("graceful_shutdown_timeout_s", self.graceful_shutdown_timeout_s),
        )
        for name in ("cancel_abandoned", "isolate_errors"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.overload not in get_args(Overload):
            raise ValueError(f"overload must be 'reject' or 'wait', not {self.overload!r}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Makes the record from keywords as a user typed them.

        Args:
            given: Option names to values.

        Returns:
            The checked record.

        Raises:
            TypeError: A name is no option, or a value has the wrong type.
            ValueError: A value is out of its range.
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
            ValueError: A value is out of its range.
        """
        _refuse_unknown(type(self), changes)
        return replace(self, **changes)

    def oddity(self) -> str | None:
        """Says what is allowed about these options, and hardly meant; None for nothing."""
        wanted = self.max_batch_size * self.max_concurrent_batches
        if not self.max_queued_requests or self.max_queued_requests >= wanted:
            return None
        return (
            f"max_queued_requests={self.max_queued_requests} is below max_batch_size * "
            f"max_concurrent_batches = {wanted}, so full batches can't gather while the handler is "
            "busy"
        )


def _refuse_unknown(cls: type[BatchOptions], given: Mapping[str, Any]) -> None:
    names = [field.name for field in fields(cls)]
    for name in given:
        if name not in names:
            raise TypeError(f"{name!r} is not an option of a batcher; there are {', '.join(names)}")


def _whole(name: str, value: Any, *, least: int) -> int:
    try:
        whole = operator.index(_as_int(value))
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if whole < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")
    return whole


def seconds(name: str, value: Any) -> float:
    """Checks a number of seconds.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative, or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} must be at least 0 seconds, not {value!r}")
    return float(value)


def _as_int(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
