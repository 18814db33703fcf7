"""The benchmark of continuous batches is fair: each way writes the same texts, with the same model.

What it says holds in virtual time, where it does not depend on the machine.
"""

import random
from functools import cache, partial

import anyio
import pytest
import trio

from benchmarks.continuous_gpu import CAPACITY, STEP_S, TWICE, WAYS, Load, drive, steps_of_closed
from benchmarks.continuous_rivals import BARE, BY_LENGTH, CLOSED, CONTINUOUS, HELD, BareLoop
from benchmarks.gpu_model import GpuModel, Lengths, equal, log_uniform, uniform
from shoal.testing import run_virtually

pytestmark = pytest.mark.slow

LENGTHS = log_uniform(1, 64)
TEXTS = LENGTHS.draw(random.Random(20), 200)
FULL = Load(callers=1)
HALF = Load(rate=0.5)


def ran(way, load, texts, lengths, **options):
    return run_virtually(partial(drive, way, lengths, texts, load, **options))


@cache  # several tests look at the same run
def seen(way, load=TWICE, **options):
    return ran(way, load, TEXTS, LENGTHS, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("load", [FULL, TWICE, HALF], ids=str)
def test_each_way_writes_all_texts_in_full(way, load):
    # `drive` asserts the length of each text.
    assert len(seen(way, load).whole_text_s) == len(TEXTS)


def test_batches_by_bucket_write_all_texts_and_take_fewer_steps_than_in_order_of_arrival():
    by_length = seen(BY_LENGTH, Load(callers=4), buckets=4)
    assert len(by_length.whole_text_s) == len(TEXTS)
    assert by_length.steps < seen(CLOSED, Load(callers=4)).steps


@pytest.mark.parametrize("load", [FULL, TWICE, Load(callers=2, prefill_s=STEP_S), HALF], ids=str)
def test_continuous_batches_take_the_steps_of_the_bare_loop_and_give_the_first_token_as_soon(load):
    ours, bare = seen(CONTINUOUS, load), seen(BARE, load)
    assert ours.tokens == bare.tokens
    assert ours.steps == bare.steps
    assert ours.took_s == pytest.approx(bare.took_s)
    # trio runs the readers of a step in any order.
    assert sorted(ours.first_token_s) == pytest.approx(sorted(bare.first_token_s))


def test_continuous_batches_bring_what_the_lengths_allow():
    ours, closed = seen(CONTINUOUS), seen(CLOSED)
    bound = steps_of_closed(TEXTS) / (sum(TEXTS) / CAPACITY)
    assert bound > 2
    assert ours.occupancy == 1
    assert ours.tokens_a_second / closed.tokens_a_second == pytest.approx(bound, rel=0.1)


def test_a_place_that_becomes_free_is_taken_before_the_next_step_even_if_its_caller_takes_it():
    assert seen(CONTINUOUS, FULL).occupancy > 0.99


def test_continuous_batches_bring_nothing_where_all_lengths_are_equal():
    texts = [32] * 96
    ours, closed = (ran(way, TWICE, texts, equal(32)) for way in (CONTINUOUS, CLOSED))
    assert ours.steps == closed.steps


def test_at_half_the_load_of_closed_batches_a_text_begins_within_two_steps():
    assert max(seen(CONTINUOUS, HALF).first_token_s) <= 2 * STEP_S + 1e-9
    assert max(seen(CLOSED, HALF).first_token_s) > 10 * STEP_S


def test_a_held_batch_answers_all_texts_when_the_longest_is_done():
    texts = [1, *[10] * (CAPACITY - 1)]
    held = ran(HELD, FULL, texts, uniform(1, 10))
    assert held.first_token_s == held.whole_text_s == pytest.approx([10 * STEP_S] * CAPACITY)


def test_a_reader_that_leaves_the_bare_loop_frees_its_place():
    async def main():
        loop = BareLoop(GpuModel(capacity=1, step_s=1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run)
            async with loop.call(1000) as stream:
                assert await stream.receive() == 1
            async with loop.call(2) as stream:
                assert [token async for token in stream] == [1, 1]
            nursery.cancel_scope.cancel()

    run_virtually(main)


def test_a_step_costs_the_same_for_any_number_of_texts_and_longer_only_if_some_join():
    async def main():
        model = GpuModel(capacity=4, step_s=2, prefill_s=3)
        times = []
        for texts, joining in ((1, 0), (4, 0), (4, 1), (4, 4)):
            before = anyio.current_time()
            await model.step(texts, joining)
            times.append(anyio.current_time() - before)
        return times, model.steps, model.tokens

    assert run_virtually(main) == ([2, 2, 5, 5], 4, 13)


def test_the_bound_is_that_of_the_distribution():
    # Of two texts that have 1 or 3 tokens, the longest has 3 in three of four cases.
    two = Lengths("1 or 3", {3: 1.0, 1: 1.0})
    assert two.longest_of(1) == 2
    assert two.longest_of(2) == 2.5
    assert two.gain_at_most(2) == 1.25
    assert equal(7).gain_at_most(16) == 1


def test_buckets_get_about_the_same_number_of_texts():
    lengths = uniform(1, 100)
    of = [lengths.bucket_of(length, 4) for length in range(1, 101)]
    assert of == sorted(of)
    assert {bucket: of.count(bucket) for bucket in set(of)} == pytest.approx(
        dict.fromkeys(range(4), 25), abs=1
    )
