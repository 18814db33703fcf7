"""Handlers that are measured: every kind, in virtual time, where a run takes exactly its time."""

from contextlib import asynccontextmanager

import anyio
import pytest

import shoal
from shoal.planning.recordings import MeasuredRunTimes
from shoal.planning.tuning import NotMeasured, measure, opened
from shoal.testing import run_virtually

SIZES = [1, 2, 4, 6]


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


RUNS = MeasuredRunTimes({1: [1.0, 1.0, 1.0, 1.0, 4.0], 4: [2.5] * 5, 8: [4.0] * 5}, 0.5, 0.4375)


@pytest.mark.parametrize(
    ("size", "usual_s"), [(1, 1.0), (2, 1.5), (3, 2.0), (4, 2.5), (6, 3.25), (16, 7.5)]
)
def test_between_and_beyond_sizes_times_lie_on_a_line(size, usual_s):
    assert RUNS(size) == pytest.approx(usual_s)
