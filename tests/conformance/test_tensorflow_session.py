"""What TensorFlow Serving's tests of its batching session assert (group TX).

A call there has tensors whose 0th dimension is its size; here an item is a list of rows, or a tuple
of such lists, whose cost is the number of its rows. M is `max_batch_size`.
"""

from itertools import chain
from typing import Any

import pytest

import shoal
from batching.callers import PENDING, launch, line_up, outcomes, outcomes_in_order
from batching.scenes import Recorder, opening

ROWS: dict[str, Any] = {"batch_size_fn": len, "batch_wait_timeout_s": None}
BY_ROWS: dict[str, Any] = {
    **ROWS,
    "split": lambda rows, room: [rows[: int(room)], rows[int(room) :]],
    "join": lambda results: list(chain(*results)),
}
Matrix = list[list[int]]


def zeros(rows: int, columns: int) -> Matrix:
    return [[0] * columns for _ in range(rows)]


SMALL, LARGE = [[1, 2], [3, 4]], [[5, 6, 7], [8, 9, 10], [11, 12, 13]]


async def test_tx2_a_handler_that_pads_gives_each_its_own_shape_back():
    seen: list[list[Matrix]] = []

    async def incremented(matrices: list[Matrix]) -> list[Matrix]:
        side = max(map(len, matrices))
        padded = [zeros(side, side) for _ in matrices]
        for target, matrix in zip(padded, matrices, strict=True):
            for row, values in enumerate(matrix):
                target[row][: len(values)] = values
        seen.append(padded)
        return [
            [[value + 1 for value in row[: len(matrix)]] for row in target[: len(matrix)]]
            for target, matrix in zip(padded, matrices, strict=True)
        ]

    async with shoal.Batcher(incremented, max_batch_size=2, batch_wait_timeout_s=None) as call:
        results = await outcomes_in_order(call(SMALL), call(LARGE))
    assert results == [[[2, 3], [4, 5]], [[6, 7, 8], [9, 10, 11], [12, 13, 14]]]
    assert seen == [[[[1, 2, 0], [3, 4, 0], [0, 0, 0]], LARGE]]


async def stacked(matrices: list[Matrix]) -> list[Matrix]:
    if len(set(map(len, matrices))) > 1:
        raise ValueError("different shapes and padding is turned off")
    return matrices


async def test_tx2_a_handler_that_does_not_pad_fails_both():
    async with shoal.Batcher(stacked, max_batch_size=2, batch_wait_timeout_s=None) as call:
        errors = await outcomes(call(SMALL), call(LARGE))
    assert [type(error) for error in errors] == [ValueError] * 2
    assert {str(error) for error in errors} == {"different shapes and padding is turned off"}


async def test_tx4_the_error_of_a_batch_reaches_all_whose_parts_are_in_it():
    batches: list[list[list[int]]] = []

    async def handler(items: list[list[int]]) -> list[list[int]]:
        batches.append(items)
        if [5] in items:
            raise ZeroDivisionError
        return items

    async with opening(handler, max_batch_size=4, **BY_ROWS) as (_, call, tasks):
        (before,) = await line_up(tasks, call([1]))
        (divided,) = await launch(tasks, call([2, 3, 4, 5]))
        assert (before.outcome, divided.outcome) == ([1], PENDING)
        (after,) = await line_up(tasks, call([6, 7, 8]))
    assert batches == [[[1], [2, 3, 4]], [[5], [6, 7, 8]]]
    assert [type(caller.outcome) for caller in (divided, after)] == [ZeroDivisionError] * 2


async def test_tx6_columns_of_unequal_lengths_are_refused_and_count_for_nothing():
    async def added(x: list[int], y: list[int]) -> list[int]:
        return [a + b for a, b in zip(x, y, strict=True)]

    batcher = shoal.Batcher(added)
    async with batcher as call:
        before = batcher.statistics()
        with pytest.raises(ValueError):
            await call.map([1, 2], [3])
        assert batcher.statistics() == before


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((4, 2, 8), "must ascend"),
        ((2, 4, 4, 8), "must ascend"),
        ((2, 4), "last of allowed_batch_sizes must be max_batch_size=8, not 4"),
        ((2, 16), "must not go beyond max_batch_size=8"),
    ],
)
async def test_tx8_allowed_sizes_must_ascend_to_the_size_of_a_batch(sizes, message):
    with pytest.raises(ValueError, match=message):
        shoal.Batcher(Recorder(), max_batch_size=8, allowed_batch_sizes=sizes)
