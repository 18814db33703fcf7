"""What crosses to a process: frames, batches as data, shared memory, connections, and TLS."""

import asyncio
import gc
import itertools
import os
import pickle
import selectors
import socket
import weakref
from collections.abc import Generator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates import new_certificate
from replicas.playing import made, playing
from shoal.core.forming.call_options import NO_CALL_OPTIONS
from shoal.core.request import Batch, DispatchReason
from shoal.replicas.code.endpoint_call import CallOut
from shoal.replicas.process.child.calls import Stacked, stacked
from shoal.replicas.process.wire import shared_memory
from shoal.replicas.process.wire.batch import BatchAsData, batch_as_data
from shoal.replicas.process.wire.connection import FrameConnection
from shoal.replicas.process.wire.frames import PROTOCOL, FrameKind, FrameReader, encoded, rest_of
from shoal.replicas.process.wire.messages import MessageCodec, packed, places_of, unpickled
from shoal.replicas.process.wire.shared_memory import Region, new_memory
from shoal.replicas.remote.tls import ServerCertificate, TlsSocket, client_context
from shoal.testing.policies import make_request
from time_limits import HANG_S


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


SHARED = {"context": "python"}


def unusual_requests():
    requests = [
        make_request("plain"),
        make_request("late", deadline=12.0, metadata=SHARED),
        make_request("own", metadata={"user": "ann"}, priority=2, cost=3),
        make_request("none", arrived_at=4.0),
        make_request("model", metadata=SHARED),
    ]
    requests[2].options.asked_priority = 2
    requests[3].options = None
    requests[4].options.model = "small"
    return requests


def sent(batch, now, here):
    [pickle] = packed(batch_as_data(batch, now)).parts
    return BatchAsData(*unpickled(pickle)).as_batch(here).requests


def test_a_worker_gets_the_options_of_each_request_on_its_own_clock():
    received = sent(Batch(1, DispatchReason.FULL, unusual_requests()), 5.0, 105.0)
    assert [request.item for request in received] == ["plain", "late", "own", "none", "model"]
    assert [request.deadline for request in received] == [None, 112.0, None, None, None]
    assert [request.priority for request in received] == [1, 1, 2, 1, 1]
    assert [request.cost for request in received] == [1, 1, 3, 1, 1]
    assert [request.arrived_at for request in received] == [100, 100, 100, 104, 100]
    assert [request.metadata for request in received] == [
        *({}, SHARED, {"user": "ann"}, {}, {**SHARED, "model": "small"})
    ]


def without_options():
    requests = [make_request("a"), make_request("b")]
    for request in requests:
        request.options = None
    return Batch(1, DispatchReason.FULL, requests)


def test_requests_without_options_have_none_in_a_worker():
    assert [each.options for each in sent(without_options(), 0, 0)] == [None] * 2


@pytest.mark.parametrize(
    "one", [make_request("a", metadata=SHARED), make_request("a", deadline=1.5)]
)
def test_requests_with_equal_options_keep_them(one):
    requests = [make_request(n) for n in range(3)]
    for request in requests:
        request.options = one.options
    for each in sent(Batch(1, DispatchReason.FULL, requests), 0, 0):
        assert (each.deadline, each.metadata) == (one.deadline, one.metadata)


def test_a_model_server_gets_what_callers_asked_for():
    requests = unusual_requests()
    [pickle] = packed(batch_as_data(Batch(1, DispatchReason.FULL, requests), 5.0)).parts
    options = BatchAsData(*unpickled(pickle)).call_options(levels=3)
    assert [one.timeout_s for one in options] == [None, 7, None, None, None]
    assert [one.priority for one in options] == [None, None, 2, None, None]
    assert [one.metadata for one in options] == [{}, SHARED, {"user": "ann"}, {}, SHARED]
    [_, _, named, *_] = BatchAsData(*unpickled(pickle)).call_options(levels=1)
    assert named.priority == 1


def test_a_model_server_gets_no_options_where_no_request_has_any():
    data = BatchAsData(*batch_as_data(without_options(), 0))
    assert data.call_options(levels=1) == [NO_CALL_OPTIONS] * 2


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


@pytest.fixture
def ends() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.real_time
async def test_a_closed_connection_frees_its_buffer_at_once(ends):
    reader = FrameReader()
    alive = weakref.ref(reader)
    gc.disable()
    try:
        connection = FrameConnection(ends[0], reader)
        ends[1].sendall(bytes(23))
        connection.read_available(lambda _: None)
        connection.close()
        del reader, connection
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.real_time
@pytest.mark.parametrize("soon", [0, 1], ids=["at once", "some soon"])
async def test_a_full_socket_gets_all_frames_in_their_order_while_others_run(ends, soon):
    connection, reader = FrameConnection(ends[0]), FrameConnection(ends[1])
    sizes = [200_000 if nth % 10 == 0 else 10 for nth in range(40)]
    got = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.write)
        for nth, size in enumerate(sizes):
            send = connection.send_soon if soon and nth % 3 == 1 else connection.send
            send(encoded(FrameKind.RESULT, nth, [bytes(size)]))
        with anyio.fail_after(HANG_S):
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            unsent = connection.unsent_bytes
            assert 0 < unsent < sum(sizes)
            while len(got) < len(sizes):
                await reader.read_once(lambda frame: got.append((frame.id, len(frame.body))))
        assert got == [*enumerate(sizes)]
        assert connection.unsent_bytes == 0
        tasks.cancel_scope.cancel()
    for one in (connection, reader):
        one.close()


@pytest.mark.real_time
async def test_a_closed_connection_leaves_its_number_to_the_next_socket(ends):
    ours, theirs = ends
    number = ours.fileno()
    connection = FrameConnection(ours)
    if not connection.begin_reading(lambda _: None, lambda: None):
        pytest.skip("only tasks can read in this loop")
    connection.close()
    copied = os.dup2(theirs.fileno(), number)
    try:
        with anyio.fail_after(HANG_S):  # it is readable, as its other end is closed
            await anyio.wait_readable(copied)
    finally:
        os.close(copied)


class StrictSelector(selectors.DefaultSelector):
    """A selector that notes which files were closed while it watched them."""

    def __init__(self) -> None:
        super().__init__()
        self.closed_early: list[int] = []

    def unregister(self, fileobj):
        self.note(self.get_key(fileobj).fd)
        return super().unregister(fileobj)

    def close(self):
        for fd in self.get_map():
            self.note(fd)
        super().close()

    def note(self, fd):
        try:
            os.fstat(fd)
        except OSError:
            self.closed_early.append(fd)


@pytest.mark.real_time
@pytest.mark.parametrize("ending", ["stop", "die", "cancel every task"])
def test_no_socket_is_closed_while_the_loop_watches_it(ending):
    selector = StrictSelector()

    async def main() -> None:
        async with playing(made(), stop=ending == "stop") as played:
            await played.run("pid", [0])
            if ending == "die":
                with pytest.raises(Exception, match="exited with code 7"):
                    await played.run("exit", [7])
            elif ending == "cancel every task":
                for task in asyncio.all_tasks():
                    task.cancel()
                await anyio.sleep_forever()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        try:
            runner.run(main())
        except asyncio.CancelledError:
            assert ending == "cancel every task"
    assert selector.closed_early == []


@pytest.fixture
async def pair(tmp_path: Any) -> Any:
    """Both ends of a connection after its handshake: the server's, and the client's."""
    certificate = ServerCertificate(**new_certificate(tmp_path))
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    server = TlsSocket(ends[0], certificate.context, server=True)
    client = TlsSocket(ends[1], client_context())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.shake_hands)
        tasks.start_soon(client.shake_hands)
    yield server, client
    server.close()
    client.close()


@pytest.mark.real_time
async def test_a_thread_may_read_a_blocking_one_while_another_writes(pair):
    server, client = pair
    server.setblocking(True)
    client.setblocking(True)
    size = 20_000_000
    received = [bytearray(), bytearray()]

    def read(sock: TlsSocket, into: bytearray) -> None:
        space = memoryview(bytearray(2**16))
        while len(into) < size:
            into += space[: sock.recv_into(space)]

    def write(sock: TlsSocket, byte: bytes) -> None:
        rest = memoryview(byte * size)
        while rest:
            rest = rest[sock.sendmsg([rest]) :]

    async with anyio.create_task_group() as threads:
        for sock, into, byte in ((client, received[0], b"c"), (server, received[1], b"s")):
            threads.start_soon(anyio.to_thread.run_sync, read, sock, into)
            threads.start_soon(anyio.to_thread.run_sync, write, sock, byte)
    assert received == [b"s" * size, b"c" * size]


async def test_one_that_does_not_block_raises_where_it_would(pair):
    server, client = pair
    space = memoryview(bytearray(10))
    with pytest.raises(BlockingIOError):
        client.recv_into(space)
    assert server.sendmsg([b"hello"]) == 5
    await anyio.wait_readable(client)
    assert bytes(space[: client.recv_into(space)]) == b"hello"
