"""``shoal simulate``: simulates batching options under given traffic, and compares the results."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count as counting
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

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
    keywords,
    save_plot,
    say,
    show,
    table,
)
from shoal.commands.support.values import option_pairs, run_time
from shoal.core.options.names import suggested
from shoal.core.options.options import OPTIONS, BatchOptions
from shoal.core.request import DispatchReason
from shoal.core.simulation import simulate
from shoal.core.simulation_results import Arrival, ClosedLoop, Linear, Simulation
from shoal.planning import traces
from shoal.planning.figures import duration, percent, percentiles, plot, three_digits
from shoal.planning.recordings import MeasuredRunTimes, RecordedBatcher
from shoal.planning.traces import COLUMNS, Item, Recording, read_trace

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Trace: TypeAlias = Sequence[float | Arrival] | ClosedLoop

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
# From this ratio to the largest measured batch on, the run time of a batch is a guess.
_FAR: Final = 1.5


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
    trace, text, recording = _traffic(arguments)
    handler = _handler(arguments, recording)
    others = [option_pairs(text.split()) for text in arguments.compare]
    cases: list[Case] = []
    remarks: list[str] = []
    batcher = None if recording is None else recording.batcher
    today = None if batcher is None else _recorded_options(batcher, arguments.replicas)
    if recording is not None and batcher is not None and today is not None:
        cases.append(Case.recorded(batcher, _written(today)))
        remarks += _remarks_on(recording, batcher)
    compared = _compared(today, pairs, others)
    with as_mistakes():
        simulations = [
            simulate(
                trace,
                BatchOptions.of(_with_items(recording, options)),
                handler,
                replicas=arguments.replicas,
                load_s=arguments.load_time,
            )
            for _, options, _ in compared
        ]
    for (name, _, shown), found in zip(compared, simulations, strict=True):
        cases.append(Case.simulated(name, shown, found))
    given = -1 - len(others)
    simulation = simulations[given]
    if not simulation.outcomes:
        raise CommandError(f"no request arrives in {arguments.duration:g} s; raise --duration")
    largest = max((batch.size for one in simulations for batch in one.batches), default=0)
    if isinstance(handler, MeasuredRunTimes) and largest > _FAR * max(handler.runs_s):
        remarks.append(
            f"Batches of up to {largest:g} are simulated, but none larger than "
            f"{max(handler.runs_s):g} was measured: longer run times are a guess."
        )
    levels = _levels(trace, simulation)
    data = {
        "traffic": text,
        "run_time": {"fixed_s": handler.fixed_s, "per_item_s": handler.per_item_s},
        "requests": len(simulation.outcomes),
        "duration_s": simulation.duration_s,
        **cases[given].as_data(),
        "spilled_share": simulation.spilled_share,
        "loads": simulation.loads,
        "priorities": {level: percentiles(latencies) for level, latencies in levels.items()},
    }
    if len(cases) > 1:
        data["compared"] = [case.as_data() for case in cases]
    inputs = facts([("traffic", text), ("run time", _run_time_text(handler))])
    options = [f"{case.name}: {case.options}" for case in cases]
    parts = [inputs, _table(cases), "\n".join(options), "\n".join(remarks), _by_level(levels)]
    parts.append(_overload(simulation, handler))
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


def _traffic(arguments: Namespace) -> tuple[Trace, str, Recording | None]:
    """Returns the traffic, its text, and the recording that it is from, if it is recorded."""
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
        text = (
            f"{loop.callers:,} callers for {loop.duration_s:g} s, each of which calls again "
            f"{duration(loop.think_s)} after a result (seed {loop.seed})"
        )
        return loop, text, None
    if file is None:
        times = _made(arguments)
        text = (
            f"{len(times):,} requests in {arguments.duration:g} s, {arguments.rate:,g} a second "
            f"({arguments.traffic}, seed {arguments.seed})"
        )
        return times, text, None
    with as_mistakes():
        recording = read_trace(file, arguments.backend)
    if recording.unknown:
        hints = {one: suggested(one, COLUMNS) for one in recording.unknown}
        shown = [f"{one} ({hint})" if hint else one for one, hint in hints.items()]
        say(f"unknown columns, ignored: {', '.join(shown)}")
    arrivals = recording.arrivals
    whose = "" if recording.batcher is None else f" of {recording.batcher.name}"
    text = f"{len(arrivals):,} requests{whose} in {three_digits(arrivals[-1].at)} s ({file})"
    return arrivals, text, recording


def _made(arguments: Namespace) -> list[float]:
    make = _TRAFFIC[arguments.traffic]
    chance = {} if arguments.traffic == "constant" else {"seed": arguments.seed}
    return list(make(arguments.rate, arguments.duration, **chance))


def _levels(trace: Trace, simulation: Simulation) -> dict[int, list[float]]:
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
    options, slots = simulation.options, simulation.options.slots * simulation.replicas
    if options.batch_size_fn is not None:  # sizes are sums of costs
        return ""
    most = slots * options.max_batch_size / handler(options.max_batch_size)
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


def _compared(
    today: Mapping[str, Any] | None, pairs: Mapping[str, Any], others: Iterable[Mapping[str, Any]]
) -> list[tuple[str, Mapping[str, Any], str]]:
    """Returns the names of options to simulate, the options, and their text."""
    # Recorded options apply where none is given. Each of the others changes the given options.
    letters = map(chr, counting(ord("A")))
    if today is None:
        compared = [("these options", pairs, _listed(pairs))]
    else:
        compared = [("today", today, _written(today))]
        if pairs:
            compared.append((next(letters), {**today, **pairs}, _listed(pairs)))
    base = {**(today or {}), **pairs}
    compared += [(next(letters), {**base, **one}, _listed(one)) for one in others]
    return compared


def _table(cases: Iterable[Case]) -> str:
    columns = {case.name: case.as_texts() for case in cases}
    names = next(iter(columns.values()))
    rows = [(name, *(one[name] for one in columns.values())) for name in names]
    return table(("compared", *columns), [row for row in rows if _is_worth_a_row(*row)])


def _is_worth_a_row(name: str, *texts: str) -> bool:
    if name == "failed or cancelled" or name.startswith("because "):
        return any(text not in ("0", "0%") for text in texts)
    return name not in ("loads of models", "not on the preferred replica") or {*texts} != {"-"}


def _recorded_options(batcher: RecordedBatcher, replicas: int | None) -> dict[str, Any]:
    """Returns the recorded options, those of one replica if the number of replicas is given."""
    options = dict(batcher.options)
    if replicas is None and (options.get("sticky_load_factor") or options.get("models")):
        raise CommandError(
            f"the requests of {batcher.name} prefer replicas by their shard keys or models; give "
            "the number of replicas: --replicas N"
        )
    # What was recorded are the batches of all replicas.
    if (slots := options.get("max_concurrent_batches")) is not None:
        options["max_concurrent_batches"] = max(1, slots // (replicas or 1))
    return options


def _remarks_on(recording: Recording, batcher: RecordedBatcher) -> Iterator[str]:
    if recording.others:
        others = ", ".join(recording.others)
        say(f"simulated is {batcher.name}; --backend NAME selects another: {others}")
    if left_out := batcher.left_out():
        yield f"In effect, but not simulated: {', '.join(left_out)}."
    if batcher.changes:
        yield "The options changed while it was recorded; today's are those at its end."
    if recording.lost:
        share = recording.lost / (recording.lost + len(recording.arrivals))
        yield (
            f"{recording.lost:,} lines ({percent(share)}) could not be recorded, since there were "
            "too many in a second: the simulated traffic is lighter than the real one."
        )
    if count := recording.unfinished:
        some = "1 request" if count == 1 else f"{count:,} requests"
        yield f"{some} had not finished when the recording ended: left out."


def _with_items(recording: Recording | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the functions that read the costs and buckets of a recording."""
    if recording is None:
        return dict(options)
    highest = max(one.priority or 1 for one in recording.arrivals)
    if highest > options.get("priority_levels", 1):
        raise CommandError(
            f"the trace has priorities up to {highest}; add --option priority_levels={highest}"
        )
    read: dict[str, tuple[str, Callable[[Item | None], Any]]] = {
        "cost": ("batch_size_fn", lambda item: (item or Item()).cost),
        "bucket": ("bucket_by", lambda item: (item or Item()).bucket),
    }
    return {**options, **dict(read[one] for one in read.keys() & recording.columns)}


def _listed(pairs: Mapping[str, Any]) -> str:
    plain = {name: one for name, one in pairs.items() if not OPTIONS[name].is_function}
    return ", ".join(keywords(plain)) or "all defaults"


def _written(pairs: Mapping[str, Any]) -> str:
    usual = BatchOptions()
    return _listed({name: one for name, one in pairs.items() if one != getattr(usual, name)})


@dataclass(frozen=True)
class Case:
    """The figures of some options, recorded or simulated; NaN if a figure is not known."""

    name: str
    options: str
    outcomes: Mapping[str, int]  # number of requests
    latency_s: Mapping[str, float]  # percentiles of answered requests, from their arrival
    wait_s: Mapping[str, float]  # percentiles of requests that were in a batch
    batches: int
    mean_batch: float
    reasons: Mapping[DispatchReason, int]  # number of batches
    busy_share: float  # the part of the time that slots were busy, 0 to 1
    spilled_share: float = math.nan  # of a simulation with shard keys
    loads: int | None = None  # of models, in a simulation with models

    @classmethod
    def simulated(cls, name: str, options: str, simulation: Simulation) -> Case:
        has_no_homes = simulation.options.sticky_load_factor is None
        return cls(
            name,
            options,
            dict(Counter(map(str, simulation.outcomes))),
            percentiles(simulation.latency_s),
            percentiles(simulation.waits_s()),
            len(simulation.batches),
            simulation.mean_batch,
            dict(Counter(batch.reason for batch in simulation.batches)),
            simulation.busy_share,
            math.nan if has_no_homes else simulation.spilled_share,
            None if simulation.options.models is None else simulation.loads,
        )

    @classmethod
    def recorded(cls, batcher: RecordedBatcher, options: str) -> Case:
        batches = batcher.batches
        busy_share = math.nan
        slots = batcher.options.get("max_concurrent_batches")
        if batches and slots and not batcher.is_open:
            began_at = min(batch.at for batch in batches)
            lasted_s = max(batch.at + batch.run_s for batch in batches) - began_at
            busy_share = sum(batch.run_s for batch in batches) / lasted_s / slots
        return cls(
            "recorded",
            options,
            dict(batcher.outcomes),
            percentiles(batcher.latency_s),
            percentiles(batcher.waits_s),
            len(batches),
            sum(batch.size for batch in batches) / len(batches) if batches else math.nan,
            dict(Counter(batch.reason for batch in batches)),
            busy_share,
        )

    def as_data(self) -> dict[str, Any]:
        return {name: None if one != one else one for name, one in asdict(self).items()}

    def as_texts(self) -> dict[str, str]:
        """Returns the texts of a table's column; ``-`` for what is unknown or does not exist."""

        def count(*outcomes: str) -> int:
            return sum(self.outcomes.get(one, 0) for one in outcomes)

        return {
            "answered": f"{count('finished'):,}",
            "refused or shed": f"{count('rejected', 'shed'):,}",
            "out of time": f"{count('expired'):,}",
            "failed or cancelled": f"{count('failed', 'cancelled'):,}",
            **{
                f"latency {one}": duration(self.latency_s.get(one, math.nan))
                for one in ("p50", "p90", "p99", "max")
            },
            **{f"wait {one}": duration(self.wait_s.get(one, math.nan)) for one in ("p50", "p99")},
            "batches": f"{self.batches:,}",
            "mean batch": three_digits(self.mean_batch),
            "handler busy": percent(self.busy_share),
            "loads of models": "-" if self.loads is None else f"{self.loads:,}",
            "not on the preferred replica": percent(self.spilled_share),
            **{
                f"because {one}": percent(self.reasons.get(one, 0) / (self.batches or 1))
                for one in DispatchReason
            },
        }
