"""Peers that know the token, or need none, and then break the protocol of the frames."""

import logging
import struct
from contextlib import asynccontextmanager

import anyio
import pytest

from replicas.remote_servers import listening
from shoal.core.addresses import model_server_address
from shoal.replicas.process.wire.frames import FrameKind, encoded
from shoal.replicas.process.wire.messages import packed, unpickled
from shoal.replicas.remote import handshake
from shoal.replicas.remote.sockets import connect
from shoal.serving.controller.controller import Controller
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

HEADER = struct.Struct("<BB?xIQQ")


async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


def calls(*items):
    """The content of a message with calls, as an ingress sends it."""
    return "__call__", [*items], None, None, None, [({}, {}, (), None)], None


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
        await controller.create_backend("model", double)
        await controller.create_endpoint("model", backend="model")
        async with listening(controller, f"unix:{tmp_path}/a") as (_, address):
            with await connect(model_server_address("", address), None) as sock:
                with anyio.fail_after(HANG_S):
                    await handshake.send_all(sock, frame(FrameKind.START, 1, ("model", "m#0")))
                    assert (await next_frame(sock))[0] == FrameKind.RESULT
                    yield sock, await controller.get_handle("model")


async def test_a_caller_that_leaves_a_call_that_was_never_made_harms_no_other_caller(tmp_path):
    async with lying_ingress(tmp_path) as (sock, handle):
        # Both are read before the calls begin.
        leaves = frame(FrameKind.RUN, 2, calls(1)) + frame(FrameKind.CANCEL, 2, 5)
        await handshake.send_all(sock, leaves)
        kind, error = await next_frame(sock)
        assert kind == FrameKind.ERROR
        assert isinstance(error.as_exception(""), IndexError)
        assert await handle.call(4) == 8
