"""Remote replicas at work, and peers that know the token and then break the protocol."""

import errno
import struct
from contextlib import asynccontextmanager

import anyio
import pytest

from handlers import double
from replicas.remote_servers import listening, served
from replicas.test_remote_handshake import closed, ended, failure_of, lying
from serving.scenes import deployed, never
from shoal.core.addresses import model_server_address
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.definition import Definition
from shoal.replicas.code.instance import Instance
from shoal.replicas.process.wire.connection import FrameConnection
from shoal.replicas.process.wire.frames import FrameKind, encoded
from shoal.replicas.process.wire.messages import packed, unpickled
from shoal.replicas.process.wire.start import sendable
from shoal.replicas.remote import handshake, replica
from shoal.replicas.remote.sockets import connect
from shoal.serving.backend_options import MOST_REMOTE
from shoal.serving.controller.controller import Controller
from shoal.serving.model_server import ingress
from shoal.testing import check_replica
from shoal.testing.replicas.stage import Played
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

HEADER = struct.Struct("<BB?xIQQ")


def calls(*items):
    """The content of a message with calls, as an ingress sends it."""
    return "__call__", [*items], None


def frame(kind, id_, content):
    return b"".join(encoded(kind, id_, packed(content).parts))


async def next_frame(sock):
    """Returns the kind and the content of the next frame that is no ping."""
    while True:
        kind, _, _, _, _, size = HEADER.unpack(await handshake.receive(sock, HEADER.size))
        body = await handshake.receive(sock, size)
        if kind != FrameKind.PING:
            return kind, unpickled(body) if body else None


@asynccontextmanager
async def lying_ingress(tmp_path):
    """Yields a socket that is an ingress of a model server, and a handle over there."""
    async with Controller() as controller:
        handle = await deployed(controller, "model", double)
        async with listening(controller, f"unix:{tmp_path}/a") as (_, address):
            with await connect(model_server_address("", address), None) as sock:
                with anyio.fail_after(HANG_S):
                    await handshake.send_all(sock, frame(FrameKind.START, 1, ("model", "m#0")))
                    assert (await next_frame(sock))[0] == FrameKind.RESULT
                    yield sock, handle


async def test_a_caller_that_leaves_a_call_that_was_never_made_harms_no_other_caller(tmp_path):
    async with lying_ingress(tmp_path) as (sock, handle):
        # Both are read before the calls begin.
        leaves = frame(FrameKind.RUN, 2, calls(1)) + frame(FrameKind.CANCEL, 2, 5)
        await handshake.send_all(sock, leaves)
        kind, error = await next_frame(sock)
        assert kind == FrameKind.ERROR
        assert isinstance(error.as_exception(""), IndexError)
        assert await handle.call(4) == 8


async def test_a_message_of_more_calls_than_an_ingress_sends_fails_alone(tmp_path):
    async with lying_ingress(tmp_path) as (sock, handle):
        await handshake.send_all(sock, frame(FrameKind.RUN, 2, calls(*range(MOST_REMOTE))))
        assert (await next_frame(sock)) == (FrameKind.RESULT, [2 * n for n in range(MOST_REMOTE)])
        await handshake.send_all(sock, frame(FrameKind.RUN, 3, calls(*range(MOST_REMOTE + 1))))
        kind, error = await next_frame(sock)
        assert kind == FrameKind.ERROR
        assert "65 calls, more than 64" in str(error.as_exception(""))
        assert await handle.call(4) == 8


# The pickle of this frame is in a buffer, as if it were in shared memory.
SHARED = HEADER.pack(FrameKind.RESULT, 0, True, 1, 1, 0) + struct.pack("<QQ", 2**64 - 1, 1) + b"x"


async def test_a_frame_without_a_pickle_of_its_own_is_invalid(tmp_path):
    async def lie(sock):
        await handshake.send_all(sock, SHARED)
        await closed(sock)

    async with lying(tmp_path, lie) as lost:
        assert "a frame refers to memory that is not shared" in await failure_of(lost)


async def answer_start(sock, *frames):
    """Answers the first frame with some others, then with a description."""
    description = packed(sendable(Instance(Definition(double)).description))
    *_, id_, size = HEADER.unpack(await handshake.receive(sock, HEADER.size))
    await handshake.receive(sock, size)
    answer = encoded(FrameKind.RESULT, id_, description.parts)
    await handshake.send_all(sock, b"".join([*frames, *answer]))


async def test_a_model_server_that_shuts_down_before_it_answers_is_left_at_once(tmp_path):
    # As one whose shutdown begins during the handshake, or while it loads the model.
    async def lie(sock):
        await answer_start(sock, b"".join(encoded(FrameKind.DRAIN, 0)))
        await closed(sock)

    async with lying(tmp_path, lie) as lost:
        played = await ended(lost)
    assert str(played.error).endswith("it is shutting down")


@pytest.mark.parametrize("end", [["stop"], ["kill", "of the test"]], ids=["stop", "kill"])
async def test_a_replica_that_is_ended_while_it_connects_is_not_started(tmp_path, monkeypatch, end):
    async def connecting(*args):
        verb, *reason = end
        getattr(lost, verb)(*reason)
        return await connect(*args)

    monkeypatch.setattr(replica, "connect", connecting)
    monkeypatch.setattr(replica, "keep_alive", never)  # it would end the replica later
    async with lying(tmp_path, closed) as lost:  # which describes nothing
        played = await ended(lost)
    assert isinstance(played.error, ReplicaNotStarted)


class Unreachable:
    """A socket whose other end vanishes, where a real one would have been closed."""

    def __init__(self, sock):
        self._socket = sock

    def __getattr__(self, name):
        return getattr(self._socket, name)

    def recv_into(self, space):
        if count := self._socket.recv_into(space):
            return count
        raise OSError(errno.ETIMEDOUT, "Connection timed out")


async def test_the_death_of_a_model_server_that_can_not_be_reached_says_so(tmp_path, monkeypatch):
    async def lie(sock):
        await answer_start(sock)
        await handshake.receive(sock, HEADER.size)  # of a ping

    async def unreachable(*args):
        return Unreachable(await connect(*args))

    monkeypatch.setattr(replica, "connect", unreachable)
    async with lying(tmp_path, lie) as lost:
        played = await ended(lost)
    assert played.description is not None
    assert str(played.error).endswith("Connection timed out")


@pytest.mark.parametrize("why", [None, "it has no replica"])
async def test_a_drain_ends_an_idle_replica_at_once(tmp_path, monkeypatch, why):
    monkeypatch.setattr(replica, "keep_alive", never)  # it would end the replica later

    async def lie(sock):
        await answer_start(sock)
        parts = () if why is None else packed(why).parts
        await handshake.send_all(sock, b"".join(encoded(FrameKind.DRAIN, 0, parts)))
        assert await closed(sock)  # by the replica

    async with lying(tmp_path, lie) as drained:
        played = await ended(drained)
    assert played.description is not None
    assert str(played.error).endswith(why or "it is shutting down")
    assert drained.is_leaving is (why is None)


async def test_a_replica_that_drains_refuses_work_and_finishes_what_it_has(tmp_path):
    refused = anyio.Event()

    async def lie(sock):
        await answer_start(sock)
        assert (await next_frame(sock))[0] == FrameKind.RUN
        await handshake.send_all(sock, b"".join(encoded(FrameKind.DRAIN, 0)))
        await refused.wait()
        await handshake.send_all(sock, frame(FrameKind.RESULT, 2, [7]))
        await closed(sock)

    async def call():
        assert await drained.run("__call__", [1]) == [7]

    async with lying(tmp_path, lie) as drained, anyio.create_task_group() as tasks:
        played = Played(drained)
        tasks.start_soon(played.serve)
        with anyio.fail_after(HANG_S):
            await played.ready.wait()
            tasks.start_soon(call)
            while drained.takes_work:
                await anyio.lowlevel.checkpoint()
            with pytest.raises(ReplicaDied, match="takes no more work"):
                await drained.run("__call__", [2])
            refused.set()
            await played.ended.wait()
    assert str(played.error).endswith("it is shutting down")


async def test_an_ingress_that_can_not_be_reached_is_logged_with_the_reason(
    tmp_path, monkeypatch, caplog
):
    def connection(sock, *others):
        return FrameConnection(Unreachable(sock), *others)

    monkeypatch.setattr(ingress, "FrameConnection", connection)
    async with lying_ingress(tmp_path) as (sock, _):
        sock.close()
        with anyio.fail_after(HANG_S):
            while "is closed: Connection timed out" not in caplog.text:
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_remote_replicas_keep_the_promises(kind, tmp_path):
    await check_replica(served(tmp_path), kinds=[kind], own_batches=True)
