"""The traffic and the cases that ``shoal simulate`` compares."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from shoal.commands.support.output import CommandError, as_mistakes, keywords, say, table
from shoal.core.options.options import OPTIONS, BatchOptions
from shoal.core.request import DispatchReason
from shoal.core.simulation import simulate
from shoal.planning.figures import duration, percent, percentiles, three_digits
from shoal.planning.recordings import MeasuredRunTimes, RecordedBatcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shoal.core.simulation_results import Arrival, ClosedLoop, Linear, Simulation
    from shoal.planning.traces import Item, Recording

# From this ratio to the largest measured batch on, the run time of a batch is a guess.
_FAR: Final = 1.5


@dataclass(frozen=True)
class SimulatedTraffic:
    trace: Sequence[float | Arrival] | ClosedLoop
    text: str
    recording: Recording | None = None  # the source of the trace, if it was not made


class Comparison:
    """The compared cases: recorded, today's options, the given options, and other options."""

    def __init__(
        self,
        traffic: SimulatedTraffic,
        handler: Linear | MeasuredRunTimes,
        pairs: Mapping[str, Any],
        others: Iterable[Mapping[str, Any]],
        replicas: int | None,
        load_s: float,
    ) -> None:
        # `pairs` are the given options, which each of the others changes; recorded options apply
        # where none is given. `simulation` is that of the given options.
        self.cases: list[Case] = []
        self.remarks: list[str] = []
        recording, today = traffic.recording, dict[str, Any]()
        batcher = None if recording is None else recording.batcher
        letters = map(chr, count(ord("A")))
        wanted = [("these options", pairs, _listed(pairs))]
        if recording is not None and batcher is not None:
            today = _recorded_options(batcher, replicas)
            self.cases.append(Case.recorded(batcher, _written(today)))
            self.remarks += _remarks_on(recording, batcher)
            wanted = [("today", today, _written(today))]
            if pairs:
                wanted.append((next(letters), {**today, **pairs}, _listed(pairs)))
        given = len(wanted) - 1
        wanted += [(next(letters), {**today, **pairs, **one}, _listed(one)) for one in others]
        with as_mistakes():
            found = [
                simulate(
                    traffic.trace,
                    BatchOptions.of(_with_items(recording, options)),
                    handler,
                    replicas=replicas,
                    load_s=load_s,
                )
                for _, options, _ in wanted
            ]
        self.simulation = found[given]
        for (name, _, text), simulation in zip(wanted, found, strict=True):
            self.cases.append(Case.simulated(name, text, simulation))
        largest = max((batch.size for one in found for batch in one.batches), default=0)
        if isinstance(handler, MeasuredRunTimes) and largest > _FAR * max(handler.runs_s):
            self.remarks.append(
                f"Batches of up to {largest:g} are simulated, but none larger than "
                f"{max(handler.runs_s):g} was measured: longer run times are a guess."
            )

    def as_text(self) -> str:
        columns = [case.as_texts() for case in self.cases]
        rows = [(name, *(one[name] for one in columns)) for name in columns[0]]
        rows = [row for row in rows if set(row[1:]) != {"-"}]
        options = [f"{case.name}: {case.options}" for case in self.cases]
        heads = ("compared", *(case.name for case in self.cases))
        parts = [table(heads, rows), "\n".join(options), "\n".join(self.remarks)]
        return "\n\n".join(filter(None, parts))


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
    if recording.unfinished:
        count = recording.unfinished
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
    read = {"cost": ("batch_size_fn", _cost), "bucket": ("bucket_by", _bucket)}
    return {**options, **dict(read[one] for one in read.keys() & recording.columns)}


def _cost(item: Item | None) -> float:
    return 1.0 if item is None else item.cost


def _bucket(item: Item | None) -> str | None:
    return None if item is None else item.bucket


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
            {str(outcome): count for outcome, count in simulation.count.items() if count},
            percentiles(simulation.latency_s),
            percentiles(simulation.waits_s()),
            len(simulation.batches),
            simulation.mean_batch,
            {reason: count for reason, count in simulation.reasons.items() if count},
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
        """Returns the texts of a table's column; ``-`` if there is nothing to show."""

        def count(*outcomes: str) -> int:
            return sum(self.outcomes.get(one, 0) for one in outcomes)

        lost = count("failed", "cancelled")
        return {
            "answered": f"{count('finished'):,}",
            "refused or shed": f"{count('rejected', 'shed'):,}",
            "out of time": f"{count('expired'):,}",
            "failed or cancelled": f"{lost:,}" if lost else "-",
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
                f"because {one}": percent(self.reasons.get(one, math.nan) / (self.batches or 1))
                for one in DispatchReason
            },
        }
