"""What Triton's tests of its dynamic batcher assert (group TR).

Sizes are costs here: an input of 3 rows is one request whose cost is 3. M is `max_batch_size`, 8;
the preferred sizes are 2 and 6; the delay is `batch_wait_timeout_s`, 10 s. Triton tells *fast*,
well before the delay, from *late*; in virtual time that is 0 s and 10 s after the arrival.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import anyio
import pytest

import shoal
from batching.scenes import Held, Recorder, line_up, outcomes_in_order, settle

PREFERRED = {
    "max_batch_size": 8,
    "preferred_batch_sizes": (2, 6),
    "batch_wait_timeout_s": 10,
    "batch_size_fn": lambda rows: rows.size,
}
LATE = 10.0


class Rows(NamedTuple):
    """The input of one call."""

    size: int
    shape: int = 16


ROW = Rows(1)
PLUG = Rows(8)


def by_shape(rows: Rows) -> int:
    return rows.shape


def executions(handler: Recorder, since: float) -> list[tuple[int, float]]:
    """The size of each batch, and how many seconds after `since` it was run."""
    return [
        (sum(rows.size for rows in batch), round(at - since, 6))
        for batch, at in zip(handler.batches, handler.started_at, strict=True)
    ]


async def send(*sent: Rows | float, **options: Any) -> list[tuple[int, float]]:
    """Makes calls, with pauses of so many seconds between them, and returns the executions."""
    handler = Recorder(lambda rows: rows.size)
    batcher = shoal.Batcher(handler, **{**PREFERRED, **options})
    asked = [one for one in sent if isinstance(one, Rows)]
    async with batcher as call:
        started, callers = anyio.current_time(), []
        async with anyio.create_task_group() as tasks:
            for one in sent:
                if isinstance(one, Rows):
                    callers += await line_up(tasks, call(one))
                else:
                    await anyio.sleep(one)
    check_success(batcher, asked, [caller.outcome for caller in callers], handler)
    return executions(handler, started)


async def send_held(*asked: Rows, behind_s: float = 0, **options: Any) -> list[tuple[int, float]]:
    """Makes calls while the only slot is busy, frees it when all are in line, or so much later."""
    handler = Held(lambda rows: rows.size)
    batcher = shoal.Batcher(handler, **{**PREFERRED, **options})
    async with batcher as call:
        started = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            callers = await line_up(tasks, call(PLUG))
            await settle()
            callers += await line_up(tasks, *map(call, asked))
            assert handler.batches == [[PLUG]]
            await anyio.sleep(behind_s)
            handler.gate.set()
    check_success(batcher, [PLUG, *asked], [caller.outcome for caller in callers], handler)
    return executions(handler, started)[1:]


def check_success(
    batcher: shoal.Batcher[Any], asked: Iterable[Rows], answers: list[Any], handler: Recorder
) -> None:
    """Asserts that each call succeeded, and that nothing was run twice or left out."""
    sizes = [rows.size for rows in asked]
    assert answers == sizes
    assert batcher.statistics().finished == len(sizes)
    assert sum(rows.size for batch in handler.batches for rows in batch) == sum(sizes)


@pytest.mark.parametrize(
    ("sent", "ran"),
    [
        pytest.param([Rows(2), Rows(6)], [(2, 0), (6, 0)], id="tr1 a preferred size goes at once"),
        pytest.param([Rows(1)], [(1, LATE)], id="tr2 below them waits"),
        pytest.param([Rows(3)], [(3, LATE)], id="tr3 between them waits"),
        pytest.param([Rows(7)], [(7, 0)], id="tr4 above them goes at once"),
        pytest.param([Rows(1, 16), Rows(1, 8)], [(2, 0)], id="tr5 shapes may mix"),
        pytest.param([Rows(3), 1, Rows(7)], [(3, 1), (7, 1)], id="tr10 can't grow to one"),
        pytest.param([Rows(3), 1, Rows(4)], [(3, 1), (4, 1 + LATE)], id="tr11 the rest waits"),
    ],
)
async def test_tr1_to_tr11_preferred_sizes(sent, ran):
    assert await send(*sent) == ran


@pytest.mark.parametrize(
    ("sent", "ran"),
    [
        pytest.param(
            [Rows(1, 16), 1, Rows(1, 8)],
            [(1, LATE), (1, 11)],
            id="tr6 another shape does not cut the first one's wait short",
        ),
        pytest.param(
            [Rows(1), Rows(3), Rows(1, 8)],
            [(4, LATE), (1, LATE)],
            id="tr8 another shape does not make the first one leave",
        ),
        pytest.param(
            [Rows(1), Rows(3), Rows(1, 8), Rows(5, 8)],
            [(6, 0), (4, LATE)],
            id="tr9 each shape grows to its own preferred size",
        ),
    ],
)
async def test_tr6_to_tr9_shapes_that_may_not_mix(sent, ran):
    assert await send(*sent, bucket_by=by_shape) == ran


class Ask(NamedTuple):
    """A call that wants some of the model's outputs."""

    value: int
    outputs: tuple[str, ...]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(("output0",), ("output0",), id="tr12"),
        pytest.param(("output1",), ("output1",), id="tr13"),
        pytest.param(("output0",), ("output1",), id="tr14"),
        pytest.param(("output0", "output1"), ("output1", "output0"), id="tr15"),
    ],
)
async def test_tr12_to_tr15_calls_that_want_other_outputs_share_a_batch_and_get_what_they_want(
    first, second
):
    batches: list[list[Ask]] = []

    async def model(asked: list[Ask]) -> list[dict[str, int]]:
        batches.append(asked)
        made = [{"output0": ask.value + 1, "output1": ask.value - 1} for ask in asked]
        return [{name: out[name] for name in a.outputs} for a, out in zip(asked, made, strict=True)]

    options = {"max_batch_size": 8, "preferred_batch_sizes": (2, 6), "batch_wait_timeout_s": 10}
    async with shoal.Batcher(model, **options) as call:
        answers = await outcomes_in_order(call(Ask(10, first)), call(Ask(20, second)))
        assert anyio.current_time() == 0
    every = {"output0": 1, "output1": -1}
    assert [list(answer.items()) for answer in answers] == [
        [(name, 10 + every[name]) for name in first],
        [(name, 20 + every[name]) for name in second],
    ]
    assert [len(batch) for batch in batches] == [2]


NO_DELAY = {"preferred_batch_sizes": (4, 6), "batch_wait_timeout_s": 0}


@pytest.mark.parametrize(
    ("held", "options", "ran"),
    [
        pytest.param([Rows(3), Rows(4)], {}, [(3, 0), (4, LATE)], id="tr16 the second waits"),
        pytest.param(
            [Rows(1), Rows(3), Rows(1, 8), Rows(5, 8)],
            {"bucket_by": by_shape},
            [(6, 0), (4, LATE)],
            id="tr18 of two shapes the preferred size goes at once",
        ),
        pytest.param([ROW] * 6, {}, [(6, 0)], id="tr19 the largest preferred size is taken"),
        pytest.param([ROW] * 3, {}, [(2, 0), (1, LATE)], id="tr20 the rest waits"),
        pytest.param([ROW] * 4, NO_DELAY, [(4, 0)], id="tr22 a preferred size without a delay"),
        pytest.param([ROW] * 5, NO_DELAY, [(4, 0), (1, 0)], id="tr23 and the rest after it"),
        pytest.param([ROW] * 3, NO_DELAY, [(3, 0)], id="tr25 below all of them without a delay"),
    ],
)
async def test_tr16_to_tr25_calls_that_wait_for_a_slot(held, options, ran):
    assert await send_held(*held, **options) == ran


async def test_what_is_overdue_leaves_as_one_batch_beyond_the_preferred_sizes():
    asked = (Rows(3), Rows(4), Rows(1))
    assert await send_held(*asked, behind_s=LATE + 1) == [(8, LATE + 1)]
    assert await send_held(*[ROW] * 9, behind_s=LATE + 1) == [(8, LATE + 1), (1, LATE + 1)]


async def test_tr26_a_short_delay_gathers_calls_into_one_or_two_batches(recorder):
    async with shoal.Batcher(recorder, max_batch_size=100, batch_wait_timeout_s=0.020) as call:
        assert await outcomes_in_order(*map(call, range(12))) == list(range(12))
    assert recorder.batches == [list(range(12))]
