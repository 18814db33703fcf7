"""``shoal simulate``: simulates batching options under given traffic."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.commands.support.arguments import (
    add,
    add_option_argument,
    add_output_arguments,
    at_least_0,
    count,
    describe,
    more_than_0,
)
from shoal.commands.support.output import (
    CommandError,
    as_mistakes,
    facts,
    save_plot,
    say,
    show,
    table,
)
from shoal.commands.support.simulating import Comparison, SimulatedTraffic
from shoal.commands.support.values import option_pairs, run_time
from shoal.core.options.names import suggested
from shoal.core.simulation_results import Arrival, ClosedLoop, Linear, Simulation
from shoal.planning import traces
from shoal.planning.figures import duration, percent, percentiles, plot, three_digits
from shoal.planning.recordings import MeasuredRunTimes
from shoal.planning.traces import COLUMNS, Recording, read_trace

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Mapping, Sequence


_DESCRIPTION: Final = """\
Simulate batching options under given traffic: run the rules that form batches in virtual time, and
print latencies, batch sizes, dispatch reasons, and how busy the handler was.
"""

_EXAMPLE: Final = """\
  shoal simulate --rate 1000 --run-time 0.002+0.00005n --option max_batch_size=64
  shoal simulate --callers 64 --think 0.001 --run-time 0.002+0.00005n
  shoal simulate monday.csv --run-time 0.002+0.00005n --option priority_levels=2
  shoal simulate trace.jsonl --compare "max_batch_size=64 batch_wait_timeout_s=0.01"

  0.002+0.00005n is a handler that takes 2 ms for a batch, and 0.05 ms for each item. A trace is CSV
  or NDJSON, with the columns at, priority, timeout_s, queue_timeout_s, cost, bucket, shard_key and
  model, or a recording of `shoal trace`.
"""

_TRAFFIC: Final[dict[str, Callable[..., Iterable[float]]]] = {
    "poisson": traces.poisson,
    "constant": traces.constant,
    "bursty": traces.bursty,
}

_THINK_S: Final = 0.001
_THINK_JITTER: Final = 0.1


def add_arguments(parser: ArgumentParser) -> None:
    describe(parser, run, _DESCRIPTION, _EXAMPLE)
    traffic = parser.add_argument_group("traffic")
    add(traffic, "--rate R", "requests a second", more_than_0)
    add(traffic, "--duration SECONDS", "for how long requests arrive", more_than_0, 30.0)
    kinds = "independent callers, equal intervals, or bursts of 1 s with pauses of 4 s"
    add(traffic, "--traffic", kinds, default="poisson", choices=_TRAFFIC)
    add(traffic, "--seed N", "seed of the random numbers", int, 0)
    add(traffic, "--callers N", "callers that call again after each result", count)
    add(traffic, "--think SECONDS", "time from a result to the next call (0.001)", at_least_0)
    add(traffic, "file FILE", "recorded traffic, instead of --rate", Path, nargs="?")
    add(traffic, "--backend NAME", "the one to simulate (the one with the most requests)")
    handler = parser.add_argument_group("handler")
    add(handler, "--run-time SECONDS", "run time of n items, like 0.002+0.00005n (as recorded)")
    add(handler, "--jitter J", "variation of the run time: 0.1 for about a tenth", at_least_0, 0.0)
    options = parser.add_argument_group("options of the batcher")
    add_option_argument(options)
    add(options, "--replicas N", "replicas, each with max_concurrent_batches (1)", count)
    add(options, "--load-time SECONDS", "to load a model, with the option models", at_least_0, 0.0)
    compared = 'other options, like "max_batch_size=64 overload=wait"; repeatable'
    add(options, "--compare OPTIONS", compared, action="append")
    add_output_arguments(parser, "latencies, batch sizes and dispatch reasons")


def run(arguments: Namespace) -> int:
    pairs = option_pairs(arguments.option)
    traffic = _traffic(arguments)
    handler = _handler(arguments, traffic.recording)
    others = [option_pairs(text.split()) for text in arguments.compare]
    comparison = Comparison(
        traffic, handler, pairs, others, arguments.replicas, arguments.load_time
    )
    simulation = comparison.simulation
    if not simulation.outcomes:
        raise CommandError(f"no request arrives in {arguments.duration:g} s; raise --duration")
    levels = _levels(traffic.trace, simulation)
    data = {
        "traffic": traffic.text,
        "run_time": {"fixed_s": handler.fixed_s, "per_item_s": handler.per_item_s},
        "requests": len(simulation.outcomes),
        "duration_s": simulation.duration_s,
        **comparison.cases[-1 - len(others)].as_data(),
        "spilled_share": simulation.spilled_share,
        "loads": simulation.loads,
        "priorities": {level: percentiles(latencies) for level, latencies in levels.items()},
    }
    if len(comparison.cases) > 1:
        data["compared"] = [case.as_data() for case in comparison.cases]
    inputs = facts([("traffic", traffic.text), ("run time", _run_time_text(handler))])
    parts = [inputs, comparison.as_text(), _by_level(levels), _overload(simulation, handler)]
    show(arguments, data, "\n\n".join(filter(None, parts)))
    if arguments.plot is not None:
        save_plot(partial(plot, simulation), arguments.plot)
    return 0


def _handler(arguments: Namespace, recording: Recording | None) -> Linear | MeasuredRunTimes:
    if arguments.run_time is not None:
        return run_time(arguments.run_time, jitter=arguments.jitter, seed=arguments.seed)
    batcher = None if recording is None else recording.batcher
    # Requests join an open batch while it runs, so it has no run time by size.
    measured = batcher.run_times(arguments.seed) if batcher and not batcher.is_open else None
    if measured is None:
        raise CommandError(
            "give the run time of a batch of n items: --run-time 0.002+0.00005n; only recordings "
            "of `shoal trace` contain it, of batches that are closed and have ended"
        )
    return measured


def _traffic(arguments: Namespace) -> SimulatedTraffic:
    file: Path | None = arguments.file
    if [arguments.rate, arguments.callers, file].count(None) != 2:
        raise CommandError("give the traffic: either --rate REQUESTS-A-SECOND, --callers N or FILE")
    if arguments.callers is None and arguments.think is not None:
        raise CommandError("--think is for --callers N")
    if file is None and arguments.backend is not None:
        raise CommandError("--backend is for a file that `shoal trace` has recorded")
    if arguments.callers is not None:
        think_s = _THINK_S if arguments.think is None else arguments.think
        loop = ClosedLoop(
            arguments.callers, think_s, arguments.duration, _THINK_JITTER, arguments.seed
        )
        return SimulatedTraffic(
            loop,
            f"{loop.callers:,} callers for {loop.duration_s:g} s, each of which calls again "
            f"{duration(loop.think_s)} after a result (seed {loop.seed})",
        )
    if file is None:
        times = _made(arguments)
        return SimulatedTraffic(
            times,
            f"{len(times):,} requests in {arguments.duration:g} s, {arguments.rate:,g} a second "
            f"({arguments.traffic}, seed {arguments.seed})",
        )
    with as_mistakes():
        recording = read_trace(file, arguments.backend)
    if recording.unknown:
        hints = {one: suggested(one, COLUMNS) for one in recording.unknown}
        shown = [f"{one} ({hint})" if hint else one for one, hint in hints.items()]
        say(f"unknown columns, ignored: {', '.join(shown)}")
    arrivals = recording.arrivals
    whose = "" if recording.batcher is None else f" of {recording.batcher.name}"
    return SimulatedTraffic(
        arrivals,
        f"{len(arrivals):,} requests{whose} in {three_digits(arrivals[-1].at)} s ({file})",
        recording,
    )


def _made(arguments: Namespace) -> list[float]:
    make = _TRAFFIC[arguments.traffic]
    chance = {} if arguments.traffic == "constant" else {"seed": arguments.seed}
    return list(make(arguments.rate, arguments.duration, **chance))


def _levels(
    trace: Sequence[float | Arrival] | ClosedLoop, simulation: Simulation
) -> dict[int, list[float]]:
    """Returns the latencies by priority level; empty if the traffic has only one level."""
    options = simulation.options
    if options.priority_levels == 1 or isinstance(trace, ClosedLoop):
        return {}
    levels: dict[int, list[float]] = {}
    for arrival, latency in zip(trace, simulation.latency_s, strict=True):
        level = arrival.priority if isinstance(arrival, Arrival) else None
        levels.setdefault(level or options.usual_priority, []).append(latency)
    return dict(sorted(levels.items()))


def _by_level(levels: Mapping[int, Sequence[float]]) -> str:
    rows: list[list[str]] = []
    for level, latencies in levels.items():
        shares = percentiles(latencies)
        answered = sum(latency == latency for latency in latencies) / len(latencies)
        shown = [duration(shares.get(name, math.nan)) for name in ("p50", "p99", "max")]
        rows.append([str(level), f"{len(latencies):,}", percent(answered), *shown])
    heads = ("priority", "requests", "answered", "p50", "p99", "max")
    return table(heads, rows) if rows else ""


def _overload(simulation: Simulation, handler: Linear | MeasuredRunTimes) -> str:
    most = _most_a_second(simulation, handler)
    lasted_s = simulation.arrived_at[-1] - simulation.arrived_at[0]
    if not lasted_s or most * lasted_s >= len(simulation.outcomes):
        return ""
    return (
        f"The traffic exceeds the capacity of these options, {three_digits(most)} requests/s in "
        "full batches: the queue keeps growing."
    )


def _run_time_text(handler: Linear | MeasuredRunTimes) -> str:
    how = ", as measured" if isinstance(handler, MeasuredRunTimes) else ""
    return f"{duration(handler.fixed_s)} + {duration(handler.per_item_s)} an item{how}"


def _most_a_second(simulation: Simulation, handler: Linear | MeasuredRunTimes) -> float:
    """Returns the requests a second in full batches; infinity if sizes are sums of costs."""
    options = simulation.options
    if options.batch_size_fn is not None:
        return math.inf
    slots = options.slots * simulation.replicas
    return slots * options.max_batch_size / handler(options.max_batch_size)
