"""Requests are read as h11 reads them, or the difference has a name and a reason.

What two parsers read differently is how requests are smuggled: a proxy sees one request, the server
two. So what h11 refuses is refused, but for the few differences of `LAXER`, which move no boundary.

The connection is a real one; its transport and its tasks are driven by hand, without an event loop.
"""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import h11
import pytest
from http1_corpus import Corpus

from shoal.asgi.http_options import HttpOptions
from shoal.server.http1.connection import Http1Connection
from shoal.server.shared import Shared
from shoal.server.sockets.timeouts import Timeouts

if TYPE_CHECKING:
    from collections.abc import Callable

# How the reading of what a client sent ends.
REFUSED, WAITS, CLOSED, SWITCHED = "refused", "waits", "closed", "switched"


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


class Waiter:
    """A task's wait."""

    task: Any = None

    def __await__(self):
        yield self


class TasksByHand:
    """The tasks and the clock of connections; nothing runs but in `run`, and no time passes."""

    is_coarse = False
    new_waiter = Waiter
    new_scope = nullcontext

    def __init__(self):
        self._ready = deque()

    def now(self):
        return 0.0

    async def checkpoint(self):
        pass

    def start_soon(self, function, *args):
        self._ready.append(function(*args))

    def innermost_scope(self):
        return lambda: None

    def leave_scopes_in(self, scope):
        return False

    def is_in_task(self):
        return False

    def park(self, parked):
        parked.waiter = Waiter()
        return parked.waiter

    def wake(self, waiter):
        if waiter.task is not None:
            self._ready.append(waiter.task)
            waiter.task = None

    def run(self):
        while self._ready:
            task = self._ready.popleft()
            with suppress(StopIteration):
                task.send(None).task = task


class TransportByHand:
    """A socket whose client takes all that is sent to it."""

    peer = name = ("192.0.2.1", 80)
    unsent = b""
    is_paused = False

    def __init__(self):
        self.sent = b""
        self.is_open = True

    def start(self):
        pass

    resume = start

    def send(self, data):
        self.sent += data
        return True

    def has_unread(self):
        return False

    def close(self):
        self.is_open = False

    abort = end_sending = close


class ShoalByHand:
    """Reads what clients send, each on a connection of its own."""

    def __init__(self):
        self._tasks = tasks = TasksByHand()
        self._shared = Shared(self._app, HttpOptions(), {}, tasks, Timeouts(tasks), tasks, "http")

    def read(self, *pieces):
        """What is read of what one client sends, piece by piece."""
        self._outcome = outcome = Outcome()
        transport = TransportByHand()
        connection = Http1Connection(self._shared, transport, lambda: None, self._switch)
        connection.start()
        for piece in pieces:
            if transport.is_open and outcome.end == WAITS:
                connection.data_received(piece)
                self._tasks.run()
            elif outcome.end == SWITCHED:
                outcome.left += len(piece)
        if not transport.is_open:
            status = re.findall(rb"HTTP/1\.1 (\d{3}) ", transport.sent)[-1]
            assert status in {b"200", b"400", b"414", b"431", b"501"}
            outcome.end = CLOSED if status == b"200" else REFUSED
        connection.abort()
        self._tasks.run()
        assert self._shared.running == 0
        return outcome

    async def _app(self, scope, receive, send):
        query = scope["query_string"]
        target = scope["raw_path"] + b"?" * bool(query) + query
        read = Read(scope["method"], target, scope["http_version"], scope["headers"])
        self._outcome.requests.append(read)
        while not read.is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            read.body += message["body"]
            read.is_whole = not message["more_body"]
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    def _switch(self, _shared, _transport, _released, received, parser):
        if parser is not None:
            line = parser.line
            read = Read(line.method, line.target, "1.1", parser.headers, is_whole=True)
            self._outcome.requests.append(read)
        self._outcome.end, self._outcome.left = SWITCHED, len(received)


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


# Shoal refuses more, or less, or reads it differently.
STRICTER, LAXER, OTHER = "stricter", "laxer", "other"


def head_of(read):
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


def difference(ours, theirs, size):
    """The kind of the first difference, and in which request it is; None if there is none."""
    for index, (our, their) in enumerate(zip(ours.requests, theirs.requests, strict=False)):
        if head_of(our) != head_of(their):
            return OTHER, index
        if (our.is_whole, our.body) != (their.is_whole, their.body):
            are_refused = [
                outcome.end == REFUSED and not read.is_whole
                for outcome, read in ((ours, our), (theirs, their))
            ]
            if all(are_refused):
                return None
            return STRICTER if are_refused[0] else LAXER if are_refused[1] else OTHER, index
    count, their_count = len(ours.requests), len(theirs.requests)
    if ours.end == SWITCHED and 0 < count <= their_count:
        return None if size - theirs.requests[count - 1].ends == ours.left else (OTHER, count - 1)
    if count == their_count and ours.end == theirs.end:
        return None
    if count <= their_count and ours.end == REFUSED:
        is_refused = theirs.end == REFUSED and not theirs.requests[count].is_whole
        return None if is_refused else (STRICTER, count)
    is_laxer = count >= their_count and theirs.end == REFUSED
    return LAXER if is_laxer else OTHER, min(count, their_count)


class Sent:
    """What a client sent from the start of a request on, taken apart without a judgement."""

    def __init__(self, data):
        self.data = data
        end = re.search(rb"\n\r?\n", data)
        self.head = data[: end.end()] if end else data
        first, *self.lines = re.split(rb"\r?\n", self.head)
        self.words = [*first.split(b" "), b"", b""][:3]
        self.has_extension = self.has_long_size = self.has_zeros = False
        self.trailers = b""
        self.lengths = self._values(b"content-length")
        self.codings = self._values(b"transfer-encoding")
        authority = re.match(rb"(?i)https?://([^/?#]*)", self.words[1])
        self.hosts = [*self._values(b"host"), *(authority.groups() if authority else ())]
        if self.codings:
            self._look_at_chunks(data[len(self.head) :])

    def _values(self, name):
        pairs = [line.partition(b":") for line in self.lines]
        return [value.strip() for key, _, value in pairs if key.lower() == name]

    def _look_at_chunks(self, body):
        size = 1
        while body and size:
            line, _, body = body.partition(b"\r\n")
            digits = re.match(rb"[0-9A-Fa-f]*", line)[0]
            self.has_extension |= line[len(digits) :][:1] in (b";", b" ", b"\t")
            self.has_long_size |= len(digits.lstrip(b"0")) > 15 or len(digits) > 79
            self.has_zeros |= digits.startswith(b"00")
            if not digits:
                return
            size = int(digits, 16)
            body = body[size + 2 :] if size else body
        end = re.search(rb"\n\r?\n", b"\n" + body)
        self.trailers = body[: end.end() - 1] if end else body


def is_never_right(data):
    """Whether h11 refuses the request as soon as it has the end of the line."""
    outcome = read_by_h11(data + b"\r\n\r\n")
    return outcome.end == REFUSED and not any(read.is_whole for read in outcome.requests)


class Named(NamedTuple):
    """A difference that is meant, and how it is recognised by what was sent."""

    name: str
    reason: str
    is_here: Callable[[Sent], Any]


HOST = rb"[\w\-.~!$&'()*+,;=%\[\]][\w\-.~!$&'()*+,;=%\[\]:]*"
PATH_OR_URL = re.compile(rb"/.*|(?i:https?://)" + HOST + rb"([/?][^#]*)?", re.DOTALL)
HOST_AND_PORT = re.compile(
    rb"(\[[0-9A-Za-z:.%]+\]|([A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(:[0-9]*)?"
)
FRAMING = rb"(?i:content-length|transfer-encoding):"
DIFFERENCES = {
    STRICTER: [
        Named(
            "a line feed alone",
            "h11 takes it for a line break; a proxy may take it for a part of the line",
            lambda sent: re.search(rb"(?<!\r)\n", sent.head + sent.trailers),
        ),
        Named(
            "a folded line",
            "RFC 9112, 5.2: a server refuses it or unfolds it; proxies may do neither",
            lambda sent: re.search(rb"\n[ \t]", sent.head + sent.trailers),
        ),
        Named(
            "a malformed host",
            "RFC 9112, 3.2: it gets 400; proxies and applications read such a host differently",
            lambda sent: any(not HOST_AND_PORT.fullmatch(host) for host in sent.hosts),
        ),
        Named(
            "a control character",
            "RFC 9110, 5.5: it is invalid; what reads the value next may stop at it",
            lambda sent: re.search(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]", sent.head + sent.trailers),
        ),
        Named(
            "a length and chunks",
            "RFC 9112, 6.1: it may be an attempt to smuggle a request",
            lambda sent: sent.lengths and sent.codings,
        ),
        Named(
            "a length twice",
            "RFC 9112, 6.3: it may be refused even if both are the same",
            lambda sent: len(sent.lengths) > 1 or b"," in b"".join(sent.lengths),
        ),
        Named(
            "a size that 64 bits can't hold",
            "a proxy that counts with 64 bits would read another one",
            lambda sent: sent.has_long_size or any(len(one) > 19 for one in sent.lengths),
        ),
        Named(
            "a tab after a length or a transfer coding",
            "versions of llhttp refuse it, though it is valid",
            lambda sent: any(re.match(FRAMING + rb".*\t$", line) for line in sent.lines),
        ),
        Named(
            "chunks in HTTP/1.0",
            "RFC 9112, 6.1: the framing is faulty, since that version has no chunks",
            lambda sent: sent.words[2] == b"HTTP/1.0" and sent.codings,
        ),
        Named(
            "another version",
            "nothing is known of its framing",
            lambda sent: sent.words[2] not in (b"HTTP/1.0", b"HTTP/1.1"),
        ),
        Named(
            "a method in small letters",
            "ASGI has capitals alone, and head is not HEAD, whose answer has no body",
            lambda sent: sent.words[0] != sent.words[0].upper(),
        ),
        Named(
            "another target",
            "RFC 9112, 3.2: a target is a path or a URL with a host; few methods have others",
            lambda sent: sent.words[0] == b"CONNECT" or not PATH_OR_URL.fullmatch(sent.words[1]),
        ),
        Named(
            "a chunk extension, or a blank after a chunk size",
            "nobody uses them, and parsers disagree on where they end",
            lambda sent: sent.has_extension,
        ),
        Named(
            "too much",
            "each part has a limit, which bounds memory and time",
            lambda sent: (
                len(sent.words[0]) > 32
                or len(sent.words[1]) > 2**14
                or len(sent.head) > 2**15
                or len(sent.lines) > 128
                or len(sent.trailers) > 2**13
            ),
        ),
        Named(
            "an early refusal",
            "h11 waits for the end of a line that can't become right",
            lambda sent: is_never_right(sent.data),
        ),
    ],
    LAXER: [
        Named(
            "a length with many zeros before it",
            "it is valid; h11 limits the digits in place of the number",
            lambda sent: any(re.fullmatch(rb"0+\d{1,19}", length) for length in sent.lengths),
        ),
        Named(
            "a size with many zeros before it",
            "it is valid; h11 limits the digits in place of the number",
            lambda sent: sent.has_zeros,
        ),
        Named(
            "a trailer that would frame a message",
            "RFC 9110, 6.5.1: trailers may be dropped, and are; the chunks alone frame the message",
            lambda sent: re.search(rb"(?m)^" + FRAMING, sent.trailers),
        ),
    ],
    OTHER: [
        Named(
            "the start of HTTP/2",
            "the connection goes on with HTTP/2",
            lambda sent: sent.data.startswith(b"PRI * HTTP/2.0\r\n\r\n"),
        ),
    ],
}


def in_pieces(data, rng):
    """What is sent, as it may arrive: mostly whole, or in two pieces, or byte by byte."""
    chance = rng.random()
    if chance < 0.02 and len(data) < 400:
        return [data[at : at + 1] for at in range(len(data))]
    at = rng.randrange(len(data) + 1) if chance < 0.3 else 0
    return [piece for piece in (data[:at], data[at:]) if piece]


def compared(seed, count):
    """How often each outcome and each difference occurs; those without a name fail the test."""
    found = Counter()
    unnamed = []
    rng, shoal = random.Random(seed), ShoalByHand()
    for data in Corpus(seed).sent(count):
        ours = shoal.read(*in_pieces(data, rng))
        theirs = read_by_h11(data)
        differs = difference(ours, theirs, len(data))
        if differs is None:
            found[ours.end] += 1
            continue
        begins = [read.begins for read in theirs.requests] + [len(data) - theirs.left]
        kind, index = differs
        sent = Sent(data[begins[index] :])
        name = next((named.name for named in DIFFERENCES[kind] if named.is_here(sent)), None)
        found[name] += 1
        if name is None:
            unnamed.append((kind, data, ours, theirs))
    assert unnamed[:3] == []
    return found


def test_requests_are_read_as_h11_reads_them_but_for_named_differences():
    found = compared(seed=1, count=1_500)
    assert set(found) >= {REFUSED, WAITS, CLOSED}


@pytest.mark.slow
def test_many_requests_are_read_as_h11_reads_them_and_each_named_difference_occurs():
    found = compared(seed=2, count=12_000)
    names = {named.name for table in DIFFERENCES.values() for named in table}
    assert (names | {SWITCHED}) - set(found) == set()
    assert found[WAITS] > 4_500  # most are right, and read alike
