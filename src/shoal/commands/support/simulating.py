"""The traffic and the cases that ``shoal simulate`` compares."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from shoal.commands.support.output import CommandError, as_mistakes, keywords, say, table
from shoal.core.options.options import OPTIONS, BatchOptions
from shoal.core.request import DispatchReason
from shoal.core.simulation import simulate
from shoal.planning.figures import duration, percent, percentiles, three_digits
from shoal.planning.recordings import MeasuredRunTimes, RecordedBatcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    """The compared cases: recorded, today's options, the given options, and added options."""

    def __init__(
        self,
        traffic: SimulatedTraffic,
        handler: Linear | MeasuredRunTimes,
        pairs: Mapping[str, Any],
        replicas: int | None,
        load_s: float,
    ) -> None:
        # `pairs` are the given options; recorded options apply where none is given. Afterwards
        # `simulation` is that of the given options.
        self.cases: list[Case] = []
        self._traffic = traffic
        self._handler = handler
        self._replicas = replicas
        self._load_s = load_s
        self._remarks: list[str] = []
        self._largest = 0.0
        self._letters = map(chr, count(ord("A")))
        self._today: dict[str, Any] = {}
        recording = traffic.recording
        batcher = None if recording is None else recording.batcher
        if batcher is not None:
            self._today = dict(batcher.options)
            names = [self._today.get(name) for name in ("sticky_load_factor", "models")]
            if replicas is None and any(one is not None for one in names):
                raise CommandError(
                    f"the requests of {batcher.name} prefer replicas by their shard keys or "
                    "models; give the number of replicas: --replicas N"
                )
            # What was recorded are the batches of all replicas.
            if (slots := self._today.get("max_concurrent_batches")) is not None:
                self._today["max_concurrent_batches"] = max(1, slots // (replicas or 1))
            self.cases.append(Case.recorded(batcher, _written(self._today)))
        self._base = {**self._today, **pairs}
        if recording is not None:
            self._remark_on(recording)
        if batcher is None:
            self.simulation = self._simulate("these options", pairs, _listed(pairs))
            return
        self.simulation = self._simulate("today", self._today, _written(self._today))
        if pairs:
            self.simulation = self._simulate(next(self._letters), self._base, _listed(pairs))

    def add(self, pairs: Mapping[str, Any]) -> None:
        """Simulates other options, on top of the given options."""
        self._simulate(next(self._letters), {**self._base, **pairs}, _listed(pairs))

    def as_text(self) -> str:
        rows = [(name, *texts) for name, texts in rows_of(self.cases)]
        options = [f"{case.name}: {case.options}" for case in self.cases]
        heads = ("compared", *(case.name for case in self.cases))
        parts = [table(heads, rows), "\n".join(options), "\n".join(self.remarks)]
        return "\n\n".join(filter(None, parts))

    @property
    def remarks(self) -> list[str]:
        remarks = list(self._remarks)
        handler = self._handler
        if isinstance(handler, MeasuredRunTimes) and self._largest > _FAR * max(handler.runs_s):
            remarks.append(
                f"Batches of up to {self._largest:g} are simulated, but none larger than "
                f"{max(handler.runs_s):g} was measured: longer run times are a guess."
            )
        return remarks

    def _simulate(self, name: str, pairs: Mapping[str, Any], options: str) -> Simulation:
        pairs = dict(pairs)
        if self._traffic.recording is not None:
            _use_items(self._traffic.recording, pairs)
        with as_mistakes():
            batch_options = BatchOptions.of(pairs)
            found = simulate(
                self._traffic.trace,
                batch_options,
                self._handler,
                replicas=self._replicas,
                load_s=self._load_s,
            )
        self.cases.append(Case.simulated(name, options, found))
        self._largest = max([self._largest, *(batch.size for batch in found.batches)])
        return found

    def _remark_on(self, recording: Recording) -> None:
        batcher = recording.batcher
        if batcher is None:
            return
        if recording.others:
            others = ", ".join(recording.others)
            say(f"simulated is {batcher.name}; --backend NAME selects another: {others}")
        if left_out := batcher.left_out():
            self._remarks.append(f"In effect, but not simulated: {', '.join(left_out)}.")
        if batcher.changes:
            self._remarks.append(
                "The options changed while it was recorded; today's are those at its end."
            )
        if recording.lost:
            share = recording.lost / (recording.lost + len(recording.arrivals))
            self._remarks.append(
                f"{recording.lost:,} lines ({percent(share)}) could not be recorded, since there "
                "were too many in a second: the simulated traffic is lighter than the real one."
            )
        if recording.unfinished:
            count = recording.unfinished
            some = "1 request" if count == 1 else f"{count:,} requests"
            self._remarks.append(f"{some} had not finished when the recording ended: left out.")


def _use_items(recording: Recording, pairs: dict[str, Any]) -> None:
    if "cost" in recording.columns:
        pairs["batch_size_fn"] = _cost
    if "bucket" in recording.columns:
        pairs["bucket_by"] = _bucket
    highest = max((one.priority or 1 for one in recording.arrivals), default=1)
    if highest > pairs.get("priority_levels", 1):
        raise CommandError(
            f"the trace has priorities up to {highest}; add --option priority_levels={highest}"
        )


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
    """The results of some options, recorded or simulated."""

    name: str
    options: str
    outcomes: Mapping[str, int]  # number of requests
    latency_s: Sequence[float]  # of each answered request, from its arrival
    waits_s: Sequence[float]  # of each request that was in a batch
    sizes: Sequence[int]  # of each batch
    reasons: Mapping[DispatchReason, int]  # number of batches
    busy_share: float  # the part of the time that slots were busy, 0 to 1; NaN if not known
    spilled_share: float = math.nan  # of a simulation with shard keys
    loads: int | None = None  # of models, in a simulation with models

    @classmethod
    def simulated(cls, name: str, options: str, simulation: Simulation) -> Case:
        has_no_homes = simulation.options.sticky_load_factor is None
        return cls(
            name,
            options,
            {str(outcome): count for outcome, count in simulation.count.items() if count},
            [one for one in simulation.latency_s if one == one],
            [one for one in simulation.waits_s() if one == one],
            [len(batch.requests) for batch in simulation.batches],
            {reason: count for reason, count in simulation.reasons.items() if count},
            simulation.busy_share,
            math.nan if has_no_homes else simulation.spilled_share,
            None if simulation.options.models is None else simulation.loads,
        )

    @classmethod
    def recorded(cls, batcher: RecordedBatcher, options: str) -> Case:
        batches = batcher.batches
        counted = Counter(batch.reason for batch in batches)
        busy_share = math.nan
        slots = batcher.options.get("max_concurrent_batches")
        if batches and slots and not batcher.is_open:
            began_at = min(batch.at for batch in batches)
            lasted_s = max(batch.at + batch.run_s for batch in batches) - began_at
            busy_share = sum(batch.run_s for batch in batches) / lasted_s / slots
        return cls(
            "recorded",
            options,
            batcher.outcomes,
            batcher.latency_s,
            batcher.waits_s,
            [batch.size for batch in batches],
            {reason: counted[reason] for reason in DispatchReason if counted[reason]},
            busy_share,
        )

    @property
    def mean_batch(self) -> float:
        return sum(self.sizes) / len(self.sizes) if self.sizes else math.nan

    @cached_property
    def latency(self) -> dict[str, float]:
        return percentiles(self.latency_s)

    @cached_property
    def wait(self) -> dict[str, float]:
        return percentiles(self.waits_s)

    def count(self, *outcomes: str) -> int:
        return sum(self.outcomes.get(one, 0) for one in outcomes)

    def as_data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "options": self.options,
            "outcomes": dict(self.outcomes),
            "latency_s": self.latency,
            "wait_s": self.wait,
            "batches": len(self.sizes),
            "mean_batch": self.mean_batch if self.sizes else None,
            "reasons": {str(reason): count for reason, count in self.reasons.items()},
            "busy_share": None if math.isnan(self.busy_share) else self.busy_share,
        }


def rows_of(cases: Sequence[Case]) -> list[tuple[str, list[str]]]:
    """Returns a table of cases: the name of each figure, and its text for each case."""
    rows = [
        ("answered", [f"{case.count('finished'):,}" for case in cases]),
        ("refused or shed", [f"{case.count('rejected', 'shed'):,}" for case in cases]),
        ("out of time", [f"{case.count('expired'):,}" for case in cases]),
    ]
    if any(case.count("failed", "cancelled") for case in cases):
        lost = [f"{case.count('failed', 'cancelled'):,}" for case in cases]
        rows.append(("failed or cancelled", lost))
    for name in ("p50", "p90", "p99", "max"):
        times = [duration(case.latency.get(name, math.nan)) for case in cases]
        rows.append((f"latency {name}", times))
    for name in ("p50", "p99"):
        times = [duration(case.wait.get(name, math.nan)) for case in cases]
        rows.append((f"wait {name}", times))
    rows += [
        ("batches", [f"{len(case.sizes):,}" for case in cases]),
        ("mean batch", [three_digits(case.mean_batch) for case in cases]),
        ("handler busy", [_share(case.busy_share) for case in cases]),
    ]
    if any(case.loads is not None for case in cases):
        loads = ["-" if case.loads is None else f"{case.loads:,}" for case in cases]
        rows.append(("loads of models", loads))
    if not all(math.isnan(case.spilled_share) for case in cases):
        rows.append(("not on the preferred replica", [_share(one.spilled_share) for one in cases]))
    for reason in DispatchReason:
        if any(case.reasons.get(reason) for case in cases):
            shares = [
                _share(case.reasons.get(reason, 0) / len(case.sizes) if case.sizes else math.nan)
                for case in cases
            ]
            rows.append((f"because {reason}", shares))
    return rows


def _share(share: float) -> str:
    return "-" if math.isnan(share) else percent(share)
