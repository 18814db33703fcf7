"""What a connection leaves in memory once it has ended: nothing, without the garbage collector."""

import gc

import pytest
from echo_app import EchoApp
from live_server import live, read_until, request, until_quiet, upgrade

from shoal.server.http1.connection import Http1Connection
from shoal.server.streams.http1_websocket import WebSocketConnection
from shoal.server.streams.http2 import Http2Connection, Http2Stream
from shoal.server.streams.http2_stream import Http2Call
from shoal.server.streams.websocket import WebSocketCall
from shoal.server.transport import Transport

pytestmark = pytest.mark.real_time

EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
# GET http://localhost/, by HPACK's static table.
FIELDS = b"\x82\x86\x84\x41\x09localhost"
HEADERS = len(FIELDS).to_bytes(3, "big") + b"\x01\x05\x00\x00\x00\x01" + FIELDS
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + EMPTY_SETTINGS
INVALID_FRAME = b"\xff\xff\xff\xff"

# What the client says, and what it waits for before it leaves.
CLIENTS = {
    "a request": (request("/"), b"\r\n\r\n"),
    "an unfinished head": (request("/")[:-2], b""),
    "a bad request": (b"\x00\r\n\r\n", b"400"),
    "the preface of HTTP/2": (HTTP2, b"\x04"),
    "a request of HTTP/2": (HTTP2 + HEADERS, b"\x04"),
    "an invalid frame of HTTP/2": (HTTP2 + INVALID_FRAME * 4, b"\x04"),
    "a WebSocket": (upgrade(), b"101"),
    "a WebSocket that does not wait": (upgrade() + INVALID_FRAME * 4, b"\r\n\r\n"),
}
OF_CONNECTIONS = (
    *(Transport, Http1Connection, WebSocketConnection, Http2Connection, Http2Stream),
    *(Http2Call, WebSocketCall),
)


@pytest.mark.parametrize("said", CLIENTS)
async def test_a_connection_leaves_nothing_to_the_garbage_collector(said):
    data, awaited = CLIENTS[said]

    async def once():
        async with await server.connect() as client:
            await client.send_all(data)
            await read_until(client, awaited)
        await until_quiet()

    async with live(EchoApp()) as server:
        await once()
        gc.collect()
        before = kept()
        gc.disable()
        try:
            for _ in range(3):
                await once()
            assert kept() == before
        finally:
            gc.enable()


def kept():
    return [type(each).__qualname__ for each in gc.get_objects() if type(each) in OF_CONNECTIONS]
