"""What Triton's tests of its dynamic batcher and of its queue assert (groups TR and TQ).

Sizes are costs here: an input of 3 rows is one request whose cost is 3. M is `max_batch_size`, 8;
the preferred sizes are 2 and 6; the delay is `batch_wait_timeout_s`, 10 s. Triton tells *fast*,
well before the delay, from *late*; in virtual time that is 0 s and 10 s after the arrival.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

import anyio
import pytest

import shoal
from batching.callers import launch, line_up, outcomes_in_order
from batching.scenes import Held, Recorder, settle

PREFERRED = {
    "max_batch_size": 8,
    "preferred_batch_sizes": (2, 6),
    "batch_wait_timeout_s": 10,
    "batch_size_fn": lambda rows: rows.size,
}
LATE = 10.0
SIZES: dict[str, Any] = {"max_batch_size": 8, "batch_size_fn": lambda size: size}
NO_DELAY = {"preferred_batch_sizes": (4, 6), "batch_wait_timeout_s": 0}


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
            callers = await launch(tasks, call(PLUG))
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


@pytest.mark.parametrize(
    "bound",
    [
        {"max_queued_requests": 8},
        {"default_queue_policy": shoal.QueuePolicy(max_queued_requests=8)},
    ],
    ids=["the line's", "the level's"],
)
async def test_tq1_what_is_beyond_the_bound_is_refused_at_once(bound):
    async def handler(items: list[int]) -> list[int]:
        await anyio.sleep(5)
        return items

    batcher = shoal.Batcher(handler, max_batch_size=1, **bound)
    async with batcher as call, anyio.create_task_group() as tasks:
        started = anyio.current_time()
        callers = await launch(tasks, call(0))
        callers += await line_up(tasks, *map(call, range(1, 11)))
        await settle()
        refused, served = callers[9:], callers[:9]
        assert [type(caller.outcome) for caller in refused] == [shoal.errors.Overloaded] * 2
        assert [caller.ended_at for caller in refused] == [started] * 2
    assert [caller.outcome for caller in served] == list(range(9))
    assert batcher.statistics().rejected == 2


async def test_tq3_what_waits_for_too_long_is_rejected_and_counted(recorder):
    batcher = shoal.Batcher(
        recorder,
        **SIZES,
        preferred_batch_sizes=(4,),
        batch_wait_timeout_s=10,
        default_queue_policy=shoal.QueuePolicy(timeout_s=0.1),
    )
    async with batcher as call, anyio.create_task_group() as tasks:
        (late,) = await line_up(tasks, call(1))
        await anyio.sleep(0.2)
        others = await line_up(tasks, call(1), call(2), call(1))
    assert isinstance(late.outcome, shoal.errors.DeadlineExceeded)
    assert "waited in the queue for longer than its timeout" in str(late.outcome)
    assert late.ended_at == pytest.approx(0.1)
    assert [caller.outcome for caller in others] == [1, 2, 1]
    assert [caller.ended_at for caller in others] == [pytest.approx(0.2)] * 3
    assert recorder.batches == [[1, 2, 1]]
    statistics = batcher.statistics()
    assert (statistics.expired, statistics.rejected, statistics.finished) == (1, 0, 3)


async def two_levels(urgent: int | None, usual: int | None, **options: Any) -> None:
    """A call of the highest level joins the first batch in place of one that came before it."""
    handler = Recorder()
    options = {"preferred_batch_sizes": (4,), "batch_wait_timeout_s": 10, **options}
    async with shoal.Batcher(handler, **SIZES, **options) as call:
        started = anyio.current_time()
        usually = call if usual is None else call.options(priority=usual)
        async with anyio.create_task_group() as tasks:
            callers = await line_up(tasks, usually(2), usually(1))
            await anyio.sleep(0.2)
            callers += await line_up(tasks, call.options(priority=urgent)(2))
    assert [caller.outcome for caller in callers] == [2, 1, 2]
    waits = [round(caller.ended_at - started, 6) for caller in callers if caller.ended_at]
    assert waits == [0.2, 10, 0.2]
    assert handler.batches == [[2, 2], [1]]


async def test_tq5_a_higher_level_joins_the_first_batch():
    await two_levels(urgent=1, usual=2, priority_levels=2)


@pytest.mark.parametrize("aging_s", [None, 10.0])
async def test_tq6_levels_may_be_as_many_as_fit_in_64_bits(aging_s):
    await two_levels(
        urgent=1,
        usual=None,
        priority_levels=2**64 - 1,
        default_priority=2**32,
        priority_aging_s=aging_s,
    )


async def test_tq11_leaving_many_calls_is_one_cancellation(held):
    batcher = shoal.Batcher(held, max_batch_size=4)
    endings: list[BaseException] = []

    async with batcher as call, anyio.create_task_group() as tasks:

        async def ask_all() -> None:
            try:
                await call.map(range(32))
            except BaseException as ending:
                endings.append(ending)
                raise

        tasks.start_soon(ask_all)
        await settle()
        tasks.cancel_scope.cancel()
    assert [type(ending) for ending in endings] == [anyio.get_cancelled_exc_class()]
    statistics = batcher.statistics()
    assert (statistics.cancelled, statistics.queued, statistics.running) == (32, 0, 0)
    assert held.batches == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("starts", "paces", "together"),
    [
        pytest.param((0, 1), (2, 2), [0, 1, 2, 3, 4, 5, 6, 7], id="they take turns"),
        pytest.param((1, 0), (2, 2), [1, 0, 3, 2, 5, 4, 7, 6], id="the second is ahead"),
        pytest.param((5, 0), (2, 1), [1, 3, 5, 7, 0, 2, 4, 6], id="the second is fast"),
        pytest.param((0, 5), (1, 2), [0, 2, 4, 6, 1, 3, 5, 7], id="the second is slow"),
        pytest.param((0, 3), (2, 2), [0, 2, 1, 4, 3, 6, 5, 7], id="the second comes later"),
    ],
)
async def test_tq14_streams_keep_their_own_order_and_pace(starts, paces, together):
    async def numbers(items: list[int]) -> AsyncIterator[list[int]]:
        (first,) = items
        await anyio.sleep(starts[first])
        for place in range(4):
            yield [first + 2 * place]
            await anyio.sleep(paces[first])

    arrived: list[int] = []
    async with shoal.Batcher(numbers, max_batch_size=1, max_concurrent_batches=2) as call:

        async def read(first: int) -> None:
            async with call(first) as stream:
                mine = []
                async for item in stream:
                    mine.append(item)
                    arrived.append(item)
            assert mine == [first, first + 2, first + 4, first + 6]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, 0)
            tasks.start_soon(read, 1)
    assert arrived == together


async def test_tq15_a_stream_is_no_answer_to_await(steps):
    async with shoal.Batcher(steps.handler) as call:
        with pytest.raises(TypeError):
            await call(1)
    assert steps.batches == []
