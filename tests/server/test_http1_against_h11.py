"""Requests are read as h11 reads them, or they are refused.

What two parsers read differently is how requests are smuggled: a proxy sees one request, the server
two. So what h11 refuses is refused, but for the few differences of `LAXER`, which move no boundary.
What is well-formed is read.
"""

import random
import re
from dataclasses import dataclass, field

import h11
import pytest
from server_in_memory import Wire, serving

from hostile.http1_corpus import Corpus
from shoal.server.http1.connection import Http1Connection
from shoal.testing import settle

pytestmark = pytest.mark.one_loop

COUNT = 1_500

# How the reading of what a client sent ends.
REFUSED, WAITS, CLOSED, SWITCHED = "refused", "waits", "closed", "switched"
LAXER = {
    "many zeros before a length, which are valid": rb"(?im)^content-length:[ \t]*0+\d",
    "many zeros before the size of a chunk, which are valid": rb"(?im)^0{2}[0-9a-f]*\r$",
    # RFC 9110, 6.5.1: trailers may be dropped, and are; the chunks alone frame the message.
    "a trailer that would frame a message": rb"(?is)0\r\n.*(content-length|transfer-encoding):",
    "the start of HTTP/2, with which the connection goes on": rb"\APRI \* HTTP/2\.0\r\n\r\n",
}


@dataclass
class Read:
    """A request as it was read; `begins` and `ends` are known of h11's."""

    method: str
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    is_whole: bool = False
    begins: int = 0
    ends: int = 0


@dataclass
class Outcome:
    """All requests that were read, how it ended, and how many bytes were left then."""

    requests: list[Read] = field(default_factory=list)
    end: str = WAITS
    left: int = 0


class Reading(Wire):
    """What is read of what one client sends, piece by piece, by a server in memory."""

    def __init__(self, server, pieces):
        super().__init__()
        self.peer = (f"client {id(self)}", 80)
        self.outcome = Outcome()
        self._pieces = iter(pieces)
        self._connection = Http1Connection(server.shared, self, lambda: None, self._switch)
        self._connection.start()

    end_sending = Wire.close

    def say_next(self):
        """Whether there was more to say."""
        piece = next(self._pieces, None)
        if piece is not None and self.is_open and self.outcome.end == WAITS:
            self._connection.data_received(piece)
        elif piece is not None and self.outcome.end == SWITCHED:
            self.outcome.left += len(piece)
        return piece is not None

    def end(self):
        if not self.is_open:
            status = re.findall(rb"HTTP/1\.1 (\d{3}) ", self.sent)[-1]
            assert status in {b"200", b"400", b"414", b"431", b"501"}
            self.outcome.end = CLOSED if status == b"200" else REFUSED
        self._connection.abort()
        return self.outcome

    def _switch(self, _shared, _transport, _released, received, parser):
        if parser is not None:
            line = parser.line
            read = Read(line.method, line.target, "1.1", parser.headers, is_whole=True)
            self.outcome.requests.append(read)
        self.outcome.end, self.outcome.left = SWITCHED, len(received)


async def read_by_shoal(all_sent, rng):
    """What is read of what each of many clients sends."""

    async def app(scope, receive, send):
        query = scope["query_string"]
        target = scope["raw_path"] + b"?" * bool(query) + query
        read = Read(scope["method"], target, scope["http_version"], scope["headers"])
        readings[scope["client"]].outcome.requests.append(read)
        while not read.is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            read.body += message["body"]
            read.is_whole = not message["more_body"]
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    async with serving(app) as server:
        made = [Reading(server, in_pieces(data, rng)) for data in all_sent]
        readings = {reading.peer: reading for reading in made}
        going_on = made
        while going_on:
            going_on = [reading for reading in going_on if reading.say_next()]
            await settle()
        outcomes = [reading.end() for reading in made]
        await settle()
        assert server.shared.running == 0
    return outcomes


def read_by_h11(data):
    outcome = Outcome()
    at = 0
    while outcome.end == WAITS and at < len(data):
        peer = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
        peer.receive_data(data[at:])
        read = None
        try:
            while (event := peer.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Request):
                    method = event.method.decode()
                    version = event.http_version.decode()
                    read = Read(method, event.target, version, list(event.headers), begins=at)
                    outcome.requests.append(read)
                elif isinstance(event, h11.Data):
                    read.body += event.data
                else:
                    read.is_whole = True
                    break
        except h11.RemoteProtocolError:
            outcome.end = REFUSED
            break
        if read is None or not read.is_whole:
            break
        at = read.ends = len(data) - len(peer.trailing_data[0])
        if peer.their_state is h11.MIGHT_SWITCH_PROTOCOL:
            peer.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
        if peer.their_state is h11.MUST_CLOSE:
            outcome.end = CLOSED
    outcome.left = len(data) - at
    return outcome


def head_as_served(read):
    """The head as the application has it: with the path and the host of a target that is a URL."""
    target, headers = read.target, read.headers
    found = re.fullmatch(rb"(?i)https?://([^/?#]*)([^#]*)", target)
    if found is not None and read.method != "CONNECT":
        headers = [(b"host", found[1]), *(header for header in headers if header[0] != b"host")]
        target = found[2] if found[2][:1] == b"/" else b"/" + found[2]
        if read.method == "OPTIONS" and not found[2]:
            target = b"*"
    # h11 writes the transfer coding in lower case.
    headers = [
        (name, value.lower() if name == b"transfer-encoding" else value) for name, value in headers
    ]
    return read.method, target.removesuffix(b"?"), read.version, headers


def first_difference(ours, theirs, size):
    """The number of the first request that is read otherwise than by h11; None if there is none.

    That it is refused is no difference.
    """
    for number, our in enumerate(ours.requests):
        if number == len(theirs.requests):
            return number
        their = theirs.requests[number]
        is_refused = ours.end == REFUSED and not our.is_whole
        is_same = is_refused or (our.is_whole, our.body) == (their.is_whole, their.body)
        if head_as_served(our) != head_as_served(their) or not is_same:
            return number
    count = len(ours.requests)
    if ours.end == SWITCHED and count:
        return None if size - theirs.requests[count - 1].ends == ours.left else count - 1
    is_same = (count, ours.end) == (len(theirs.requests), theirs.end)
    return None if is_same or ours.end == REFUSED else min(count, len(theirs.requests))


def in_pieces(data, rng):
    """What is sent, as it may arrive: mostly whole, or in two pieces, or byte by byte."""
    chance = rng.random()
    if chance < 0.02 and len(data) < 400:
        return [data[at : at + 1] for at in range(len(data))]
    at = rng.randrange(len(data) + 1) if chance < 0.3 else 0
    return [piece for piece in (data[:at], data[at:]) if piece]


async def test_what_is_read_is_read_as_by_h11():
    different, laxer = [], set()
    rng = random.Random(COUNT)
    all_sent = list(Corpus(rng).sent(COUNT))
    outcomes = await read_by_shoal(all_sent, rng)
    for data, ours in zip(all_sent, outcomes, strict=True):
        theirs = read_by_h11(data)
        number = first_difference(ours, theirs, len(data))
        if number is not None:
            begins = [read.begins for read in theirs.requests] + [len(data) - theirs.left]
            sent = data[begins[number] :]
            names = {name for name, form in LAXER.items() if re.search(form, sent)}
            laxer |= names
            if not names:
                different.append((sent, ours, theirs))
    assert different[:3] == []
    assert {each.end for each in outcomes} == {REFUSED, WAITS, CLOSED, SWITCHED}
    assert laxer == set(LAXER)


async def test_what_is_well_formed_is_not_refused():
    rng = random.Random(3)
    all_sent = list(Corpus(rng, is_odd=False).sent(500))
    for data, ours in zip(all_sent, await read_by_shoal(all_sent, rng), strict=True):
        theirs = read_by_h11(data)
        assert (ours.end, len(ours.requests)) == (theirs.end, len(theirs.requests)), data
        assert first_difference(ours, theirs, len(data)) is None
