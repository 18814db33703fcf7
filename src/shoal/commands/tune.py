"""``shoal tune``: measures a handler and finds options that meet a target.

The result is text for people or JSON for programs.
"""

from __future__ import annotations

import math
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.decorator.batched import Decorated
from shoal.commands.support.arguments import (
    add,
    add_init_arguments,
    add_loop_argument,
    add_option_argument,
    add_output_arguments,
    count,
    describe,
    more_than_0,
)
from shoal.commands.support.loading import instance_of, named
from shoal.commands.support.output import (
    CommandError,
    as_mistakes,
    failed_code,
    keywords,
    save_plot,
    say,
    show,
    table,
)
from shoal.commands.support.values import init_arguments_of, json_of, option_pairs
from shoal.planning.figures import duration, percent, percentiles, three_digits
from shoal.planning.tuning import (
    Candidate,
    NotMeasured,
    Search,
    least_busy,
    measure,
    opened,
    plot_tuning,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

    from shoal.batching.batcher import Batcher
    from shoal.core.options.options import BatchOptions
    from shoal.planning.recordings import MeasuredRunTimes

_SHOWN: Final = 10


def tuned_as_text(search: Search, candidates: Sequence[Candidate]) -> str:
    parts = [_run_times(search.run_times)]
    fitting = [candidate for candidate in candidates if candidate.meets_target]
    asked = f"{search.rate:,g} requests a second, 99% of them within {duration(search.p99_s)}"
    if not fitting:
        parts.append(f"{asked}: none of {len(candidates)} pairs of options meets this target.")
        parts.append(_why_not(search, candidates[0]))
        parts += _without_batches(search)
        return "\n\n".join(parts)
    parts.append(
        f"{asked}: {len(fitting)} of {len(candidates)} pairs of options meet this target. Those "
        "that meet it up to the highest rate come first:"
    )
    parts.append(_found(fitting[:_SHOWN]))
    best = f"Best: {_as_options(fitting[0])}"
    if (idle := least_busy(fitting)) is not None:
        best += (
            f"\nIf others share the device: {_as_options(idle)}, which keeps it "
            f"{percent(idle.busy_share)} busy."
        )
    parts += [best, *_without_batches(search)]
    return "\n\n".join(parts)


def tuned_as_data(search: Search, candidates: Sequence[Candidate]) -> dict[str, Any]:
    measured = search.run_times
    return {
        "rate": search.rate,
        "p99_target_s": search.p99_s,
        "batching_helps": search.batching_helps,
        "run_time": {
            "fixed_s": measured.fixed_s,
            "per_item_s": measured.per_item_s,
            "runs_s": {str(size): list(runs_s) for size, runs_s in measured.runs_s.items()},
        },
        "candidates": [
            {
                "meets_target": one.meets_target,
                **{name: None if each == math.inf else each for name, each in asdict(one).items()},
            }
            for one in candidates
        ],
    }


def _run_times(measured: MeasuredRunTimes) -> str:
    rows: list[list[object]] = []
    for size, runs_s in measured.runs_s.items():
        usual_s = median(runs_s)
        times = [duration(usual_s), duration(percentiles(runs_s)["p99"]), duration(usual_s / size)]
        rows.append([size, len(runs_s), *times, three_digits(size / usual_s)])
    heads = ("size", "runs", "median", "p99", "an item", "items a second")
    fitted = f"{duration(measured.fixed_s)} a batch + {duration(measured.per_item_s)} an item"
    return f"{table(heads, rows)}\n\nfitted: {fitted}"


def _found(candidates: Sequence[Candidate]) -> str:
    rows = [
        [
            *(one.max_batch_size, f"{one.batch_wait_timeout_s:g}"),
            *(duration(one.p50_s), duration(one.p99_s)),
            *(three_digits(one.mean_batch), percent(one.busy_share)),
            f"{float(f'{one.up_to_rate:.2g}'):,.0f}",
        ]
        for one in candidates
    ]
    heads = ("max_batch_size", "batch_wait_timeout_s", "p50", "p99", "mean batch", "handler busy")
    return table((*heads, "up to a second"), rows)


def _as_options(candidate: Candidate) -> str:
    names = ("max_batch_size", "batch_wait_timeout_s")
    return ", ".join(keywords({name: getattr(candidate, name) for name in names}))


def _without_batches(search: Search) -> list[str]:
    if search.batching_helps:
        return []
    most, alone = map(three_digits, (search.most(max(search.run_times.runs_s)), search.most(1)))
    times = f"{most} items a second in batches, and {alone} one at a time"
    return [f"Batching does not help this handler: it processes {times}. Set max_batch_size=1."]


def _why_not(search: Search, nearest: Candidate) -> str:
    """Explains the limit: the handler's run time, its throughput, or the time in the queue."""
    alone_s = median(search.run_times.runs_s[1])
    if alone_s > search.p99_s:
        return f"The handler takes {duration(alone_s)} for an item, which no option can shorten."
    most = search.most(max(search.run_times.runs_s))
    if most < search.rate:
        needed = math.ceil(search.rate / most)
        return f"It processes at most {three_digits(most)} items a second: {needed} are needed."
    how = f"p99 {duration(nearest.p99_s)}, handler {percent(nearest.busy_share)} busy"
    return f"Nearest: {_as_options(nearest)}, with {how}."


_DESCRIPTION: Final = """\
Measure how long a handler takes for batches of 1, 2, 4, ... items, simulate batching options with
these run times, and print the options that meet a target.
"""

_EXAMPLE: Final = """\
  shoal tune my_module:embed --item '"a text of usual length"' --rate 1000 --p99 0.05
  shoal tune my_module:embed --item-from my_module:random_text --rate 1000 --p99 0.05 \\
    --plot why.png
  shoal tune my_module:Classifier --arg large.onnx --item '"a text"' --rate 1000 --p99 0.05

  Measure on the machine where the handler will run, with nothing else running. The exit code is 0
  if some options meet the target, 1 if none do.
"""

_DEFAULT_SIZE: Final = 64


def add_arguments(parser: ArgumentParser) -> None:
    describe(parser, run, _DESCRIPTION, _EXAMPLE)
    add(parser, "handler MODULE:HANDLER", "a function of a list, or a class with __call__")
    add_init_arguments(parser)
    target = parser.add_argument_group("target")
    add(target, "--rate R", "requests a second", more_than_0, required=True)
    add(target, "--p99 SECONDS", "the time for 99%% of them", more_than_0, required=True)
    items = parser.add_argument_group(
        "items (one of these; for a handler of several parameters a JSON array of arguments, or an "
        "object)"
    )
    source = items.add_mutually_exclusive_group(required=True)
    add(source, "--item JSON", "the same item every time")
    add(source, "--items FILE", "a JSON array of items, in turn", Path)
    add(source, "--item-from MODULE:FUNCTION", "a function that makes an item")
    measuring = parser.add_argument_group("measuring")
    largest = f"the largest size to try (the decorated handler's, or {_DEFAULT_SIZE})"
    add(measuring, "--max-batch-size N", largest, count)
    add(measuring, "--runs N", "how many runs of each size to measure", count, 30)
    add(measuring, "--limit SECONDS", "for measuring, but not before 5 runs", more_than_0, 60.0)
    add_loop_argument(measuring)
    simulation = parser.add_argument_group("simulation")
    add(simulation, "--requests N", "requests for each pair of options", count, 20_000)
    add_option_argument(simulation)
    add_output_arguments(parser, "run times by size, and the p99 of all options with the target")


def run(arguments: Namespace) -> int:
    pairs = option_pairs(arguments.option)
    with redirect_stdout(sys.stderr):  # the handler's output is not a result of the command
        args, kwargs = init_arguments_of(arguments)
        handler = named(arguments.handler, "my_module:embed")
        try:
            with as_mistakes():
                handler = instance_of(handler, args, kwargs)
                measuring = partial(_measured, handler, arguments)
                measured, options = anyio.run(measuring, backend=arguments.event_loop)
        except NotMeasured as failure:
            raise failed_code(str(failure), failure.__cause__ or failure) from None
        except BaseExceptionGroup as group:
            if group.subgroup(KeyboardInterrupt) is None:
                raise
            raise KeyboardInterrupt from None
    with as_mistakes():
        search = Search(
            options.changed(pairs), measured, arguments.rate, arguments.p99, arguments.requests
        )
        candidates = search.candidates(say)
    show(arguments, tuned_as_data(search, candidates), tuned_as_text(search, candidates))
    if arguments.plot is not None:
        save_plot(partial(plot_tuning, search, candidates), arguments.plot)
    return 0 if candidates[0].meets_target else 1


async def _measured(handler: Any, arguments: Namespace) -> tuple[MeasuredRunTimes, BatchOptions]:
    async with opened(handler) as batcher:
        options = batcher.options
        measured = await measure(
            batcher,
            _items(arguments),
            _sizes(arguments.max_batch_size, batcher, handler),
            rounds=arguments.runs,
            limit_s=arguments.limit,
            progress=say,
        )
    return measured, options


def _sizes(largest: int | None, batcher: Batcher[Any], handler: Any) -> list[int]:
    if batcher.options.batch_size_fn is not None:
        raise CommandError(
            "tune measures batches by their number of requests, but this handler is decorated with "
            "a batch_size_fn; measure the undecorated function"
        )
    if largest is None:
        largest = (
            batcher.options.max_batch_size if isinstance(handler, Decorated) else _DEFAULT_SIZE
        )
    powers = [2**power for power in range(largest.bit_length()) if 2**power < largest]
    return [*powers, largest]


def _items(arguments: Namespace) -> Callable[[], Any]:
    if arguments.item_from is not None:
        function = named(arguments.item_from, "my_module:random_text")
        if not callable(function):
            raise CommandError(f"{arguments.item_from} is not a function, but {function!r:.60}")

        def make() -> Any:
            try:
                return function()
            except Exception as error:
                raise failed_code(f"{arguments.item_from}() failed", error) from None

        return make
    if arguments.item is not None:
        source = "--item"
        items: list[Any] = [json_of(arguments.item, source)]
    else:
        source = str(arguments.items)
        try:
            text = arguments.items.read_text(encoding="utf-8")
        except OSError as error:
            raise CommandError(f"can't read {source}: {error.strerror}") from None
        items = json_of(text, source)
        if type(items) is not list or not items:
            raise CommandError(f"{source} must contain a JSON array of at least one item")
    return cycle(items).__next__
