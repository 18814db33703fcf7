"""Why batches have their size: the rules, applied to simulated traffic with a known reason."""

import math
import re
from pathlib import Path

import pytest

import shoal
from shoal import BatchOptions
from shoal.core.options.options import OPTIONS
from shoal.core.simulation_results import percentile
from shoal.planning import Arrival, ClosedLoop, Linear, constant, poisson, simulate
from shoal.planning.batch_sizes import FINDINGS, PAGE, BatcherFigures, explain
from shoal.planning.figures import duration, percent, percentiles, three_digits
from shoal.planning.recordings import RecordedBatcher
from shoal.planning.traces import Item

ROOT = Path(__file__).parents[2]
MODEL = Linear(0.02, 0.0005, jitter=0.05)
SECONDS = 10


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


# Percentiles, and numbers for people


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
