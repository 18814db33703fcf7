"""Recordings of batchers, replayed: the same options give the same batches."""

import json
import random
from contextlib import suppress

import anyio
import pytest

import shoal
from shoal import BatchOptions
from shoal.core.simulation import simulate
from shoal.core.simulation_results import Arrival, Linear
from shoal.http.admin.recordings import ArrivalRecorder, note_of
from shoal.planning.recordings import measured_run_times
from shoal.planning.traces import bursty, poisson, read_trace

pytestmark = pytest.mark.slow

TOLERANCE_S = 1e-4
RUN_TIME = Linear(0.0113, 0.00171)
HEAD = {"record": "trace", "format": 1}


async def record(trace, options, path):
    """Calls a batcher as a trace says, and writes what was recorded."""
    began_at = anyio.current_time()
    by_cost = "batch_size_fn" in options
    batches = []

    async def handler(items):
        batch = shoal.current_batch()
        size = sum(item[0] for item in items) if by_cost else len(items)
        batches.append((anyio.current_time() - began_at, batch.reason, batch.size))
        await anyio.sleep(RUN_TIME(size))
        return items

    recorder = ArrivalRecorder(began_at, most_requests=10**6)
    batcher = shoal.Batcher(handler, name="recorded", **options)
    batcher.observers.add(recorder)
    async with batcher as call, anyio.create_task_group() as tasks:

        async def caller(arrival):
            await anyio.sleep_until(began_at + arrival.at)
            given = {"priority": arrival.priority, "timeout_s": arrival.timeout_s}
            given = {name: one for name, one in given.items() if one is not None}
            with suppress(shoal.errors.Overloaded, shoal.errors.DeadlineExceeded):
                await (call.options(**given) if given else call)(arrival.item)

        for arrival in trace:
            tasks.start_soon(caller, arrival)
    lines = [
        {"record": "trace", "format": 1},
        note_of(batcher),
        *recorder.take(),
        {"record": "end", "lost": recorder.lost, "unfinished": 0},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return batches, batcher.statistics()


def items(times, seed, levels=1):
    chance = random.Random(seed)
    for at in times:
        yield Arrival(
            at,
            item=(chance.choice([1, 1, 2, 3.5]), chance.randrange(3)),
            priority=chance.randint(1, levels) if levels > 1 else None,
            timeout_s=chance.choice([None, 0.2]),
        )


CASES = {
    "plain": (list(poisson(300, 3, seed=1)), {"max_batch_size": 16, "batch_wait_timeout_s": 0.01}),
    "bursts": (
        list(bursty(200, 4, on_s=0.5, off_s=0.5, seed=2)),
        {"max_batch_size": 8, "max_concurrent_batches": 2, "max_queued_requests": 12},
    ),
    "costs and buckets": (
        list(poisson(150, 4, seed=3)),
        {"max_batch_size": 10, "batch_wait_timeout_s": 0.02}
        | {"batch_size_fn": lambda item: item[0], "bucket_by": lambda item: item[1]},
    ),
    "levels": (
        list(poisson(400, 3, seed=4)),
        {"max_batch_size": 8, "priority_levels": 3, "request_timeout_s": 1.5}
        | {"max_queued_requests": 20, "overload": "shed_lowest"},
    ),
    "sizes": (
        list(poisson(250, 3, seed=5)),
        {"max_batch_size": 16, "allowed_batch_sizes": [4, 8, 16], "batch_wait_timeout_s": 0.03},
    ),
}


@pytest.mark.one_loop
@pytest.mark.parametrize("name", CASES)
async def test_a_recording_replays_to_the_same_batches(name, tmp_path):
    times, options = CASES[name]
    trace = list(items(times, 1, options.get("priority_levels", 1)))
    path = tmp_path / "trace.jsonl"
    batches, statistics = await record(trace, options, path)
    recording = read_trace(path)
    assert recording.unknown == ()
    known = recording.batcher
    pairs = dict(known.options)
    if "batch_size_fn" in options:
        assert {*known.functions} == {"batch_size_fn", "bucket_by"}
        pairs["batch_size_fn"] = lambda item: item.cost
        pairs["bucket_by"] = lambda item: item.bucket
    model = known.run_times()
    assert model.fixed_s == pytest.approx(RUN_TIME.fixed_s, rel=0.01)
    assert model.per_item_s == pytest.approx(RUN_TIME.per_item_s, rel=0.01)
    replayed = simulate(recording.arrivals, BatchOptions.of(pairs), model)
    first_at = trace[0].at
    theirs = [(at - first_at, reason, size) for at, reason, size in batches]
    ours = [(one.dispatched_at, one.reason, len(one.requests)) for one in replayed.batches]
    same = sum(
        one[1:] == other[1:] and abs(one[0] - other[0]) < TOLERANCE_S
        for one, other in zip(ours, theirs, strict=False)
    )
    assert same == len(ours) == len(theirs)
    latencies = sorted(one for one in replayed.latency_s if one == one)
    assert sorted(known.latency_s) == pytest.approx(latencies, abs=TOLERANCE_S)
    counts = {str(outcome): count for outcome, count in replayed.count.items() if count}
    assert counts == dict(known.outcomes)
    assert counts.get("finished") == statistics.finished
    assert counts.get("rejected", 0) == statistics.rejected
    assert counts.get("shed", 0) == statistics.shed
    assert counts.get("expired", 0) == statistics.expired


@pytest.fixture
def write(tmp_path):
    def write(*lines):
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path

    return write


def test_the_busiest_batcher_is_read_unless_another_is_named(write):
    of_b = [{"at": 3, "batcher": "b"}, {"at": 2, "batcher": "b", "cost": 2}]
    path = write(HEAD, {"at": 5, "batcher": "a"}, *of_b)
    recording = read_trace(path)
    assert (recording.batcher.name, recording.others) == ("b", ("a",))
    assert [one.at for one in recording.arrivals] == [0, 1]
    assert recording.columns == {"at", "cost"}
    recording = read_trace(path, "a")
    assert (recording.batcher.name, recording.others) == ("a", ("b",))
    assert recording.columns == {"at"}
    with pytest.raises(ValueError, match="has no requests for c; it has those for a, b"):
        read_trace(path, "c")


def test_other_traces_may_have_columns_of_these_names(write):
    path = write({"at": 1, "batcher": "a", "took_s": 3}, {"at": 2, "batcher": "b"})
    recording = read_trace(path)
    assert len(recording.arrivals) == 2
    assert recording.unknown == ("batcher", "took_s")
    assert recording.batcher is None
    with pytest.raises(ValueError, match="it names no backends"):
        read_trace(path, "a")


def test_callers_that_left_have_that_much_patience(write):
    path = write(
        HEAD,
        {"at": 0, "batcher": "a", "outcome": "cancelled", "left_s": 2, "queue_timeout_s": 3},
        {"at": 1, "batcher": "a", "outcome": "cancelled", "took_s": 2},
        {"at": 2, "batcher": "a", "outcome": "rejected", "left_s": 0},
    )
    recording = read_trace(path)
    assert [one.queue_timeout_s for one in recording.arrivals] == [2, None, None]
    assert recording.batcher.outcomes == {"cancelled": 2, "rejected": 1}


@pytest.mark.parametrize(
    "line",
    [
        {"record": "batcher"},
        {"record": "batcher", "batcher": 3},
        {"record": "batcher", "batcher": "a", "options": []},
        {"record": "batcher", "batcher": "a", "options": {}, "run_time": {"fixed_s": "x"}},
        {"record": "batch", "batcher": "a"},
        {"record": "batch", "batcher": "a", "at": 1, "reason": "x", "size": 1, "run_s": 1},
        {"record": "batch", "batcher": "a", "at": 1, "reason": "full", "size": 0, "load": 1},
        {"at": 1},
        {"at": 1, "batcher": "a", "outcome": "lost"},
        {"at": 1, "batcher": "a", "took_s": -1},
        {"record": "end", "lost": "many"},
    ],
)
def test_a_broken_line_is_named(line, write):
    path = write(HEAD, {"at": 0, "batcher": "a"}, line)
    with pytest.raises(ValueError, match=r"trace\.jsonl, line 3: "):
        read_trace(path)


def test_a_trace_of_a_later_form_is_refused_but_lines_of_a_later_kind_are_passed_over(write):
    with pytest.raises(ValueError, match="form 2, which another version has written"):
        read_trace(write({"record": "trace", "format": 2}))
    path = write(HEAD, {"record": "later", "batcher": "a"}, {"at": 0, "batcher": "a"})
    assert len(read_trace(path).arrivals) == 1


def test_run_times_are_those_of_a_size_and_a_line_between():
    runs = [(size, 0.01 + 0.002 * size) for size in (1, 2, 8) for _ in range(10)]
    runs[5] = (1, 0.024)
    model = measured_run_times(runs)
    assert model(4) == pytest.approx(0.018, rel=0.01)
    assert model(100) == pytest.approx(0.21, rel=0.01)
    sample = model.sampler()
    assert {round(sample(1), 3) for _ in range(200)} == {0.012, 0.024}
    assert {round(sample(8), 3) for _ in range(50)} == {0.026}
    assert [model.sampler()(1) for _ in range(3)] == [model.sampler()(1) for _ in range(3)]
    few = [(1, 0.01 * (1 + number % 2)) for number in range(100)] + [(4, 0.03)]
    sample = measured_run_times(few).sampler()
    assert len({sample(4) for _ in range(50)}) > 1, "those of few runs vary as all do"


def test_run_times_of_one_size_follow_what_the_server_had_learned():
    runs = [(8, 0.02)] * 20
    assert measured_run_times(runs)(16) == pytest.approx(0.02)
    assert measured_run_times(runs, 0.002, 0.001)(16) == pytest.approx(0.036)


@pytest.mark.parametrize(
    ("runs", "fixed_s", "per_item_s"),
    [
        ([(1, 0.04), (2, 0.03)], 0.03, 0),
        ([(2, 0.01), (4, 0.03)], 0, pytest.approx(0.0058, abs=0.001)),
        ([(1, 0.0), (2, 0.0)], 0, 0),
    ],
)
def test_no_part_of_a_run_time_is_negative(runs, fixed_s, per_item_s):
    model = measured_run_times(runs)
    assert (model.fixed_s, model.per_item_s) == (fixed_s, per_item_s)


def test_many_sizes_are_put_together():
    chance = random.Random(1)
    sizes = [chance.uniform(1, 100) for _ in range(5000)]
    model = measured_run_times((size, 0.01 + 0.001 * size) for size in sizes)
    assert len(model.runs_s) == 64
    for size in (1, 33.3, 100):
        assert model(size) == pytest.approx(0.01 + 0.001 * size, rel=0.03)
