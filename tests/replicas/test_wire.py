"""Frames are what they were, in whatever pieces they come."""

import gc
import pickle
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.replicas.code.endpoint_call import CallOut
from shoal.replicas.process.wire.frames import (
    PROTOCOL,
    FrameKind,
    FrameReader,
    encoded,
    rest_of,
)
from shoal.replicas.process.wire.messages import MessageCodec, packed, places_of
from shoal.replicas.process.wire.shared_memory import Region


def joined(parts) -> bytes:
    return b"".join(bytes(part) for part in parts)


def read_in_pieces(data: bytes, pieces: list[int]) -> list:
    reader = FrameReader()
    frames = []
    while data:
        space = reader.space()
        count = min(pieces.pop() if pieces else len(data), len(space), len(data))
        space[:count], data = data[:count], data[count:]
        reader.received(count)
        frames += iter(reader.next, None)
    return frames


FRAMES = st.tuples(
    st.sampled_from(FrameKind),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=200) | st.just(b"long" * 50_000),
    st.lists(st.binary(max_size=50) | st.just(b"buffer" * 30_000), max_size=3),
    st.lists(st.integers(0, 2**60), max_size=3),
)


@given(st.lists(FRAMES, max_size=4), st.lists(st.integers(1, 100_000)))
def test_frames_come_as_they_went(frames, pieces):
    data = b"".join(
        joined(encoded(kind, id_, [body], buffers, (), given_back))
        for kind, id_, body, buffers, given_back in frames
    )
    got = [
        (f.kind, f.id, bytes(f.body), [bytes(b) for b in f.buffers], list(f.given_back))
        for f in read_in_pieces(data, pieces)
    ]
    assert got == frames


@given(st.lists(st.binary(max_size=5)), st.integers(0, 30))
def test_what_is_left_of_a_frame_is_the_rest(parts, sent):
    assert joined(rest_of(parts, sent)) == joined(parts)[sent:]


def test_what_is_small_goes_into_the_pickle_and_what_is_large_beside_it():
    np = pytest.importorskip("numpy")
    assert packed([np.zeros(10), "text"]).size == 0
    message = packed([np.zeros(10), np.zeros(10_000)])
    assert message.size == 80_000
    assert len(joined(message.parts)) < 1000


@pytest.mark.parametrize("large", [bytes(70_000), bytearray(70_000)])
def test_large_bytes_are_not_copied_into_the_pickle(large):
    message = packed({"items": [large, b"small", large]})
    assert [part for part in message.parts if part is large] == [large]  # the second is the first
    assert message.shared == [len(joined(message.parts))]
    assert packed(large[:60_000]).shared == []


SIZES = st.integers(0, 100) | st.integers(60_000, 70_000) | st.just(200_000)
CONTENT = st.recursive(
    st.builds(lambda size: b"b" * size, SIZES)
    | st.builds(lambda size: bytearray(b"a" * size), SIZES)
    | st.builds(lambda size: "t" * size, SIZES)
    | st.builds(lambda size: pickle.PickleBuffer(bytearray(b"p" * size)), SIZES)
    | st.integers(),
    lambda children: st.lists(children, max_size=4) | st.tuples(children, children),
    max_leaves=6,
)


def plain(content):
    """The content with memory of all kinds as bytes, to compare it."""
    if isinstance(content, (list, tuple)):
        return [plain(one) for one in content]
    return bytes(content) if isinstance(content, (pickle.PickleBuffer, memoryview)) else content


@pytest.mark.parametrize("room", [0, 100_000, 2**21])
@settings(max_examples=40)
@given(contents=st.lists(CONTENT, max_size=4), copies=st.booleans())
def test_content_is_what_it_was_wherever_it_lay(room, contents, copies):
    region = Region(memoryview(bytearray(room)))
    sender, receiver = MessageCodec(outgoing=region), MessageCodec(incoming=region)
    for content in contents:
        message = packed(content)
        is_large = len(message.shared) > len(message.buffers)
        if sender.reserve(message):
            sender.write(message)
            assert not message.buffers
            assert bool(message.parts) is not is_large  # nothing is sent that was copied
        [frame] = read_in_pieces(joined(sender.frame(FrameKind.RUN, 1, message)), [])
        if copies and places_of(frame):
            receiver.copied(frame, pause=False)
            assert not places_of(frame)
        assert plain(receiver.opened_here(frame)) == plain(content)
        gc.collect()  # hypothesis may hold the last example's frames
        [back] = read_in_pieces(joined(receiver.frame(FrameKind.RESULT, 1)), [])
        sender.take_back(back)
        assert region.used == 0


def test_what_is_sent_has_a_number_that_changes_with_it():
    """Raise PROTOCOL when you change this test: a worker may have another version of Shoal."""
    assert PROTOCOL == 11
    assert sorted(FrameKind) == [*range(1, 20)]
    assert [one.name for one in fields(CallOut)] == [
        *("endpoint", "args", "kwargs", "stream", "options", "trace")
    ]
