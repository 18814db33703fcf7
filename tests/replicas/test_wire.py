"""Frames are what they were, in whatever pieces they come."""

from __future__ import annotations

import socket
import threading
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.replicas.code.endpoint_call import CallOut
from shoal.replicas.process.wire.frames import (
    PROTOCOL,
    FrameReader,
    Kind,
    encoded,
    receive,
    rest_of,
    send,
)
from shoal.replicas.process.wire.messages import MessageCodec, packed, places_of


def joined(parts) -> bytes:
    return b"".join(bytes(part) for part in parts)


def read_in_pieces(data: bytes, pieces: list[int]) -> list:
    reader = FrameReader()
    frames = []
    while data:
        space = reader.space()
        assert len(space) > 0
        count = min(len(space), len(data), pieces.pop() if pieces else len(data))
        space[:count] = data[:count]
        data = data[count:]
        reader.received(count)
        while (frame := reader.next()) is not None:
            frames.append(frame)
    return frames


FRAMES = st.tuples(
    st.sampled_from(Kind),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=200) | st.just(b"long" * 50_000),
    st.lists(st.binary(max_size=50) | st.just(b"buffer" * 30_000), max_size=3),
    st.lists(st.integers(0, 2**60), max_size=3),
)


@given(st.lists(FRAMES, max_size=4), st.lists(st.integers(1, 100_000)))
def test_frames_come_as_they_went(frames, pieces):
    data = b"".join(
        joined(encoded(kind, id_, body, buffers, (), given_back))
        for kind, id_, body, buffers, given_back in frames
    )
    got = [
        (f.kind, f.id, bytes(f.body), [bytes(b) for b in f.buffers], list(f.given_back))
        for f in read_in_pieces(data, pieces)
    ]
    assert got == frames


def test_places_in_shared_memory_travel_in_the_place_of_buffers():
    [frame] = read_in_pieces(joined(encoded(Kind.RUN, 1, b"x", (), [(64, 10), (128, 20)])), [])
    assert places_of(frame) == [(64, 10), (128, 20)]


@given(st.lists(st.binary(max_size=5)), st.integers(0, 30))
def test_what_is_left_of_a_frame_is_the_rest(parts, sent):
    assert joined(rest_of(parts, sent)) == joined(parts)[sent:]


def test_what_is_small_goes_into_the_pickle_and_what_is_large_beside_it():
    np = pytest.importorskip("numpy")
    assert packed([np.zeros(10), "text"]).size == 0
    message = packed([np.zeros(10), np.zeros(10_000)])
    assert message.size == 80_000
    assert len(message.body) < 1000


def test_frames_cross_a_blocking_socket():
    ours, theirs = socket.socketpair()
    frames = [
        MessageCodec().frame(Kind.RUN, nth, packed("x" * nth)) for nth in (1, 100_000, 1_000_000)
    ]
    with ours, theirs:
        sender = threading.Thread(target=lambda: [send(ours, list(f)) for f in frames])
        sender.start()
        reader = FrameReader()
        got = [receive(theirs, reader) for _ in frames]
        sender.join()
        ours.close()
        assert receive(theirs, reader) is None
    assert [MessageCodec().opened_here(frame) for frame in got] == [
        "x" * n for n in (1, 100_000, 10**6)
    ]


def test_what_is_sent_has_a_number_that_changes_with_it():
    """Raise PROTOCOL when you change this test: a worker may have another version of Shoal."""
    assert PROTOCOL == 4
    assert sorted(Kind) == [*range(1, 15), 18]
    assert [one.name for one in fields(CallOut)] == [
        *("endpoint", "args", "kwargs", "stream", "options", "trace")
    ]
