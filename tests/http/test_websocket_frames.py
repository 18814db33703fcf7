"""The frames that are read and written without wsproto: as it would, and only where it would."""

from __future__ import annotations

import random
from operator import attrgetter

import pytest
from echo_app import EchoApp
from live_server import live
from test_websocket_limits import Http1Peer
from wsproto.connection import Connection, ConnectionType
from wsproto.events import Ping, Pong, TextMessage
from wsproto.frame_protocol import FrameProtocol

from shoal.http.server.streams import websocket
from shoal.http.server.streams.frames import is_between_messages, message_at, text_frames

pytestmark = pytest.mark.anyio

SIZES = [0, 1, 3, 4, 125, 126, 127, 1000, 2**16 - 1, 2**16, 2**16 + 5]
LONGEST = 2**17


def framed(payload, opcode=1, fin=True, mask=b"\x25\x71\x0c\xd3"):
    """A client's frame."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    else:
        length = (
            b"\xfe" + size.to_bytes(2, "big") if size < 2**16 else b"\xff" + size.to_bytes(8, "big")
        )
    masked = bytes(each ^ mask[at % 4] for at, each in enumerate(payload))
    return bytes([fin << 7 | opcode]) + length + mask + masked


def read_by_wsproto(data):
    """The messages that wsproto reads, each whole, and whether it accepts all of it."""
    server = Connection(ConnectionType.SERVER)
    server.receive_data(data)
    events = list(server.events())
    return events, is_between_messages(server)


@pytest.mark.parametrize("size", [size for size in SIZES if size < 2**16])
@pytest.mark.parametrize("opcode", [1, 2])
def test_a_message_in_one_frame_is_read(size, opcode):
    payload = "é".encode() * (size // 2) + b"x" * (size % 2)
    frame = framed(payload, opcode)
    message, end = message_at(b"??" + frame + b"more", 2, LONGEST)
    assert end == 2 + len(frame)
    assert message["type"] == "websocket.receive"
    text, data = (payload.decode(), None) if opcode == 1 else (None, payload)
    assert (message["text"], message["bytes"]) == (text, data)


@pytest.mark.parametrize("size", SIZES)
def test_a_text_message_is_written_as_wsproto_does(size):
    text = "x" * size
    assert text_frames([text.encode()] * 2) == bytes(
        b"".join(FrameProtocol(client=False, extensions=[]).send_data(text) for _ in range(2))
    )


@pytest.mark.parametrize(
    "data",
    [
        framed(b"x", fin=False),
        framed(b"x", opcode=0),
        framed(b"x", opcode=9),
        framed(b"x", opcode=8),
        framed(b"x", opcode=3),
        b"\xc1" + framed(b"x")[1:],  # compressed
        b"\x81\x01x" + bytes(8),  # not masked
        b"\x81\x7e\x00\x7e" + bytes(200),  # not masked, and longer
        b"\x81\xfe\x00\x01" + bytes(8),  # a length in more bytes than it needs
        b"\x81\xff" + bytes(7) + b"\x01" + bytes(8),
        framed(b"\xff"),  # not UTF-8
        framed(b"x" * (LONGEST + 1)),
    ],
)
def test_anything_else_is_left_to_wsproto(data):
    assert message_at(data, 0, LONGEST) is None


def test_a_frame_is_left_until_all_of_it_is_there():
    for payload in (b"", b"x", b"x" * 200):
        frame = framed(payload)
        assert [message_at(frame[:size], 0, LONGEST) for size in range(len(frame))] == [None] * len(
            frame
        )
        assert message_at(frame, 0, LONGEST) is not None
    assert message_at(framed(b"x" * 200), 0, 199) is None


def test_what_is_read_is_what_wsproto_reads():
    """Of frames with any of their bits changed."""
    rng = random.Random(7)
    read = 0
    for _ in range(3000):
        frame = bytearray(framed("".join(rng.choices("abé", k=rng.randrange(140))).encode()))
        for _ in range(rng.randrange(3)):
            frame[rng.randrange(min(8, len(frame)))] ^= 1 << rng.randrange(8)
        found = message_at(bytes(frame), 0, LONGEST)
        if found is None:
            continue
        read += 1
        message, end = found
        (event,), is_between = read_by_wsproto(bytes(frame[:end]))
        assert is_between
        assert event.message_finished
        assert event.data == (message["bytes"] if message["text"] is None else message["text"])
    assert read > 300


@pytest.mark.parametrize(
    ("data", "is_between"),
    [
        (b"", True),
        (framed(b"x"), True),
        (framed(b"x", fin=False), False),
        (framed(b"x", fin=False) + framed(b"", opcode=9), False),
        (framed(b"x", fin=False) + framed(b"y", opcode=0), True),
        (framed(b"x")[:1], False),
        (framed(b"x")[:3], False),
        (framed(b"x")[:-1], False),
        (framed(b"xy") + framed(b"z")[:5], False),
        (framed(b"\x03\xe8", opcode=8), False),
    ],
)
def test_where_wsproto_holds_a_part_of_a_message_it_reads_the_rest(data, is_between):
    assert read_by_wsproto(data)[1] is is_between


@pytest.mark.parametrize(
    "where",
    [
        "_proto",
        "_proto._frame_decoder",
        "_proto._frame_decoder.buffer",
        "_proto._frame_decoder.buffer.buffer",
        "_proto._frame_decoder.header",
        "_proto._message_decoder",
        "_proto._message_decoder.opcode",
    ],
)
def test_a_wsproto_that_stores_its_state_elsewhere_reads_all_messages(where):
    server = Connection(ConnectionType.SERVER)
    assert is_between_messages(server)
    holder, _, name = where.rpartition(".")
    delattr(attrgetter(holder)(server) if holder else server, name)
    assert not is_between_messages(server)


@pytest.mark.real_time
@pytest.mark.parametrize("piece", [1, 2, 7, 50, 10**6])
async def test_messages_of_all_forms_come_in_their_order(piece, monkeypatch):
    """Cut into any pieces."""
    read = []

    def noted(data, at, longest):
        found = message_at(data, at, longest)
        read.append(found is not None)
        return found

    monkeypatch.setattr(websocket, "message_at", noted)
    async with live(EchoApp()) as server:
        peer = await Http1Peer.open(server)
        async with peer.stream:
            sent, expected = b"", []
            for number in range(8):
                sent += framed(b"a%d" % number) + framed(b"p%d" % number, opcode=9)
                sent += framed(b"b", fin=False) + framed(b"in", opcode=9)
                sent += framed(b"%d" % number, opcode=0) + framed(b"c%d" % number)
                expected += [f"a{number}", f"b{number}", f"c{number}"]
            for at in range(0, len(sent), piece):
                await peer.pass_on(sent[at : at + piece])
            answers, pongs = [], []
            while len(answers) < len(expected) or len(pongs) < 16:
                event = await peer.next_event()
                if isinstance(event, Pong):
                    pongs.append(bytes(event.payload))
                elif not isinstance(event, Ping):
                    answers.append(event.data)
            assert answers == expected
            assert pongs == [each for n in range(8) for each in (b"p%d" % n, b"in")]
            await peer.send(TextMessage("é" * 1000))
            assert (await peer.next_event()).data == "é" * 1000
            await peer.pass_on(framed(b"\xff"))
            assert (await peer.next_event()).code == 1007
    if piece > 2:
        assert any(read)
