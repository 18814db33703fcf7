"""The heads of HTTP/1.1: that of a request, parsed and checked, and that of an answer, made."""

import pytest
from server_in_memory import serving
from test_http1_answers import answer

from shoal.asgi.headers import BadRequest
from shoal.asgi.http_options import HttpOptions
from shoal.server.http1.call import END, answer_head, error_answer
from shoal.server.http1.head import HeadParser, find_end, in_origin_form
from shoal.testing import settle

OPTIONS = HttpOptions()
MAX_HEAD = OPTIONS.max_head_bytes
DATE = b"\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.fixture(autouse=True)
def the_date(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 784_111_777.9)


def head(*lines, first="GET / HTTP/1.1", host="Host: shoal.test"):
    lines = [first, host, *lines] if host else [first, *lines]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")


def parsed(*lines, **kwargs):
    parser = HeadParser(OPTIONS)
    parser.parse(head(*lines, **kwargs))
    return parser


def refused(data):
    """The status and the reason with which a head is refused."""
    with pytest.raises(BadRequest) as caught:
        HeadParser(OPTIONS).parse(data)
    return caught.value.status, str(caught.value)


def test_a_head_is_taken_apart():
    parser = parsed("Accept: */*", first="GET /a/b?c=d HTTP/1.1")
    assert (parser.line.method, parser.line.target) == ("GET", b"/a/b?c=d")
    assert parser.headers == [(b"host", b"shoal.test"), (b"accept", b"*/*")]
    assert parser.line.is_http_1_1
    assert parser.keeps_alive
    assert (parser.length, parser.expects, parser.upgrade) == (0, False, b"")


def test_names_are_in_lower_case_and_values_lose_the_blanks_around_them():
    parser = parsed("X-A:a", "x-b: \t b \t c \t ", "X-C:", "X-D: \t ", "x-e: \xe9", "X-A: A")
    assert parser.headers[1:] == [
        (b"x-a", b"a"),
        (b"x-b", b"b \t c"),
        (b"x-c", b""),
        (b"x-d", b""),
        (b"x-e", b"\xe9"),
        (b"x-a", b"A"),
    ]


@pytest.mark.parametrize(
    "method", ["GET", "POST", "DELETE", "HEAD", "CONNECT", "PURGE", "M-SEARCH", "!#$%&'*+.^_`|~9"]
)
def test_any_token_is_a_method(method):
    assert parsed(first=f"{method} / HTTP/1.1").line.method == method


NO_METHODS = ["", "G(T", "G\xc9T", "G\0T", "\tGET", "A" * 33]
NO_VERSIONS = ["HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/1.10", "HTTP/1", "http/1.1", "ICE/1.0"]
# A URL that is no URL of a server's would reach the application with another's `Host`.
NO_TARGETS = [
    *("", "a", "?a", "#a", "a:80", "http:a", "/\xff", "/\x7f", "/\x01", "/\t", "/\0", "/\r"),
    *("http://a.test/#b", "http://a.test#b", "ftp://a.test/b", "*a"),
]
NO_THREE_WORDS = [
    *("GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET / HTTP/1.1 ", " GET / HTTP/1.1", "GET /"),
    *("GET", "", "GET\t/ HTTP/1.1", "GET / a HTTP/1.1", "\r\nGET / HTTP/1.1"),
]


@pytest.mark.parametrize(
    ("first", "status"),
    [
        ("head / HTTP/1.1", 501),  # it is none of those in capitals, which alone ASGI has
        *((f"{method} / HTTP/1.1", 400) for method in NO_METHODS),
        *((f"GET / {version}", 400) for version in NO_VERSIONS),
        *((f"GET {target} HTTP/1.1", 400) for target in NO_TARGETS),
        *((first, 400) for first in NO_THREE_WORDS),
    ],
)
def test_other_request_lines_are_refused(first, status):
    assert refused(head(first=first))[0] == status


@pytest.mark.parametrize(
    ("first", "connection", "keeps_alive"),
    [
        ("GET / HTTP/1.1", "keep-alive", True),
        ("GET / HTTP/1.1", "close", False),
        ("GET / HTTP/1.1", "Close", False),
        ("GET / HTTP/1.1", "te, \tclose", False),
        ("GET / HTTP/1.1", "close\r\nConnection: keep-alive", False),
        ("GET / HTTP/1.1", "keep-alive\r\nConnection: close", False),
        ("GET / HTTP/1.1", "closed", True),
        ("GET / HTTP/1.1", "", True),
        ("GET / HTTP/1.0", "keep-alive", False),
        ("GET / HTTP/1.0", "", False),
    ],
)
def test_whether_the_connection_goes_on(first, connection, keeps_alive):
    assert parsed(f"Connection: {connection}", first=first).keeps_alive == keeps_alive


@pytest.mark.parametrize(
    ("line", "length"),
    [
        ("Content-Length: 5", 5),
        ("content-length:005 ", 5),
        (f"Content-Length: {'0' * 30}5", 5),
        (f"Content-Length: {2**64 - 1}", 2**64 - 1),
        ("Content-Length: 0", 0),
        ("Transfer-Encoding: chunked", None),
        ("transfer-encoding:Chunked ", None),
    ],
)
def test_how_long_the_body_is(line, length):
    assert parsed(line).length == length


@pytest.mark.parametrize("value", ["100-continue", "100-Continue"])
def test_a_client_may_wait_to_be_asked_for_its_body(value):
    assert parsed(f"Expect: {value}", "Content-Length: 5").expects


def test_the_expectation_of_an_http_1_0_client_is_ignored():
    """RFC 9110, section 10.1.1: it does not know the answer that it would get."""
    expecting = ["Expect: 100-continue", "Content-Length: 5"]
    assert not parsed(*expecting, first="POST / HTTP/1.0").expects


def test_the_upgrade_is_given_in_lower_case():
    assert parsed("Connection: upgrade", "Upgrade: WebSocket").upgrade == b"websocket"


@pytest.mark.parametrize("host", ["", "Host: a\r\nHost: a", "Host: a\r\nhost: b"])
def test_a_request_has_one_host(host):
    assert refused(head(host=host))[0] == 400


def test_http_1_0_needs_no_host_but_has_no_two_either():
    assert parsed(first="GET / HTTP/1.0", host="").headers == []
    assert refused(head(first="GET / HTTP/1.0", host="Host: a\r\nHost: a"))[0] == 400


TWICE = "Transfer-Encoding: chunked\r\nTransfer-Encoding: "


@pytest.mark.parametrize(
    ("line", "status"),
    [
        *[(f"Content-Length: {value}", 400) for value in ("+5", "-5", "0x5", "1_0", "5 5", "5,5")],
        *[(f"Content-Length: {value}", 400) for value in ("", "five", "5;", "\xb2", 2**64, "5\0")],
        ("Content-Length: 5\r\nContent-Length: 5", 400),
        ("Content-Length: 5\r\nContent-Length: 6", 400),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", 400),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", 400),
        ("Content-Length: 0\r\nTransfer-Encoding: chunked", 400),
        ("Transfer-Encoding: gzip\r\nContent-Length: 5", 501),
        *[(f"Transfer-Encoding: {value}", 501) for value in ("xchunked", "chunkedx", "identity")],
        *[(f"Transfer-Encoding: {value}", 501) for value in ("gzip, chunked", "chunked;q=1")],
        *[(f"Transfer-Encoding: {value}", 400) for value in ("\x0bchunked", "chunked\x0c")],
        *[(f"{TWICE}{value}", 400) for value in ("chunked", "gzip")],
        (f"Transfer-Encoding: gzip\r\n{TWICE}chunked", 501),
        *[(f"Content-Length{blank}: 5", 400) for blank in (" ", "\t", "\0", "\r\n")],
        *[(f"Transfer-Encoding{blank}: chunked", 400) for blank in (" ", "\t", "\r\n")],
        ("Transfer-Encoding:\r\n chunked", 400),
        ("Transfer-Encoding: chunked, gzip", 400),
        *[(f"X: a{fold}b", 400) for fold in ("\r\n ", "\r\n\t", "\n ", "\n", "\r", "\r\n")],
        *[(f"X: {control}", 400) for control in ("\0", "\x01", "\x0b", "\x1f", "\x7f")],
        *[(f"{name}: a", 400) for name in ("", "a b", "a\0", "\xe9", "a(", " a")],
    ],
)
def test_a_header_that_could_be_read_in_two_ways_is_refused(line, status):
    assert refused(head(line))[0] == status


def test_a_length_of_more_digits_than_python_reads_is_refused():
    assert parsed(f"Content-Length: {'0' * 4000}5").length == 5
    long = refused(head(f"Content-Length: {'0' * 5000}5"))
    assert long == (400, "a Content-Length of too many digits")


def test_chunks_in_http_1_0_are_refused():
    assert refused(head("Transfer-Encoding: chunked", first="POST / HTTP/1.0"))[0] == 400


@pytest.mark.parametrize(
    "first",
    [
        *("GET /\nX-Forwarded-For:b HTTP/1.1", "GET /a\nHost:b HTTP/1.1"),
        *("GET http://\na:b HTTP/1.1", "GET /\rHost:b HTTP/1.1", "GET /a\r HTTP/1.1"),
    ],
)
def test_a_line_break_in_the_request_line_is_refused(first):
    """It would end the line for some, make a header of the rest, and forge a line of a log."""
    assert refused(head(first=first))[0] == 400
    assert refused(head(first=first, host=""))[0] == 400


def facts(parser):
    names = ("line", "headers", "host", "origin", "length", "keeps_alive", "expects", "upgrade")
    return [getattr(parser, name) for name in names]


HEADS = {
    "plain": head("X-A: a"),
    "with a body": head("Content-Length: 3", "Expect: 100-continue", first="POST /a?b HTTP/1.1"),
    "chunked": head("Transfer-Encoding: chunked", "Origin: http://a.test", first="POST / HTTP/1.1"),
    "last": head("Connection: close"),
    "upgrade": head("Connection: upgrade", "Upgrade: websocket", "Content-Length: 5"),
    "tunnel": head(first="CONNECT / HTTP/1.1"),
    "other method": head(first="PURGE / HTTP/1.1"),
    "absolute": head(first="GET http://b.test/c HTTP/1.1"),
    "1.0": head(first="GET / HTTP/1.0"),
}


@pytest.mark.parametrize("second", HEADS)
@pytest.mark.parametrize("first", HEADS)
def test_heads_in_a_row_are_read_as_each_alone(first, second):
    parser = HeadParser(OPTIONS)
    for name in (first, first, second, second, first):
        parser.parse(HEADS[name])
        alone = HeadParser(OPTIONS)
        alone.parse(HEADS[name])
        assert facts(parser) == facts(alone)


async def test_a_change_of_the_scope_does_not_reach_the_next_request():
    found = []

    async def app(scope, receive, send):
        found.append(list(scope["headers"]))
        assert "b" not in scope["state"].keys() | scope["extensions"].keys()
        scope["headers"].append((b"x-b", b"b"))
        scope["state"]["b"] = scope["extensions"]["b"] = b"b"
        await answer(send, status=204)

    async with serving(app) as server:
        client = server.connect()
        for _ in range(3):
            client.say(HEADS["plain"])
            await settle()
    assert found == [[(b"host", b"shoal.test"), (b"x-a", b"a")]] * 3


async def test_requests_with_the_same_head_have_bodies_of_their_own():
    found = []

    async def app(scope, receive, send):
        message = await receive()
        assert not message["more_body"]
        found.append((scope["path"], message["body"]))
        await answer(send, status=204)

    one = head("Content-Length: 3", first="POST /one HTTP/1.1")
    two = head("Content-Length: 3", first="POST /two HTTP/1.1")
    bare = head(first="GET /bare HTTP/1.1")
    said = [one + b"abc", one + b"def", two + b"ghi", one + one[:3], bare, bare + bare]
    said.append(one + b"jkl")
    async with serving(app) as server:
        client = server.connect()
        for data in said:
            client.say(data)
            await settle()
        # In pieces, and with others behind it.
        client.say(one[:9])
        client.say(one[9:] + b"mno" + one + b"pqr" + one + b"s")
        client.say(b"tu" + bare)
        await settle()
    assert found == [
        *[("/one", b"abc"), ("/one", b"def"), ("/two", b"ghi"), ("/one", one[:3])],
        *[("/bare", b"")] * 3,
        *[("/one", b"jkl"), ("/one", b"mno"), ("/one", b"pqr"), ("/one", b"stu"), ("/bare", b"")],
    ]


def test_a_repeated_head_is_refused_each_time():
    parser = HeadParser(OPTIONS)
    parser.parse(HEADS["plain"])
    for _ in range(2):
        with pytest.raises(BadRequest):
            parser.parse(head("Host: other.test"))
        parser.parse(HEADS["plain"])
        assert parser.host == b"shoal.test"


def test_a_target_may_have_16_kib():
    assert len(parsed(first=f"GET /{'a' * (2**14 - 1)} HTTP/1.1").line.target) == 2**14
    assert refused(head(first=f"GET /{'a' * 2**14} HTTP/1.1"))[0] == 414


def test_a_head_may_have_128_headers():
    assert len(parsed(*["a:"] * 127).headers) == 128
    assert refused(head(*["a:"] * 128))[0] == 431


def test_the_end_of_a_head_is_found_however_it_arrives():
    whole = head("X: a")
    data = whole + b"behind"
    for size in range(1, len(data) + 1):
        expected = len(whole) if size >= len(whole) else -1
        for searched in range(min(size, len(whole) - 1) + 1):
            assert find_end(data[:size], MAX_HEAD, searched) == expected
    assert find_end(bytearray(data), MAX_HEAD) == len(whole)


def padded(size):
    """A head whose empty line begins at `size`."""
    start = b"GET / HTTP/1.1\r\nX: "
    return start + b"a" * (size - len(start)) + b"\r\n\r\n"


def test_a_head_may_have_32_kib():
    assert find_end(padded(MAX_HEAD - 1), MAX_HEAD) == MAX_HEAD + 3
    for data in (padded(MAX_HEAD), padded(MAX_HEAD + 1)[:-4]):
        with pytest.raises(BadRequest, match="head of more than") as caught:
            find_end(data, MAX_HEAD)
        assert caught.value.status == 431


def test_a_request_line_without_an_end_is_a_target_that_is_too_long():
    assert find_end(b"GET /" + b"a" * (MAX_HEAD - 5), MAX_HEAD) == -1
    with pytest.raises(BadRequest) as caught:
        find_end(b"GET /" + b"a" * (MAX_HEAD - 4), MAX_HEAD)
    assert caught.value.status == 414


@pytest.mark.parametrize(
    "data",
    [b"\n", b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r\nX: a\n", b"\r\n", b" ", b"\x16\x03\x01"],
)
def test_what_can_not_become_a_head_is_refused_before_it_ends(data):
    with pytest.raises(BadRequest) as caught:
        find_end(data, MAX_HEAD)
    assert caught.value.status == 400


def test_a_url_without_a_path_is_the_server_itself_for_options():
    assert in_origin_form("OPTIONS", b"http://a.test", [])[0] == b"*"
    assert in_origin_form("OPTIONS", b"http://a.test/", [])[0] == b"/"
    assert in_origin_form("OPTIONS", b"http://a.test?b", [])[0] == b"/?b"


@pytest.mark.parametrize(
    "target",
    [b"http://", b"http:///a", b"http://:80/", b"http://a@b/", b"http://a:b@c", b"https://?a"],
)
def test_a_url_without_a_host_or_with_a_user_is_refused(target):
    with pytest.raises(BadRequest) as caught:
        in_origin_form("GET", target, [(b"x", b"a"), (b"host", b"shoal.test")])
    assert caught.value.status == 400


@pytest.mark.parametrize("target", ["/a", "/", "//a", "/a?b=http://c/", "/a#b"])
def test_a_path_is_left_as_it_is(target):
    parser = parsed(first=f"GET {target} HTTP/1.1")
    assert (parser.line.target, parser.headers) == (target.encode(), [(b"host", b"shoal.test")])


def test_the_server_itself_is_an_asterisk():
    assert parsed(first="OPTIONS * HTTP/1.1").line.target == b"*"


def encoded(status, headers, framing=b""):
    return answer_head(status, headers)[0] + framing + END


def test_an_answers_head_has_a_status_line_the_headers_the_date_and_the_framing():
    assert encoded(200, [(b"content-type", b"a"), (b"X-A", b"b")], b"\r\ncontent-length: 1") == (
        b"HTTP/1.1 200 OK" + DATE + b"\r\ncontent-type: a\r\nX-A: b\r\ncontent-length: 1\r\n\r\n"
    )


@pytest.mark.parametrize("header", [[b"x-a", b"b"], (bytearray(b"x-a"), bytearray(b"b"))])
def test_headers_of_other_types_are_sent_as_well(header):
    for _ in range(2):
        assert b"\r\nx-a: b\r\n" in encoded(200, [header])


def test_the_date_of_the_application_is_kept():
    kept = encoded(200, [(b"Date", b"today")])
    assert kept == b"HTTP/1.1 200 OK\r\nDate: today\r\n\r\n"


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (200, b"200 OK"),
        (299, b"299 "),
        (413, b"413 Content Too Large"),
        (422, b"422 Unprocessable Content"),
        (503, b"503 Service Unavailable"),
        (999, b"999 "),
    ],
)
def test_the_status_line_has_the_phrase_of_its_status(status, line):
    assert encoded(status, []).startswith(b"HTTP/1.1 " + line + b"\r\n")


@pytest.mark.parametrize("status", [0, 100, 101, 199, 1000, -200])
def test_a_status_that_is_not_one_of_an_answer_is_refused(status):
    with pytest.raises(ValueError, match="status from 200 to 999"):
        encoded(status, [])


@pytest.mark.parametrize(
    "name", [b"x-a", b"content-type", b"date", b"X-A", b"vary", b"x-request-id"]
)
@pytest.mark.parametrize(
    "value",
    [b"a\r\nx-b: c", b"a\nx-b: c", b"a\rx-b: c", b"\r\n\r\nbody", b"a\0", b"\n\r", b"a\n\rb"],
)
def test_a_value_that_would_make_another_header_is_refused(name, value):
    for headers in [[(name, value)], [(b"a", b"b"), (name, value), (b"Date", b"c")]]:
        with pytest.raises(ValueError, match="can't be sent") as caught:
            encoded(200, headers, b"\r\ntransfer-encoding: chunked")
        assert repr(name) in str(caught.value)


def test_two_values_that_make_up_for_each_other_are_refused():
    with pytest.raises(ValueError, match="can't be sent"):
        encoded(200, [(b"a", b"b\r"), (b"c", b"d\n")])


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"a\r\nb", b"a\n", b"\xe9", b"a\0", b"(a)"])
def test_a_name_that_is_no_token_is_refused(name):
    with pytest.raises(ValueError, match="can't be sent"):
        encoded(200, [(name, b"a")])


@pytest.mark.parametrize("name", [b"content-length", b"Content-Length"])
def test_the_length_is_read_and_must_be_one(name):
    assert answer_head(200, [(name, b"12")])[1] == 12
    assert name + b": 12\r\n" in encoded(200, [(name, b"12")])
    for value in (b"", b"+1", b"-1", b"1 ", b"1_0", b"a", b"\xb2", b"1\r\nx: y"):
        with pytest.raises(ValueError, match="can't be sent"):
            encoded(200, [(name, value)])


def test_two_lengths_are_refused():
    """A client, or a proxy, might take the other one."""
    with pytest.raises(ValueError, match="content-length"):
        encoded(200, [(b"content-length", b"1"), (b"content-length", b"2")])


@pytest.mark.parametrize("name", [b"transfer-encoding", b"Transfer-Encoding", b"connection"])
def test_the_server_decides_on_the_framing_and_the_connection(name):
    assert encoded(200, [(name, b"chunked")]) == encoded(200, [])


@pytest.mark.parametrize(("value", "closes"), [(b"close", True), (b"Close", True), (b"a", False)])
def test_an_application_may_close_the_connection(value, closes):
    assert answer_head(200, [(b"Connection", value)])[2] == closes


def test_an_answer_without_content_says_no_length_but_one_that_is_not_modified_may():
    for name in (b"content-length", b"Content-Length"):
        assert b"ength" not in encoded(204, [(name, b"0")])
        assert b"ength: 5\r\n" in encoded(304, [(name, b"5")])


def test_a_refusal_says_why_and_ends_the_connection():
    problem = b"""{"type": "about:blank", "title": "Request Header Fields Too Large", \
"status": 431, "detail": "too \\"long\\""}"""
    assert error_answer(431, BadRequest(431, 'too "long"').body) == (
        b"HTTP/1.1 431 Request Header Fields Too Large" + DATE + b"\r\n"
        b"content-type: application/problem+json\r\n"
        b"content-length: %d\r\nconnection: close\r\n\r\n" % len(problem) + problem
    )
    assert b"\r\ncontent-length: 0\r\n" in error_answer(500)
