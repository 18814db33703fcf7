"""Handlers that are measured in virtual time, why batches have their size, and their figures."""

import math
import re
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import shoal
from shoal import BatchOptions
from shoal.core.options.options import OPTIONS
from shoal.core.simulation_results import percentile
from shoal.planning import Arrival, ClosedLoop, Linear, constant, poisson, simulate
from shoal.planning.batch_sizes import FINDINGS, PAGE, BatcherFigures, explain
from shoal.planning.figures import duration, percent, percentiles, three_digits
from shoal.planning.recordings import MeasuredRunTimes, RecordedBatcher
from shoal.planning.traces import Item
from shoal.planning.tuning import NotMeasured, measure, opened
from shoal.testing import run_virtually

SIZES = [1, 2, 4, 6]
ROOT = Path(__file__).parents[2]
MODEL = Linear(0.02, 0.0005, jitter=0.05)
SECONDS = 10
RUNS = MeasuredRunTimes({1: [1.0, 1.0, 1.0, 1.0, 4.0], 4: [2.5] * 5, 8: [4.0] * 5}, 0.5, 0.4375)


def measured(handler, make_item=lambda: 3, sizes=SIZES, rounds=5, limit_s=60.0):
    """Measures a handler, and gives what it said meanwhile as well."""
    said = []

    async def main():
        async with opened(handler) as batcher:
            return await measure(
                batcher, make_item, sizes, rounds=rounds, limit_s=limit_s, progress=said.append
            )

    return run_virtually(main), said


def run_s(size):
    return 0.25 + 0.125 * size


async def doubled(items: list[int]) -> list[int]:
    await anyio.sleep(run_s(len(items)))
    return [2 * item for item in items]


async def added(first: list[int], second: list[int]) -> list[int]:
    await anyio.sleep(run_s(len(first)))
    return [a + b for a, b in zip(first, second, strict=True)]


async def counted(items: list[int]):
    for step in range(2):
        await anyio.sleep(run_s(len(items)) / 2)
        yield [step] * len(items)


class Model:
    @shoal.batch(max_batch_size=3, batch_wait_timeout_s=9)
    async def predict(self, items: list[int]) -> list[int]:
        return await doubled(items)


@pytest.mark.parametrize(
    ("handler", "item"),
    [
        (doubled, 3),
        (shoal.batch(doubled, max_batch_size=2, batch_wait_timeout_s=1), 3),
        (Model().predict, 3),
        (added, [1, 2]),
        (added, {"second": 2, "first": 1}),
        (counted, 3),
        (shoal.batch(counted), 3),
    ],
)
def test_every_kind_of_handler_is_measured_at_every_size(handler, item):
    found, _ = measured(handler, lambda: item)
    assert list(found.runs_s) == SIZES
    for size, runs_s in found.runs_s.items():
        assert runs_s == pytest.approx([run_s(size)] * 5)
    assert found.fixed_s == pytest.approx(0.25)
    assert found.per_item_s == pytest.approx(0.125)


def test_each_item_is_made_anew():
    made = iter(range(1000))
    seen = []

    async def handler(items: list[int]) -> list[int]:
        seen.extend(items)
        return items

    measured(handler, made.__next__)
    assert sorted(seen) == list(range(len(seen)))


def test_the_first_rounds_warm_the_handler_up():
    runs = []

    async def handler(items: list[int]) -> list[int]:
        await anyio.sleep(1.0 if len(runs) < 4 else 0.5)
        runs.append(len(items))
        return items

    found, _ = measured(handler, sizes=[1, 2])
    assert runs == [1, 2] * 7
    assert found.runs_s == {1: pytest.approx([0.5] * 5), 2: pytest.approx([0.5] * 5)}


def test_measuring_stops_when_its_time_is_over():
    found, said = measured(doubled, rounds=100, limit_s=0)
    assert {len(runs_s) for runs_s in found.runs_s.values()} == {5}
    assert said == ["stopped after 5 of 100 rounds: reached the limit of 0 s"]


@pytest.mark.parametrize("in_slot", [False, True])
def test_a_handler_that_fails_is_shown(in_slot):
    async def handler(items: list[int]) -> list[int]:
        error = LookupError("no weights")
        if not in_slot:
            raise error
        return [error] * len(items)

    with pytest.raises(NotMeasured, match="a batch of 1 failed") as told:
        measured(handler)
    assert repr(told.value.__cause__) == "LookupError('no weights')"


@pytest.mark.parametrize("fill", ["open", "continuous"])
def test_a_handler_whose_batches_grow_is_refused(fill):
    @shoal.batch(fill=fill)
    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        async for joined in batch.steps():
            for request in joined:
                request.finish(request.item)

    with pytest.raises(ValueError, match="so there is no run time of a batch"):
        measured(handler)


def test_a_batcher_that_is_opened_is_closed_again():
    @asynccontextmanager
    async def open_twice():
        for _ in range(2):
            async with opened(Model().predict) as batcher:
                pass
        yield batcher

    async def main():
        async with open_twice() as batcher:
            return batcher.is_alive

    assert run_virtually(main) is False


@pytest.mark.parametrize(
    ("size", "usual_s"), [(1, 1.0), (2, 1.5), (3, 2.0), (4, 2.5), (6, 3.25), (16, 7.5)]
)
def test_between_and_beyond_sizes_times_lie_on_a_line(size, usual_s):
    assert RUNS(size) == pytest.approx(usual_s)


def recorded(simulation, columns, **described):
    """What `shoal trace` would have recorded of a simulation."""
    batcher = RecordedBatcher("small")
    options = {}
    functions = []
    for name, option in OPTIONS.items():
        value = getattr(simulation.options, name)
        if option.is_function and value not in (None, False, True):
            functions.append(name)
        else:
            options[name] = None if value is None else option.to_plain(value)
    batcher.describe({"options": options, "functions": functions, **described})
    for number, batch in enumerate(simulation.batches):
        batcher.add_batch(
            {
                "at": batch.dispatched_at,
                "run_s": batch.run_s,
                "size": len(batch.requests),
                "load": batch.size,
                "reason": batch.reason,
                "batch": number,
            }
        )
    arrivals = []
    for at, took_s in zip(simulation.arrived_at, simulation.latency_s, strict=True):
        if took_s == took_s:
            batcher.add_request({"at": at, "took_s": took_s})
            arrivals.append(Arrival(at, **{name: key(at) for name, key in columns.items()}))
    return batcher, arrivals


def found(traffic, model=MODEL, columns=None, replicas=None, described=None, **options):
    options = BatchOptions(**{"max_batch_size": 32, **options})
    simulation = simulate(traffic, options, model, replicas=replicas)
    batcher, arrivals = recorded(simulation, columns or {}, **(described or {}))
    return explain(BatcherFigures(batcher, arrivals, simulation.duration_s))


def each(arrivals, **more):
    return [Arrival(at, **more) for at in arrivals]


CASES = {
    "not-enough-traffic": lambda: found(constant(1, SECONDS)),
    "open-batches": lambda: found(poisson(50, SECONDS), described={"open": True}),
    "batches-are-full": lambda: found(ClosedLoop(64, 0.001, SECONDS)),
    "one-request-a-batch": lambda: found(poisson(30, SECONDS), max_batch_size=1),
    "costs-fill-batches": lambda: found(
        each(poisson(150, SECONDS), item="three"), max_batch_size=8, batch_size_fn=len
    ),
    "a-smaller-limit": lambda: found(
        poisson(1000, SECONDS), max_batch_size=256, adaptive=shoal.LatencyTarget(p99_s=0.08)
    ),
    "limit": lambda: found(poisson(60, SECONDS), limit=shoal.Limit(batches_per_s=10)),
    "deadlines": lambda: found(
        each(poisson(60, SECONDS), timeout_s=0.06), batch_wait_timeout_s=1.0
    ),
    "keys-divide-batches": lambda: found(
        [Arrival(at, item=int(at * 1000) % 8) for at in poisson(150, SECONDS)],
        columns={"item": lambda at: Item(bucket=str(int(at * 1000) % 8))},
        bucket_by=lambda item: item,
    ),
    "slots-split-batches": lambda: found(poisson(150, SECONDS), max_concurrent_batches=4),
    "one-at-a-time": lambda: found(ClosedLoop(1, 0.001, SECONDS)),
    "few-callers": lambda: found(ClosedLoop(4, 0.001, SECONDS)),
    "the-wait-ends-first": lambda: found(poisson(50, SECONDS), batch_wait_timeout_s=0.005),
    "no-wait": lambda: found(poisson(1000, SECONDS), Linear(0.002, 0.00005), max_batch_size=64),
    "as-large-as-needed": lambda: found(poisson(10, SECONDS)),
}


@pytest.mark.parametrize("kind", CASES)
def test_the_reason_is_found_and_no_other(kind):
    assert [one.kind for one in CASES[kind]()] == [kind]


def test_a_handler_without_gain_is_named_beside_the_reason():
    kinds = [one.kind for one in found(poisson(100, SECONDS), Linear(0.0002, 0.005))]
    assert kinds == ["as-large-as-needed", "no-gain"]


def test_flushes_are_counted():
    batcher, arrivals = recorded(simulate(poisson(60, SECONDS), BatchOptions(), MODEL), {})
    batcher.batches = [batch._replace(reason="flush") for batch in batcher.batches]
    assert [one.kind for one in explain(BatcherFigures(batcher, arrivals, SECONDS))] == ["flushes"]


def test_merged_priorities_do_not_divide_batches():
    def kinds(**options):
        traffic = [Arrival(at, priority=1 + int(at * 1000) % 3) for at in poisson(80, SECONDS)]
        levels = {"priority": lambda at: 1 + int(at * 1000) % 3}
        findings = found(traffic, columns=levels, priority_levels=3, **options)
        return [one.kind for one in findings]

    assert "keys-divide-batches" in kinds(priority_mixing="isolate")
    assert "keys-divide-batches" not in kinds()


def test_busy_slots_are_not_advised_away():
    findings = found(ClosedLoop(16, 0.001, SECONDS), replicas=4)
    assert [one.kind for one in findings] == ["few-callers"]


def test_the_evidence_has_numbers():
    [one] = CASES["few-callers"]()
    assert one.evidence.startswith("at most 4 at the server at once")
    assert one.evidence.endswith("max_batch_size is 32")
    [one] = CASES["slots-split-batches"]()
    assert re.match(
        r"up to 4 batches run at once, 2\.\d+ on average; one at a time would have", one.evidence
    )


def test_each_finding_has_a_section_and_each_section_a_finding():
    page = (ROOT / "docs/how-to/why-are-my-batches-small.md").read_text()
    assert f"# {PAGE}\n" in page
    headings = {
        heading.lower().replace(" ", "-")
        for heading in re.findall(r"^### (.*)$", page, re.MULTILINE)
    }
    assert headings == set(FINDINGS)


def test_code_of_one_request_is_not_advised_to_raise_the_limit():
    [one] = CASES["one-request-a-batch"]()
    assert one.symptom == "One request a batch"
    assert one.change.startswith("Let the code take lists")


def test_requests_from_before_the_recording_add_no_callers():
    loop = ClosedLoop(4, 0.001, SECONDS)
    batcher, arrivals = recorded(simulate(loop, BatchOptions(max_batch_size=32), MODEL), {})
    for _ in range(4):
        batcher.add_request({"at": 0.0, "took_s": 0.05})
    assert [one.kind for one in explain(BatcherFigures(batcher, arrivals, SECONDS))] == [
        "few-callers"
    ]


def test_a_percentile_is_one_of_the_values():
    assert [percentile([1, 2, 3, 4], percent) for percent in (1, 25, 26, 50, 99.9, 100)] == [
        *(1, 1, 2, 2, 4, 4)
    ]
    assert math.isnan(percentile([], 50))


def test_percentiles_leave_out_what_has_no_value():
    found = {"p50": 1, "p90": 2, "p99": 2, "p99.9": 2, "max": 2}
    assert percentiles([2, math.nan, 1]) == found
    assert percentiles([math.nan]) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (2.5e-8, "0.025 µs"), (0.0000525, "52.5 µs"), (0.0025, "2.5 ms")),
        *((0.1, "100 ms"), (1, "1 s"), (1234.5, "1,234 s"), (math.nan, "-")),
    ],
)
def test_a_duration_has_a_unit_that_fits(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(5.994, "5.99"), (99.95, "100"), (12345.6, "12,346"), (math.nan, "-")]
)
def test_a_number_has_three_digits_or_all_before_the_point(number, text):
    assert three_digits(number) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0%"), (0.004, "0.4%"), (0.123, "12%"), (1, "100%")]
)
def test_a_share_is_percent(share, text):
    assert percent(share) == text
