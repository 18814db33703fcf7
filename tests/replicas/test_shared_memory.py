"""Shared memory is reserved, read and given back."""

import gc
import itertools
import os
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.replicas.process.child.calls import Stacked, stacked
from shoal.replicas.process.wire import shared_memory
from shoal.replicas.process.wire.shared_memory import Region, new_memory


@pytest.fixture
def region() -> Region:
    return Region(memoryview(bytearray(1000)))


def test_buffers_of_one_size_lie_without_gaps_and_others_on_even_places(region):
    places = region.reserve([100, 100, 50])
    assert places == [(0, 100), (100, 100), (256, 50)]


@pytest.mark.parametrize(("pause", "pauses"), [(True, 5), (False, 0)])
def test_a_long_copy_lets_other_threads_run_each_millisecond(monkeypatch, pause, pauses):
    now = itertools.count(0.0, 0.0003)  # the time that each piece takes
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: next(now), sleep=slept.append)
    monkeypatch.setattr(shared_memory, "time", clock)
    monkeypatch.setattr(shared_memory, "_PIECE", 10)
    region = Region(memoryview(bytearray(1000)))
    buffers = [bytes(range(100)), bytes(range(100, 200))]
    places = region.reserve([len(buffer) for buffer in buffers])
    region.write(places, [[buffer] for buffer in buffers], pause=pause)
    assert [bytes(view) for view in region.views(places)] == buffers
    assert slept == [0] * pauses


def test_a_block_is_given_back_when_the_last_view_of_it_is_gone(region):
    buffers = [b"a" * 100, b"b" * 100]
    places = region.reserve([len(buffer) for buffer in buffers])
    region.write(places, [[buffer] for buffer in buffers], pause=False)
    first, second = region.views(places)
    nested = memoryview(second)[10:20]
    assert bytes(first) == buffers[0]
    del first, second
    gc.collect()
    assert not region.given_back
    assert bytes(nested) == b"b" * 10
    del nested
    assert list(region.given_back) == [places[0][0]]


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 400), min_size=1, max_size=4))))
def test_blocks_in_use_never_overlap(steps):
    region = Region(memoryview(bytearray(1000)))
    held: list[list[tuple[int, int]]] = []
    for frees, sizes in steps:
        if frees and held:
            region.free([held.pop(0)[0][0]])
        places = region.reserve(sizes)
        if places:
            held.append(places)
        taken = sorted(place for block in held for place in block)
        for (start, size), (following, _) in itertools.pairwise(taken):
            assert start + size <= following
        assert all(start + size <= 1000 for start, size in taken)


def test_a_list_of_other_things_is_no_stack():
    np = pytest.importorskip("numpy")
    items = [np.zeros(3), np.zeros(3)]
    assert type(stacked(items, [(0, 24)])) is list
    assert type(stacked(items, [(0, 24), (64, 24)])) is list
    assert type(stacked([], [])) is list
    assert type(stacked(items, [(0, 24), (24, 24)])) is Stacked
    for contents in ([], [1, 2], [np.zeros((0, 2))], items, [np.zeros((2, 2)).T]):
        np.testing.assert_array_equal(np.asarray(Stacked(contents)), np.asarray(contents))
    assert pickle.loads(pickle.dumps(Stacked([1]))) == [1]


@pytest.mark.parametrize("size", [0, 2**12, 2**20])
def test_nobody_can_take_the_memory_from_under_the_other_end(size):
    fd = new_memory(2**16)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    finally:
        os.close(fd)
