"""The head of an HTTP/1.1 request: parsed by llhttp, and checked for ambiguous syntax.

llhttp parses one head at a time and never sees a body. Bodies are delimited in `body`, so that one
place decides which requests are refused. A request that other servers or proxies might read
differently is refused, since it can hide another request from one of them.

Many clients repeat the head of their last request: polls, calls without a body or with one of a
fixed size. Such a head is not parsed again, which saves a tenth of a small request. A head that
differs costs one comparison, and `HeadParser.last` finds the end of such a head without a search.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from shoal.asgi.extensions import SERVER
from shoal.asgi.headers import BadRequest

if TYPE_CHECKING:
    from starlette.types import Scope

    from shoal.asgi.http_options import HttpOptions
    from shoal.server.shared import Shared


_SLASH: Final = ord("/")
# The last head of each connection is kept up to this size.
_LONGEST_KEPT: Final = 2**11
END: Final = b"\r\n\r\n"

# llhttp knows only some methods, and treats a few of them in a special way.
_PLAIN_METHODS: Final = {
    name.encode("ascii"): name for name in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
}
_METHOD: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}")
_HOST: Final = re.compile(
    rb"(?:\[[0-9A-Za-z:.%]+\]|(?:[A-Za-z0-9\-._~!$&'()*+,;=]++|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)
_HANDSHAKE: Final = frozenset({b"connection", b"sec-websocket-protocol"})
_SPECIAL: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"origin",
        b"proxy-connection",
        b"transfer-encoding",
        b"upgrade",
    }
)


@dataclass(slots=True)
class RequestLine:
    method: str
    target: bytes  # the path and query, as sent
    path: str  # percent-decoded
    raw_path: bytes
    query: bytes
    is_http_1_1: bool  # else the version is 1.0


# The request line of a head without a readable one.
NO_LINE: Final = RequestLine("", b"", "", b"", b"", is_http_1_1=True)


class HeadParser:
    # The head that the other attributes describe. If it is not kept, `()`: no data starts with it.
    last: bytes | tuple[()]
    size: int  # of that head
    line: RequestLine
    headers: list[tuple[bytes, bytes]]  # in lower case; requests with one head share it
    length: int | None  # of the body; None if it is chunked
    _hosts: int
    origin: bytes | None

    def __init__(self, options: HttpOptions) -> None:
        self.options = options
        self._parser: HttpRequestParser | None = None
        self.forget()

    def forget(self) -> None:
        self.last = ()
        self.line = NO_LINE

    def parse(self, head: bytes) -> None:
        """Parses a whole head; raises `BadRequest` if it is malformed, long or ambiguous."""
        if head == self.last:
            return
        self.forget()
        self.size = len(head)
        self.headers = []
        self.length = self._hosts = 0
        self.expects = self._needs_new_parser = False
        self.host = self.upgrade = b""
        self.origin = None
        self._parse_lines(head)
        self._check_hosts()
        if len(self.line.target) > self.options.max_target_bytes:
            raise BadRequest(414, f"a target of more than {self.options.max_target_bytes} bytes")
        if len(self.headers) > self.options.max_headers:
            raise BadRequest(431, f"more than {self.options.max_headers} headers")
        if self.length != 0 or self._needs_new_parser or not self.keeps_alive:
            self._parser = None  # it waits for the body, or accepts no further request
            self._check_length()
        if len(head) <= _LONGEST_KEPT:
            self.last = head

    def _parse_lines(self, head: bytes) -> None:
        # llhttp accepts more request lines: with two spaces, after empty lines, of other versions.
        try:
            name, target, version = head[: head.find(b"\r\n")].split(b" ")
        except ValueError:
            raise BadRequest(400, "a malformed request line") from None
        method = _PLAIN_METHODS.get(name)
        if method is None:
            if not _METHOD.fullmatch(name):
                raise BadRequest(400, "a malformed method")
            method = name.decode("ascii")
            # ASGI has methods in capitals, but "head" is not "HEAD": its sender may expect another
            # framing of the response.
            if method != method.upper():
                raise BadRequest(501, "a method in small letters")
            head = b"POST" + head[len(name) :]
        if b"\n" in target:  # llhttp would end the line there; it refuses a lone b"\r"
            raise BadRequest(400, "a line break in the request line")
        if version not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise BadRequest(400, "a version other than HTTP/1.1 or HTTP/1.0")
        self.keeps_alive = is_http_1_1 = version == b"HTTP/1.1"
        self.line = _line(method, target, is_http_1_1=is_http_1_1)
        self._feed(head)
        if target[0] != _SLASH:
            target, self.headers = in_origin_form(method, target, self.headers)
            self.line = _line(method, target, is_http_1_1=is_http_1_1)
            self.host = dict(self.headers).get(b"host", b"")

    def _feed(self, head: bytes) -> None:
        parser = self._parser
        if parser is None:
            self._parser = parser = HttpRequestParser(self)
        try:
            parser.feed_data(head)
        except HttpParserUpgrade:
            self._parser = None
        except HttpParserError as error:
            self._parser = None  # HTTP/2 continues after an error
            if isinstance(error.__context__, BadRequest):
                raise error.__context__ from None
            raise BadRequest(400, str(error)) from None

    def is_websocket(self) -> bool:
        """Returns whether it asks for a WebSocket; raises `BadRequest`."""
        if self.upgrade != b"websocket" or self.line.method != "GET" or self.length != 0:
            return False
        self.check_handshake()
        return self.line.is_http_1_1

    def check_handshake(self) -> None:
        for name, value in self.headers:
            if name in _HANDSHAKE and not value.isascii():
                raise BadRequest(400, "a WebSocket handshake that is not ASCII")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by llhttp."""
        name = name.lower()
        value = value.rstrip(b" \t")
        self.headers.append((name, value))
        if name in _SPECIAL:
            if name == b"host":
                self._hosts += 1
                self.host = value
            else:
                self._take_special(name, value)

    def _check_hosts(self) -> None:
        if self._hosts != 1 and (self._hosts or self.line.is_http_1_1):
            raise BadRequest(400, f"{self._hosts} Host headers")
        if not _HOST.fullmatch(self.host):
            raise BadRequest(400, "a malformed host")

    def _check_length(self) -> None:
        if self.length is None and not self.line.is_http_1_1:
            raise BadRequest(400, "a chunked body in HTTP/1.0")

    def _take_special(self, name: bytes, value: bytes) -> None:
        match name:
            case b"content-length":  # llhttp refuses a second one
                try:
                    self.length = int(value)
                except ValueError:  # it has thousands of zeros
                    raise BadRequest(400, "a Content-Length of too many digits") from None
            case b"connection":
                # Keep-alive of HTTP/1.0 is not supported.
                self._needs_new_parser = self._needs_new_parser or value != b"keep-alive"
                if b"close" in [token.strip(b" \t") for token in value.lower().split(b",")]:
                    self.keeps_alive = False
            case b"proxy-connection":
                # llhttp reads it as Connection. It is not one: RFC 9112, C.2.2.
                self._needs_new_parser = True
            case b"transfer-encoding":
                # llhttp refuses it beside a Content-Length.
                if value.lower() != b"chunked" or self.length is None:
                    raise BadRequest(501, "a transfer coding other than chunked")
                self.length = None
            case b"origin":
                self.origin = value
            case b"expect":
                self.expects = self.line.is_http_1_1 and value.lower() == b"100-continue"
            case _:
                self.upgrade = value.lower()


def _line(method: str, target: bytes, *, is_http_1_1: bool) -> RequestLine:
    raw_path, _, query = target.partition(b"?")
    # llhttp refuses bytes that are not ASCII.
    path = raw_path.decode("latin-1")
    return RequestLine(
        method, target, unquote(path) if "%" in path else path, raw_path, query, is_http_1_1
    )


def find_end(data: bytes, longest: int, searched: int = 0) -> int:
    """Returns the index after a head's empty line; -1 if the data has no whole head."""
    # The first `searched` bytes contain no end. Raises BadRequest if the head is too long already,
    # or can't become valid.
    end = data.find(END, max(0, searched - 3))
    if 0 <= end < longest:
        return end + 4
    if end >= 0 or len(data) > longest:
        line = data.find(b"\r\n", 0, longest)
        if line < 0:
            raise BadRequest(414, f"a request line of more than {longest} bytes")
        raise BadRequest(431, f"a head of more than {longest} bytes")
    # A line break may be split between two reads.
    new = data[searched - data.endswith(b"\r", 0, searched) :] if searched else data
    if new.count(b"\n") > new.count(b"\r\n"):
        raise BadRequest(400, "a line that ends without a carriage return")
    if not _METHOD.match(data):
        raise BadRequest(400, "a malformed method")
    return -1


_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)

Headers = list[tuple[bytes, bytes]]


# A server must accept a whole URL, as sent to a proxy, and use the URL's host in place of the
# `Host` header (RFC 9112, section 3.2.2). Otherwise the guard would check another host than the
# requested one.
def in_origin_form(method: str, target: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """Returns path and query, and headers with the URL's host; raises `BadRequest`."""
    if target == b"*":
        return target, headers
    match = _ABSOLUTE.fullmatch(target)
    if match is None or method == "CONNECT":
        raise BadRequest(400, "a target that is neither a path nor a URL")
    host, path = match.groups()
    if not host or host.startswith(b":") or b"@" in host:
        raise BadRequest(400, "a target without a host, or with a user")
    if not path.startswith(b"/"):
        path = b"*" if method == "OPTIONS" and not path else b"/" + path
    return path, [(b"host", host), *(header for header in headers if header[0] != b"host")]


def scope_of(
    shared: Shared,
    peer: tuple[str, int] | None,
    name: tuple[str, int] | None,
    kind: str,
    version: str,
    parser: HeadParser,
) -> dict[str, Any]:
    """Returns a new scope of the request that a parser has parsed last."""
    line = parser.line
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": version,
        "method": line.method,
        "scheme": shared.scheme,
        "path": line.path,
        "raw_path": line.raw_path,
        "query_string": line.query,
        "root_path": "",
        "client": peer,
        "server": name,
        "headers": parser.headers.copy(),
        "state": shared.state.copy(),
        "extensions": {SERVER: shared.counts},
    }


def scope_of_refused(parser: HeadParser, peer: tuple[str, int] | None) -> Scope:
    """Returns the known part of a refused request's scope; method and path may be None."""
    line = parser.line
    return {
        "type": "http",
        "http_version": "1.1" if line.is_http_1_1 else "1.0",
        "method": line.method or None,
        "path": line.path or None,
        "raw_path": line.raw_path,
        "headers": parser.headers if line.method else [],
        "client": peer,
        "scheme": "http",
    }
