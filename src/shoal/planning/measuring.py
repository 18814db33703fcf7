"""Measures how long a handler takes for batches of different sizes.

The handler runs in a batcher. A run is measured from the moment when a worker slot dispatches a
batch until its results are delivered, including the way to a worker thread and back. Sizes are
measured in rounds of one run each, so that a machine that slows down affects all sizes alike.
"""

from __future__ import annotations

import inspect
import time
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from shoal.batching.batcher import Batcher
from shoal.batching.decorator.batched import Decorated
from shoal.batching.decorator.decorator import open_batchers
from shoal.batching.handlers.annotations import read_signature
from shoal.batching.handlers.binding import takes_lists
from shoal.core.options.options import BatchOptions
from shoal.planning.recordings import MeasuredRunTimes, measured_run_times

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence


_WARM_UP_ROUNDS: Final = 2
_FEWEST_ROUNDS: Final = 5
_PLAIN: Final[dict[str, Any]] = {
    **{field.name: getattr(BatchOptions(), field.name) for field in fields(BatchOptions)},
    "batch_wait_timeout_s": None,
}


class NotMeasured(Exception):
    """A handler could not be measured; the error of its code, if there is one, is the cause."""


def instance_of(handler: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns an instance if the handler is a class, else the handler itself."""
    if not inspect.isclass(handler):
        if args or kwargs:
            raise TypeError("arguments are only for a class, and the handler is not one")
        return handler
    if "__call__" not in dir(handler):
        raise TypeError(
            f"the class {handler.__qualname__} has no __call__ to measure; name a class that has "
            "one, or a function"
        )
    try:
        read_signature(handler).bind(*args, **kwargs)
    except ValueError:
        pass  # no signature is available, as for some classes written in C
    except TypeError as error:
        raise TypeError(
            f"{handler.__qualname__} can't be instantiated: {error}; give its arguments by "
            "--arg VALUE and --kwarg KEY=VALUE"
        ) from None
    try:
        return handler(*args, **kwargs)
    except Exception as error:
        raise NotMeasured(f"{handler.__qualname__} could not be instantiated") from error


def opened(handler: Any, **options: Any) -> AbstractAsyncContextManager[Batcher[Any]]:
    """Opens a batcher for a handler, decorated or not; options change those of the decorator."""
    if isinstance(handler, Decorated):
        handler.configure(**options)
        return _opened_decorated(handler)
    if callable(handler) and not inspect.isclass(handler) and not takes_lists(handler):
        raise TypeError(
            f"{handler!r:.100} takes one item at a time, and it is called with batches: annotate "
            "its parameters as lists, mark it with @shoal.accept_batch, or decorate it with "
            "@shoal.batch"
        )
    return _opened(Batcher(handler, **options))


@asynccontextmanager
async def _opened(batcher: Batcher[Any]) -> AsyncGenerator[Batcher[Any]]:
    async with batcher:
        yield batcher


@asynccontextmanager
async def _opened_decorated(handler: Decorated) -> AsyncGenerator[Batcher[Any]]:
    async with open_batchers(handler):
        yield handler.batcher


async def measure(
    batcher: Batcher[Any],
    make_item: Callable[[], Any],
    sizes: Sequence[int],
    *,
    rounds: int,
    limit_s: float,
    progress: Callable[[str], None],
) -> MeasuredRunTimes:
    """Runs a handler on batches of ascending sizes, and changes the batcher's options."""
    # It stops after `limit_s`, but not before 5 rounds. `progress` is called with messages.
    runs: list[tuple[float, float]] = []
    began = reported = time.perf_counter()
    for number in range(-_WARM_UP_ROUNDS, rounds):
        now = time.perf_counter()
        if now - began > limit_s and number >= _FEWEST_ROUNDS:
            progress(
                f"stopped after {number} of {rounds} rounds: reached the limit of {limit_s:g} s"
            )
            break
        if now - reported > 2:
            reported = now
            progress(f"measured {max(0, number)} of {rounds} rounds")
        for size in sizes:
            run_s = await _one_run(batcher, [make_item() for _ in range(size)])
            if number >= 0:
                runs.append((size, run_s))
    return measured_run_times(runs)


async def _one_run(batcher: Batcher[Any], items: list[Any]) -> float:
    if batcher.fill != "closed":
        raise NotMeasured(
            f"{batcher.name} fills its batches while they run (fill={batcher.fill!r}), so there is "
            "no run time of a batch; tune is for handlers that answer a whole batch in one run"
        )
    plain: dict[str, Any] = {**_PLAIN, "max_batch_size": len(items)}
    batcher.configure(**plain)
    before = batcher.statistics().run_s
    single = len(batcher.signature.parameters) == 1
    errors: list[Exception] = []

    async def call(item: Any) -> None:
        args, kwargs = ((item,), {}) if single else _spread(item)
        try:
            if batcher.streams:
                async with batcher.call(*args, **kwargs) as stream:
                    async for _ in stream:
                        pass
            else:
                await batcher.call(*args, **kwargs)
        except Exception as error:  # the handler's, of any kind
            errors.append(error)
            batcher.flush()

    async with anyio.create_task_group() as tasks:
        for item in items:
            tasks.start_soon(call, item)
    if errors:
        raise NotMeasured(f"a batch of {len(items)} failed") from errors[0].__cause__ or errors[0]
    after = batcher.statistics().run_s
    if after.total - before.total != 1:
        raise ValueError(
            f"{len(items)} requests made {after.total - before.total} runs of the handler; tune is "
            "for handlers that answer a whole batch in one run"
        )
    return after.sum - before.sum


def _spread(item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Converts an item for a handler with several parameters into the arguments of a call."""
    if isinstance(item, dict):
        return (), cast("dict[str, Any]", item)
    if isinstance(item, (list, tuple)):
        return tuple(cast("Sequence[Any]", item)), {}
    return (item,), {}
