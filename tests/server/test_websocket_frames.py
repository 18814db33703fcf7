"""The frames of WebSockets: of all sizes and forms, however they are cut into pieces."""

import pytest
from test_websocket_limits import Http1Peer, talking
from wsproto.events import Ping, Pong, TextMessage

SIZES = [0, 1, 3, 4, 125, 126, 127, 1000, 2**16 - 1, 2**16, 2**16 + 5]


def framed(payload, opcode=1, fin=True, mask=b"\x25\x71\x0c\xd3"):
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    else:
        length = (
            b"\xfe" + size.to_bytes(2, "big") if size < 2**16 else b"\xff" + size.to_bytes(8, "big")
        )
    masked = bytes(each ^ mask[at % 4] for at, each in enumerate(payload))
    return bytes([fin << 7 | opcode]) + length + mask + masked


@pytest.mark.real_time
async def test_messages_of_all_sizes_come_back():
    async with talking(Http1Peer) as peer:
        for size in SIZES:
            sent = "é" * (size // 2) + "x" * (size % 2)
            await peer.send(TextMessage(sent))
            parts = [await peer.next_event()]
            while not parts[-1].message_finished:
                parts.append(await peer.next_event())
            assert "".join(part.data for part in parts) == sent


@pytest.mark.real_time
@pytest.mark.parametrize("piece", [1, 2, 7, 50, 10**6])
async def test_messages_of_all_forms_come_in_their_order(piece):
    """Cut into any pieces."""
    async with talking(Http1Peer) as peer:
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
