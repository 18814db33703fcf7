"""Measures how long a handler takes for batches of different sizes, and finds options for it.

The handler runs in a batcher. A run is measured from the moment when a worker slot dispatches a
batch until its results are delivered, including the way to a worker thread and back. Sizes are
measured in rounds of one run each, so that a machine that slows down affects all sizes alike.

Pairs of size and wait are simulated with the measured run times. The best pair is the one that
meets the target up to the highest rate: it leaves the largest margin for more traffic, and for a
handler that is slower than measured. Of nearly equal pairs, the one with the shorter wait is best,
then the one with the lower latency, then the smaller size: a longer wait or a larger batch must
bring a gain.

The alternative was to choose the pair that keeps the handler least busy. That pair always waits as
long as the target allows, which adds latency to save time on a device that nothing else uses. For a
shared device, the table shows how busy each pair keeps it.
"""

from __future__ import annotations

import inspect
import math
import time
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from shoal.batching.batcher import Batcher
from shoal.batching.decorator.batched import Decorated
from shoal.batching.handlers.binding import takes_lists
from shoal.core.options.option import defaults_of
from shoal.core.options.options import BatchOptions
from shoal.core.simulation import simulate
from shoal.core.simulation_results import percentile
from shoal.planning.figures import duration, new_figure, tidy
from shoal.planning.recordings import MeasuredRunTimes, measured_run_times
from shoal.planning.traces import poisson

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    from shoal.core.simulation_results import Simulation


_WARM_UP_ROUNDS: Final = 2
_FEWEST_ROUNDS: Final = 5
_PLAIN: Final[dict[str, Any]] = {**defaults_of(BatchOptions), "batch_wait_timeout_s": None}


class NotMeasured(Exception):
    """A handler could not be measured; the error of its code is the cause."""


def opened(handler: Any, **options: Any) -> AbstractAsyncContextManager[Batcher[Any]]:
    """Opens a batcher for a handler, decorated or not; options change those of the decorator."""
    if isinstance(handler, Decorated):
        handler.configure(**options)
        return handler.opened()
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
        raise ValueError(
            f"{batcher.name} fills its batches while they run (fill={batcher.fill!r}), so there is "
            "no run time of a batch"
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
        raise ValueError(f"{len(items)} requests made {after.total - before.total} runs, not one")
    return after.sum - before.sum


def _spread(item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Converts an item for a handler with several parameters into the arguments of a call."""
    if isinstance(item, dict):
        return (), cast("dict[str, Any]", item)
    if isinstance(item, (list, tuple)):
        return tuple(cast("Sequence[Any]", item)), {}
    return (item,), {}


_WAITS: Final = (0.0, 1 / 8, 1 / 4, 1 / 2)
"""The waits to try, as shares of the target."""
_BISECTIONS: Final = 6
_GAIN: Final = 1.1
"""Smaller gains of one pair over another are taken for chance, or are not worth a wait."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The simulated result of one pair of options."""

    max_batch_size: int
    batch_wait_timeout_s: float
    p50_s: float  # half of the requests are answered within it
    p99_s: float  # unanswered requests have infinite latency
    mean_batch: float
    busy_share: float  # 0 to 1
    up_to_rate: float = 0.0  # the highest rate at which the target is met; 0 if it is missed

    @property
    def meets_target(self) -> bool:
        return self.up_to_rate > 0


@dataclass(frozen=True, slots=True)
class Search:
    options: BatchOptions  # the other options, which stay as they are
    run_times: MeasuredRunTimes
    rate: float
    p99_s: float  # the target
    # For each pair; 200 of these are above the p99, which makes it stable enough to choose by.
    requests: int = 20_000

    def candidates(self, progress: Callable[[str], None]) -> list[Candidate]:
        """Simulates every measured size with every wait; returns the best first."""
        if self.options.max_concurrent_batches is None:
            raise ValueError(
                "max_concurrent_batches=none has no best size, because enough concurrent batches "
                "can serve any rate; give a number to tune for"
            )
        # A batch of one request never waits.
        pairs = [
            (int(size), float(f"{self.p99_s * part:.2g}"))
            for size in self.run_times.runs_s
            for part in (_WAITS if size > 1 else _WAITS[:1])
        ]
        found: list[Candidate] = []
        for number, pair in enumerate(pairs, 1):
            found.append(self._tried(*pair))
            if number % 7 == 0:
                progress(f"simulated {number} of {len(pairs)} pairs of options")
        found.sort(key=_worse)
        if (best := _best([one for one in found if one.meets_target])) is not None:
            found.remove(best)
            found.insert(0, best)
        return found

    @property
    def batching_helps(self) -> bool:
        """Whether batches raise the handler's throughput; True if none were measured."""
        largest = max(self.run_times.runs_s)
        return largest == 1 or self.most(largest) >= _GAIN * self.most(1)

    def most(self, size: float) -> float:
        """Returns how many items a second the handler can process in batches up to a size."""
        return self.options.slots * max(
            measured / self.run_times(measured)
            for measured in self.run_times.runs_s
            if measured <= size
        )

    def _tried(self, size: int, wait_s: float) -> Candidate:
        simulation = self._simulated(size, wait_s, self.rate)
        p99_s = _percentile_of_all_s(simulation, 99)
        return Candidate(
            size,
            wait_s,
            _percentile_of_all_s(simulation, 50),
            p99_s,
            simulation.mean_batch,
            simulation.busy_share,
            self._highest_rate(size, wait_s) if p99_s <= self.p99_s else 0.0,
        )

    def _highest_rate(self, size: int, wait_s: float) -> float:
        low, high = self.rate, max(self.rate, self.most(size))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if _percentile_of_all_s(self._simulated(size, wait_s, middle), 99) <= self.p99_s:
                low = middle
            else:
                high = middle
        return low

    def _simulated(self, size: int, wait_s: float, rate: float) -> Simulation:
        changes: dict[str, Any] = {"max_batch_size": size, "batch_wait_timeout_s": wait_s}
        options = self.options.changed(changes)
        return simulate(poisson(rate, self.requests / rate), options, self.run_times)


def least_busy(fitting: Sequence[Candidate]) -> Candidate | None:
    """Returns the pair that keeps the handler clearly less busy than the best one, or None."""
    least = min(one.busy_share for one in fitting)
    if least * _GAIN > fitting[0].busy_share:
        return None
    near = [one for one in fitting if one.busy_share <= least * _GAIN]
    return min(near, key=lambda one: (one.batch_wait_timeout_s, one.busy_share))


def _best(fitting: Sequence[Candidate]) -> Candidate | None:
    if not fitting:
        return None
    highest = max(one.up_to_rate for one in fitting)
    near = [one for one in fitting if one.up_to_rate * _GAIN >= highest]
    wait_s = min(one.batch_wait_timeout_s for one in near)
    near = [one for one in near if one.batch_wait_timeout_s == wait_s]
    p99_s = min(one.p99_s for one in near)
    return min(
        (one for one in near if one.p99_s <= p99_s * _GAIN), key=lambda one: one.max_batch_size
    )


def _worse(candidate: Candidate) -> tuple[float, ...]:
    """Returns the sort key of a candidate; rounded, since small differences are random."""
    if not candidate.meets_target:
        return 1, candidate.p99_s, candidate.busy_share
    return (
        0,
        -float(f"{candidate.up_to_rate:.2g}"),
        float(f"{candidate.p99_s:.2g}"),
        candidate.busy_share,
    )


def _percentile_of_all_s(simulation: Simulation, percent: float) -> float:
    """Gives unanswered requests an infinite latency."""
    times = sorted(latency if latency == latency else math.inf for latency in simulation.latency_s)
    return percentile(times, percent)


def plot_tuning(search: Search, candidates: Sequence[Candidate], path: Path) -> None:
    """Draws the run times with their fit, and the p99 of all candidates with the target."""
    figure = new_figure(11)
    times, found = figure.subplots(1, 2)
    _draw_run_times(times, search.run_times)
    _draw_candidates(found, search, candidates)
    figure.savefig(path, dpi=110)


def _draw_run_times(axes: Any, measured: MeasuredRunTimes) -> None:
    sizes = list(measured.runs_s)
    for size, runs_s in measured.runs_s.items():
        label = "runs" if size == sizes[0] else None
        heights = [run_s * 1e3 for run_s in runs_s]
        axes.plot([size] * len(runs_s), heights, ".", color="#0f7c8a", alpha=0.3, label=label)
    usual_ms = [median(runs_s) * 1e3 for runs_s in measured.runs_s.values()]
    axes.plot(sizes, usual_ms, "_", color="#0f7c8a", markersize=14, label="median")
    fit = f"{duration(measured.fixed_s)} + {duration(measured.per_item_s)} an item"
    line_ms = [(measured.fixed_s + measured.per_item_s * size) * 1e3 for size in sizes]
    axes.plot(sizes, line_ms, color="#d9843b", label=fit)
    axes.set(xlabel="size of a batch", ylabel="milliseconds", ylim=(0, None))
    axes.set_title("Run time of the handler")
    tidy(axes)


def _draw_candidates(axes: Any, search: Search, candidates: Sequence[Candidate]) -> None:
    """Draws a curve for each size. Values above 10 times the target are cut off."""
    target_ms = search.p99_s * 1e3
    top_ms = target_ms * 10
    by_size = sorted(candidates, key=lambda one: (one.max_batch_size, one.batch_wait_timeout_s))
    for size, group in groupby(by_size, key=lambda one: one.max_batch_size):
        curve = list(group)
        axes.plot(
            [one.batch_wait_timeout_s * 1e3 for one in curve],
            [min(one.p99_s * 1e3, top_ms) for one in curve],
            ".-",
            label=f"{size}",
        )
    axes.axhline(target_ms, color="black", linestyle=":", label="target")
    if (best := candidates[0]).meets_target:
        point = best.batch_wait_timeout_s * 1e3, best.p99_s * 1e3
        label = f"best: {best.max_batch_size}, {duration(best.batch_wait_timeout_s)}"
        axes.plot(*point, "*", color="#b8405e", markersize=14, label=label)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, top_ms))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="batch_wait_timeout_s, milliseconds", ylabel="p99, milliseconds")
    axes.set_title(f"p99 by max_batch_size at {search.rate:,g} requests a second")
    tidy(axes)
