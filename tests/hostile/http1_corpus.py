"""Makes HTTP/1.1 requests for tests of parsers: well-formed ones, odd ones and damaged ones.

A request is made of parts, so that most of it is right and a parser reads it to the odd part. The
same seed makes the same requests.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

# fmt: off
METHODS = [
    b"GET", b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE", b"M-SEARCH", b"X!#~",
]
METHODS_WITH_BODY = [b"POST", b"PUT", b"PATCH", b"PROPFIND", b"DELETE"]
ODD_METHODS = [
    b"", b"G\xc9T", b"G(T", b"G\0T", b"GE T", b"PRI", b"A" * 32, b"A" * 33, b"G/T", b"CONNECT",
    b"get", b"post",
]
TARGETS = [
    b"/", b"/a/b?c=d", b"/%41%00?%zz", b"//a", b"/a?b=http://c/", b"/a;b=c?d?e", b"/?",
    b"/~!$&'()*", b"http://a.test/b?c", b"HTTP://a.test:80", b"https://[::1]/b",
]
ODD_TARGETS = [
    b"", b"a", b"?a", b"#a", b"/a#b", b"/a b", b"/\xff", b"/\x7f", b"/\x01", b"/\t", b"/\x0c",
    b"*", b"*a", b"a:80", b"http:a", b"http://", b"http:///a", b"http://:80/", b"http://u@a/",
    b"http://a/#b", b"http://a#b", b"http://a\\b/", b"http://a?b@c", b"http://a/b@c", b"ftp://a/",
    b'/"<>\\^`{|}', b"/##", b"/?a#b?c#d", b"/" + b"a" * 2**14, b"/" + b"a" * (2**14 - 1),
    b"/a\nX:b", b"/\nHost:b", b"/a?b\nHost:c", b"http://\n.a:b", b"*\nX:b", b"/a\rb", b"/\r\na",
]
ODD_VERSIONS = [
    b"HTTP/1.0", b"HTTP/1.0", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/1",
    b"http/1.1", b"HTTP/1.1 ", b"HTTP/01.1", b"HTTP/1.10", b"HTTPS/1.1", b"ICE/1.0", b"RTSP/1.0",
    b"", b"HTTP/1.\xb1", b"HTTP/1.1\t",
]
HEADERS = [
    b"Accept: */*", b"user-agent:x", b"X-Empty:", b"X-Blank: \t ", b"x-tab:\ta\tb \t", b"X: a b",
    b"Cookie: a=b; c=d", b"X-Obs: \xe9\xff", b"!#$%&'*+-.^_`|~: 1", b"X: :", b"X: a", b"x: b",
    b"Connection: keep-alive", b"Content-Type: text/plain", b"Content-Length-X: 5",
]
ODD_HOSTS = [b"", b"Host:", b"Host: a\r\nHost: a", b"hOST: a:1", b"Host: a b"]
ODD_LINES = [
    b"X : a", b"X\t: a", b" X: a", b"X", b": a", b"X a: b", b"X\0: a", b"\xff: a", b"X(: a", b"X=a",
    b"X: \0", b"X: \x01a", b"X: a\x7f", b"X: a\x0b", b"X: a\x1fb", b"X: a\rb", b"X: a\r", b"\r",
    b"X: a\r\n b", b"X: a\r\n\tb", b"X:\r\n b", b"X: a\r\n ", b"X: a\n b", b"X: a\nY: b", b"X: a\n",
    b"X: \x85", b"X: a\r\n\r", b"Host: b", b"host: a.test", b"Host: ", b"Host : b",
    b"Content-Length : 5", b"Content-Length\0: 5", b"Content-Length:\r\n 5", b"Content_Length: 5",
    b"Transfer-Encoding : chunked", b"Transfer-Encoding:\r\n chunked",
    b"X: a\n\nGET /smuggled HTTP/1.1\r\nHost: a",
]
ODD_LENGTHS = [
    b"+5", b"-5", b"5,5", b"5, 5", b"5,6", b"5 5", b"5;", b"0x5", b"1_0", b"5.0", b"five", b"",
    b" ", b"\xb2", b"5\0", b"\x0b5", b"5\x0c", b"5 ", b"5\t", b"\t5", b"05", b"0" * 19 + b"5",
    b"0" * 30 + b"5", b"%d" % 2**63, b"%d" % (2**64 - 1), b"%d" % 2**64, b"9" * 20, b"9" * 21,
    b"9" * 5000,
]
ODD_CODINGS = [
    b"xchunked", b"chunkedx", b"chunked, chunked", b"gzip, chunked", b"chunked, gzip", b"gzip",
    b"identity", b"identity, chunked", b"", b"chunked,", b",chunked", b"chunked;q=1", b'"chunked"',
    b"\x0bchunked", b"chunked\x0c", b"chunked\0", b"chu nked", b"CHUNKED", b"chunked ",
    b"chunked\t",
]
CONNECTIONS = [
    b"close", b"Close", b"x, close", b"close;", b"close close", b"closed", b"", b",close,",
    b"keep-alive, close", b"\tclose ", b"upgrade", b"close, upgrade", b'"close"', b"keep-alive\x0b",
    b"keep-alive\r\nConnection: close", b"close\r\nConnection: keep-alive",
    b"clos\r\nConnection: e",
]
UPGRADES = [b"h2c", b"websocket", b"WebSocket", b"websocket, h2c", b"x", b"", b"TLS/1.0"]
EXPECTATIONS = [b"100-continue", b"100-Continue", b"200-ok", b"", b"100-continue, x"]
ODD_STARTS = [
    b"\r\n", b"\n", b" ", b"\x16\x03\x01", b"\0", b"\r", b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]
ODD_SIZES = [
    b"5;", b"5;a", b"5;a=b", b"5 ", b"5\t", b" 5", b"5 ;a", b"+5", b"-5", b"0x5", b"", b"g", b"5_0",
    b"5\r", b"5;\n", b"5;a\nb", b"5;a\r", b"5\0", b"05", b"00", b"0;", b"0 ", b"0" * 14 + b"5",
    b"0" * 15 + b"5", b"0" * 19 + b"5", b"0" * 20 + b"5", b"f" * 15, b"f" * 16, b"f" * 21,
    b"1" + b"0" * 16,
]
# What may come in place of the line break after a chunk.
ODD_BREAKS = [b"", b"\n", b"\r", b"x\r\n", b"\r\n\r\n", b"\rx", b"\n\r"]
TRAILERS = [
    b"X: a", b"X-Empty:", b"!~: \xff\t", b"X:\ta", b"X : a", b"X", b" X: a", b"X: a\r\n b",
    b"X: a\n", b"X: a\nY: b", b": a", b"X: \x01", b"X: \x7f", b"X: a\0", b"X: a\rb", b"X: a\r",
    b"Host: b", b"Content-Length: x", b"Content-Length: 5", b"Content-Length: 5,6",
    b"Content-Length: 5\r\nContent-Length: 6", b"Transfer-Encoding: x",
    b"Transfer-Encoding: chunked", b"X: " + b"a" * 2**13,
]
CONTENTS = [b"", b"a", b"hello", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\r\n", b"hello" * 9]
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
# What is wrong before it is complete.
UNFINISHED = [
    b"(", b"\xff", b"\0", b"\t", b"\x16\x03\x01", b"GET /\n", CHUNKED + b"g", CHUNKED + b"5;",
    CHUNKED + b"5\rx", CHUNKED + b"1\r\nab", CHUNKED + b"0\r\nX\r\n", CHUNKED + b"0\r\n\0\r\n",
]
# fmt: on
BYTES_OF_DAMAGE = b"\r\n\r\n \t:;,\0\x0b\x0c\x1f\x7f\x80\xff05aAX/?#*%"


@dataclass
class Parts:
    """The parts of a request; the last two are the line break, and what is sent before it."""

    method: bytes
    target: bytes
    version: bytes = b"HTTP/1.1"
    host: bytes = b""
    lines: list[bytes] = field(default_factory=list)
    body: bytes = b""
    line_break: bytes = b"\r\n"
    before: bytes = b""

    def joined(self) -> bytes:
        first = b" ".join((self.method, self.target, self.version))
        lines = [first, self.host, *self.lines] if self.host else [first, *self.lines]
        return self.before + self.line_break.join([*lines, b"", self.body])

    def drop_body(self) -> None:
        self.body = b""
        framing = (b"Content-Length:", b"Transfer-Encoding:")
        self.lines = [line for line in self.lines if not line.startswith(framing)]


class Corpus:
    """Makes requests, of parts that fit the application they are for."""

    def __init__(
        self,
        rng: random.Random,
        *,
        host: bytes = b"Host: a.test",
        targets: list[bytes] = TARGETS,
        headers: list[bytes] = HEADERS,
        contents: list[bytes] = CONTENTS,
        is_odd: bool = True,
    ) -> None:
        self._rng = rng
        self._host_line = host
        self._is_odd = is_odd
        self._targets, self._headers, self._contents = targets, headers, contents
        self._chance = self._rng.random
        self._choice = self._rng.choice
        # Twice as often, since these have many forms.
        often = [self._line, self._target, self._length, self._coding, self._chunk, self._trailers]
        self._oddities = [
            *often,
            *often,
            self._method,
            self._version,
            self._host,
            self._two_lengths,
            self._two_codings,
            self._length_and_chunks,
            self._connection,
            self._upgrade,
            self._expectation,
            self._start,
            self._size,
            self._line_feeds,
        ]

    def sent(self, count: int) -> Iterator[bytes]:
        """Makes what so many clients send: a request or several, perhaps damaged or cut off."""
        for _ in range(count):
            data = self._request()
            while self._chance() < 0.2:
                data += self._request()
            chance = self._chance() if self._is_odd else 1.0
            if chance < 0.15:
                data = self._damaged(data)
            elif chance < 0.25:
                data = data[: self._rng.randrange(len(data))]
            elif chance < 0.27:
                data += self._choice(UNFINISHED)
            yield data

    def _request(self) -> bytes:
        parts = Parts(self._choice(METHODS), self._choice(self._targets), host=self._host_line)
        while self._chance() < 0.5:
            parts.lines.append(self._choice(self._headers))
        chance = self._chance()
        if chance < 0.5:
            parts.method = self._choice(METHODS_WITH_BODY)
        if chance < 0.25:
            parts.body = self._choice(self._contents)
            parts.lines.append(b"Content-Length: %d" % len(parts.body))
        elif chance < 0.5:
            self._give_chunks(parts)
        chance = self._chance() if self._is_odd else 1.0
        while chance < 0.5:
            self._choice(self._oddities)(parts)
            chance += 0.1 + 0.4 * self._chance()
        return parts.joined()

    def _give_chunks(self, parts: Parts, odd_chunk: bytes = b"", trailers: bytes = b"") -> None:
        parts.drop_body()
        parts.lines.append(b"Transfer-Encoding: chunked")
        chunks = [self._choice(self._contents) or b"x" for _ in range(self._rng.randrange(3))]
        body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        parts.body = body + odd_chunk + b"0\r\n" + trailers + b"\r\n"

    def _damaged(self, data: bytes) -> bytes:
        damaged = bytearray(data)
        for _ in range(self._rng.randint(1, 3)):
            at = self._rng.randrange(len(damaged) + 1)
            removed = self._choice([0, 1, 1, 2])
            inserted = b"" if removed == 2 else bytes([self._choice(BYTES_OF_DAMAGE)])
            damaged[at : at + removed] = inserted
        return bytes(damaged)

    def _insert(self, parts: Parts, line: bytes) -> None:
        parts.lines.insert(self._rng.randint(0, len(parts.lines)), line)

    # What can be odd about a request.

    def _method(self, parts: Parts) -> None:
        parts.method = self._choice(ODD_METHODS)

    def _target(self, parts: Parts) -> None:
        parts.target = self._choice(ODD_TARGETS)

    def _version(self, parts: Parts) -> None:
        parts.version = self._choice(ODD_VERSIONS)

    def _host(self, parts: Parts) -> None:
        parts.host = self._choice(ODD_HOSTS)

    def _line(self, parts: Parts) -> None:
        self._insert(parts, self._choice(ODD_LINES))

    def _length(self, parts: Parts) -> None:
        parts.drop_body()
        self._insert(parts, b"Content-Length: " + self._choice(ODD_LENGTHS))
        parts.body = b"hello"

    def _two_lengths(self, parts: Parts) -> None:
        parts.drop_body()
        for _ in range(2):
            self._insert(parts, b"content-length: " + self._choice([b"5", b"5", b"0", b"6"]))
        parts.body = b"hello"

    def _coding(self, parts: Parts) -> None:
        parts.drop_body()
        self._insert(parts, b"Transfer-Encoding: " + self._choice(ODD_CODINGS))
        parts.body = b"5\r\nhello\r\n0\r\n\r\n"

    def _two_codings(self, parts: Parts) -> None:
        self._coding(parts)
        self._insert(parts, b"Transfer-Encoding: " + self._choice([b"chunked", b"identity"]))

    def _length_and_chunks(self, parts: Parts) -> None:
        self._give_chunks(parts)
        self._insert(parts, b"Content-Length: %d" % self._choice([0, 5, len(parts.body)]))

    def _chunk(self, parts: Parts) -> None:
        if self._chance() < 0.7:
            chunk = self._choice(ODD_SIZES) + b"\r\nhello\r\n"
        else:
            chunk = b"5\r\nhello" + self._choice(ODD_BREAKS)
        self._give_chunks(parts, odd_chunk=chunk)

    def _trailers(self, parts: Parts) -> None:
        self._give_chunks(parts, trailers=self._choice(TRAILERS) + b"\r\n")

    def _connection(self, parts: Parts) -> None:
        self._insert(parts, b"Connection: " + self._choice(CONNECTIONS))

    def _upgrade(self, parts: Parts) -> None:
        self._insert(parts, b"Upgrade: " + self._choice(UPGRADES))
        if self._chance() < 0.8:
            self._insert(parts, b"Connection: " + self._choice([b"upgrade", b"Upgrade, x"]))
        if self._chance() < 0.5:  # only this method can open a WebSocket
            parts.drop_body()
            parts.method = b"GET"
        if self._chance() < 0.3:
            parts.version = b"HTTP/1.0"

    def _expectation(self, parts: Parts) -> None:
        self._insert(parts, b"Expect: " + self._choice(EXPECTATIONS))

    def _start(self, parts: Parts) -> None:
        parts.before = self._choice(ODD_STARTS)

    def _size(self, parts: Parts) -> None:
        chance = self._chance()
        if chance < 0.1:
            parts.lines += [b"X: %d" % number for number in range(self._choice([126, 140]))]
        elif chance < 0.2:
            parts.lines.append(b"X: " + b"a" * self._choice([2**13, 2**15]))

    def _line_feeds(self, parts: Parts) -> None:
        parts.line_break = b"\n"
