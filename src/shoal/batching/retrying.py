"""`shoal.retrying`: retries calls for a short time while the queue is full.

TensorFlow Serving puts such a retrier in front of a scheduler that never queues. It is for bursts
that are shorter than a few batches: with ``max_queued_requests=0`` a call is refused even if a slot
will be free in a moment. If callers should wait for as long as it takes, in order and without
polling, use ``overload="wait"`` instead.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import anyio

from shoal.batching.calls.call import StreamCall
from shoal.core.options.checks import seconds
from shoal.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

P = ParamSpec("P")
R = TypeVar("R")


def retrying(
    call: Callable[P, Awaitable[R]],
    /,
    *,
    max_time_s: float = 0.010,
    delay_s: float = 0.0001,
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Returns a call that is retried while it raises `Overloaded`.

    ``call = shoal.retrying(embed)``, then ``await call("text")``. The first try is always made.
    Another is made after `delay_s`, if it would begin less than `max_time_s` after the first. All
    other errors are raised at once. A deadline of the call starts again with each try:
    ``shoal.retrying(embed.options(timeout_s=0.5))``.

    Args:
        call: A batched function, or any other async function that raises `Overloaded`. Not one that
            returns a stream: a stream is refused when it is entered, not when it is called.
        max_time_s: How long to try, in seconds; a try that has begun is not cut short.
        delay_s: How long to wait between two tries, in seconds, above 0.

    Returns:
        An async function with the parameters of `call`.

    Raises:
        TypeError: `call` is no async function, or a time is no number.
        ValueError: A time is out of its range.

    Raises (from the call): the last `Overloaded` when no try is left; what `call` raises.

    Cancellation: as of `call`; between two tries nothing is queued. Checkpoint: always.
    """
    _refuse_streams(call)
    max_time_s = seconds("max_time_s", max_time_s)
    if seconds("delay_s", delay_s) == 0:
        raise ValueError(
            f"delay_s must be above 0 seconds, not {delay_s!r}: it would retry without a pause"
        )

    @functools.wraps(call, updated=())
    async def call_again(*args: P.args, **kwargs: P.kwargs) -> R:
        give_up_at = anyio.current_time() + max_time_s
        while True:
            try:
                return await call(*args, **kwargs)
            except Overloaded:
                if anyio.current_time() + delay_s >= give_up_at:
                    raise
            await anyio.sleep(delay_s)

    return call_again


def _refuse_streams(call: Any) -> None:
    if not callable(call):
        raise TypeError(f"retrying() takes an async function, not {call!r}")
    if (
        isinstance(call, StreamCall)
        or inspect.isasyncgenfunction(call)
        or inspect.isgeneratorfunction(call)
    ):
        raise TypeError(
            f"retrying() takes a call that is awaited, but {call!r} returns a stream, which can be "
            "refused only when it is entered; retry entering it in a loop of your own:\n"
            "    async with call(item) as stream: ..."
        )
