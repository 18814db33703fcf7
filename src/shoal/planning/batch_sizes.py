"""Why the batches of a recording have the size that they have.

`BatcherFigures` condenses a recording of ``shoal trace``. `explain` applies the rules; it is a pure
function, so each rule is tested without a server.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from shoal.core.request import DispatchReason
from shoal.planning.figures import duration, percent, three_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shoal.core.simulation_results import Arrival
    from shoal.planning.recordings import RecordedBatcher

PAGE: Final = "Why are my batches small?"

_FEWEST_BATCHES: Final = 20
# From this share of the limit on, batches are not small.
_LARGE: Final = 0.7
# From this share of the batches on, a dispatch reason is one to report.
_OFTEN: Final = 0.2
_MOSTLY: Final = 0.5
# By how many of its standard deviations the number of requests at the server exceeds its mean at
# its peak, at least, if they arrive at random. Callers that wait for results stay below it.
_RANDOM_PEAK: Final = 1.5
# One slot instead of several is advised up to this share of its time.
_BUSY: Final = 0.8
# How much larger the batches of one slot must be to advise it.
_LARGER: Final = 1.5

# The options that divide requests, with the key of each request.
_DIVIDING: Final[Mapping[str, Callable[[Arrival], Any]]] = {
    "bucket_by": lambda one: one.item and one.item.bucket,
    "models": lambda one: one.model,
    "sticky_load_factor": lambda one: one.shard_key,
    "priority_mixing": lambda one: one.priority,
}


class BatcherFigures:
    def __init__(
        self, batcher: RecordedBatcher, requests: Sequence[Arrival], seconds: float
    ) -> None:
        batches = batcher.batches
        count = max(1, len(batches))
        times = batcher.run_times()
        self.seconds = seconds
        self.options = batcher.options  # in force, without functions
        self.most: int = batcher.options["max_batch_size"]
        self.most_load: float = batcher.options.get("max_batch_cost") or self.most
        # Of all replicas; None for any number.
        self.slots: int | None = batcher.options.get("max_concurrent_batches")
        self.has_costs = "batch_size_fn" in batcher.functions
        self.is_open = batcher.is_open
        self.requests = len(requests)
        self.batches = len(batches)
        self.reasons = Counter(batch.reason for batch in batches)
        self.mean_size = sum(batch.size for batch in batches) / count
        # In cost with a `batch_size_fn`, with padding.
        self.mean_load = sum(batch.load for batch in batches) / count
        self.mean_run_s = sum(batch.run_s for batch in batches) / count
        # A recording may leave out requests of a busy second, but no batches.
        self.rate = self.batches * self.mean_size / seconds
        # The mean number of batches at once.
        self.busy = self.batches * self.mean_run_s / seconds
        # The fitted line of the run time; None while all batches had about the same size.
        self.line: tuple[float, float] | None = None
        if times is not None and len(times.runs_s) > 1:
            self.line = times.fixed_s, times.per_item_s
        # The mean number of requests at the server, and the most.
        self.at_server, self.peak = _concurrency(
            zip(batcher.arrived_at, batcher.stayed_s, strict=True), seconds
        )
        # The number of different keys, by the option that divides the requests.
        self.keys = {option: len(set(map(key, requests))) for option, key in _DIVIDING.items()}

    @property
    def fill(self) -> float:
        if not self.has_costs:
            return self.mean_size / self.most
        # An item that does not fit closes its batch before it costs as much as it may.
        is_full = self.share(DispatchReason.FULL) >= _MOSTLY
        return 1.0 if is_full else self.mean_load / self.most_load

    def share(self, *reasons: DispatchReason) -> float:
        return sum(self.reasons.get(reason, 0) for reason in reasons) / self.batches

    def run_s(self, size: float) -> float:
        if self.line is None:
            return self.mean_run_s
        fixed_s, per_item_s = self.line
        return fixed_s + per_item_s * size


def _concurrency(stays: Iterable[tuple[float, float]], seconds: float) -> tuple[float, int]:
    # Requests that arrived before the recording, at an unknown time, would seem to end late.
    known = [(at, took_s) for at, took_s in stays if at]
    total_s = sum(took_s for _, took_s in known)
    # The times are rounded, so that a caller's next call may seem to begin before the end.
    changes = [*((at + 2e-6, 1) for at, _ in known), *((at + took_s, -1) for at, took_s in known)]
    at_once = accumulate(change for _, change in sorted(changes))
    return total_s / seconds, max(at_once, default=0)


@dataclass(frozen=True)
class Finding:
    """A reason for the size of batches; its kind is the anchor of its section on the `PAGE`."""

    kind: str
    evidence: str
    change: str

    @property
    def symptom(self) -> str:
        return self.kind.replace("-", " ").capitalize()

    @property
    def more(self) -> str:
        return f"{self.symptom!r} on the page {PAGE!r}"


# The change that each kind of finding asks for.
FINDINGS: Final = {
    "not-enough-traffic": "Look again under load, or for longer: --seconds 60.",
    "open-batches": "Compare these numbers with max_batch_size; dispatch reasons say nothing here.",
    "batches-are-full": "Raise max_batch_size if `shoal tune` shows that larger batches cost less.",
    "one-request-a-batch": "Let the code take lists, or look at what batches inside it.",
    "costs-fill-batches": "Raise max_batch_cost, or else max_batch_size, if the memory allows it.",
    "a-smaller-limit": "Allow more latency (adaptive.p99_s), or larger sizes.",
    "limit": "Nothing: requests gather for as long as it takes.",
    "deadlines": "Give calls more time, or set a shorter batch_wait_timeout_s.",
    "flushes": "Call flush() only after the last request of a group.",
    "keys-divide-batches": "Use fewer keys: round lengths up, or merge rare keys.",
    "slots-split-batches": "Lower max_concurrent_batches or num_replicas, if one is enough.",
    "one-at-a-time": "Send items at the same time: with map or results, or in one request.",
    "few-callers": "Raise the concurrency of the clients: workers, threads, connections.",
    "the-wait-ends-first": "Keep the wait if callers tolerate it, else set it to 0.",
    "no-wait": "Set batch_wait_timeout_s if others share the device. It adds latency.",
    "as-large-as-needed": "Nothing: batches grow with the traffic, and a wait would add latency.",
    "no-gain": "Nothing, or let the handler process its items together.",
}


def explain(figures: BatcherFigures) -> list[Finding]:
    return [Finding(kind, evidence, FINDINGS[kind]) for kind, evidence in _found(figures)]


def _found(one: BatcherFigures) -> Iterator[tuple[str, str]]:
    size = f"{three_digits(one.mean_size)} requests of at most {one.most:,}"
    if one.is_open:
        at_server = three_digits(one.at_server)
        yield "open-batches", f"{at_server} requests at the server on average, at most {one.peak:,}"
    elif one.batches < _FEWEST_BATCHES:
        yield (
            "not-enough-traffic",
            f"{one.batches:,} batches in {duration(one.seconds)}; {_FEWEST_BATCHES} are needed",
        )
    elif one.most == 1:
        yield "one-request-a-batch", size
    elif one.fill >= _LARGE and not one.has_costs:
        yield "batches-are-full", size
    elif one.fill >= _LARGE:
        cost = f"a batch costs {three_digits(one.mean_load)} of at most {one.most_load:g}"
        yield "costs-fill-batches", f"{cost}, with {three_digits(one.mean_size)} requests"
    else:
        found = [*_closed_early(one, size), *_divided(one), *_split(one), *_few_callers(one)]
        yield from found or _waits(one) or [_as_needed(one)]
        if one.line is not None and one.line[0] <= _OFTEN * one.run_s(1):
            fixed_s, per_item_s = map(duration, one.line)
            yield "no-gain", f"a request adds {per_item_s} to a run, which takes {fixed_s} itself"


def _closed_early(one: BatcherFigures, size: str) -> Iterator[tuple[str, str]]:
    given = ("adaptive", "preferred_batch_sizes", "allowed_batch_sizes")
    name = next((name for name in given if one.options.get(name) is not None), None)
    full = one.share(DispatchReason.FULL)
    if name == "adaptive" or (name is not None and full >= _MOSTLY):
        yield "a-smaller-limit", f"{name}: {size}; {percent(full)} of the batches were full"
    for kind, reason in (
        ("limit", DispatchReason.LIMIT),
        ("deadlines", DispatchReason.DEADLINE),
        ("flushes", DispatchReason.FLUSH),
    ):
        if (share := one.share(reason)) >= _OFTEN:
            yield kind, f"{percent(share)} of the batches have the dispatch reason {reason}"


def _divided(one: BatcherFigures) -> Iterator[tuple[str, str]]:
    for option, count in one.keys.items():
        merges = option == "priority_mixing" and one.options.get(option) != "isolate"
        if count > 1 and one.at_server > 1 and not merges:
            at_server = three_digits(one.at_server)
            evidence = f"{option}: {count:,} different keys for {at_server} requests at the server"
            yield "keys-divide-batches", evidence


def _split(one: BatcherFigures) -> Iterator[tuple[str, str]]:
    fixed_s, per_item_s = one.line or (one.mean_run_s, 0.0)
    # A busy slot needs the others.
    if one.slots == 1 or one.rate * one.run_s(one.most) > _BUSY * one.most:
        return
    # As many as arrive during their run; callers that wait for results are no more than now.
    alone = min(one.rate * fixed_s / (1 - one.rate * per_item_s), one.most, one.peak)
    if alone >= _LARGER * one.mean_size:
        slots, busy = one.slots or "any number of", three_digits(one.busy)
        evidence = (
            f"up to {slots} batches run at once, {busy} on average; one at a time would have about "
            f"{three_digits(alone)} requests, not {three_digits(one.mean_size)}"
        )
        yield "slots-split-batches", evidence


def _few_callers(one: BatcherFigures) -> Iterator[tuple[str, str]]:
    # At random, the standard deviation is the root of the mean.
    if one.peak < one.most and one.peak <= one.at_server + _RANDOM_PEAK * one.at_server**0.5:
        evidence = (
            f"at most {one.peak:,} at the server at once, {three_digits(one.at_server)} on "
            f"average; max_batch_size is {one.most:,}"
        )
        if one.slots != 1:
            evidence += f", and {one.slots or 'any number of'} batches run at once"
        yield "one-at-a-time" if one.peak == 1 else "few-callers", evidence


def _waits(one: BatcherFigures) -> list[tuple[str, str]]:
    wait_s, rate, line = one.options.get("batch_wait_timeout_s"), one.rate, one.line
    if wait_s and one.share(DispatchReason.TIMER, DispatchReason.IDLE) >= _MOSTLY:
        evidence = (
            f"{three_digits(rate)} requests/s for {duration(wait_s)} are "
            f"{three_digits(rate * wait_s)} requests; {one.most:,} need {duration(one.most / rate)}"
        )
        return [("the-wait-ends-first", evidence)]
    if wait_s or line is None or line[0] < _MOSTLY * one.mean_run_s or one.slots != 1:
        return []
    wait_s = 2 * line[0]
    size = min(1 + rate * wait_s, one.most)
    busy = rate * one.run_s(size) / size
    if one.busy < _MOSTLY or busy > one.busy / _LARGER:
        return []
    evidence = (
        f"a run takes {duration(line[0])}, and {duration(line[1])} more per request; it runs for "
        f"{percent(one.busy)} of the time. With batch_wait_timeout_s={wait_s:.2g} it would be "
        f"{percent(busy)}, with about {three_digits(size)} requests a batch"
    )
    return [("no-wait", evidence)]


def _as_needed(one: BatcherFigures) -> tuple[str, str]:
    arriving = three_digits(one.rate * one.mean_run_s)
    run_s = duration(one.mean_run_s)
    evidence = f"{three_digits(one.rate)} requests/s arrive, {arriving} during a run of {run_s}"
    return "as-large-as-needed", evidence
