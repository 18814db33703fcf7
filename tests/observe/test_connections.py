"""The connections and bytes of a server's sockets, as the kernel counts them."""

import socket
import sys

import pytest

from shoal.asgi import extensions
from shoal.asgi.extensions import ConnectionCounts


@pytest.fixture
def pair():
    """A TCP connection: the server's end and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with client, accepted:
            yield accepted, client


def exchange(pair, received, sent):
    ours, theirs = pair
    theirs.sendall(b"x" * received)
    while received:
        received -= len(ours.recv(received))
    ours.sendall(b"x" * sent)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the bytes of a connection")
def test_bytes_are_counted_while_a_connection_is_open_and_after(pair):
    counts = ConnectionCounts(7)
    assert counts.totals() == (7, 0, 0, None, None)
    counts.opened(pair[0])
    exchange(pair, 1000, 300)
    assert counts.totals() == (7, 1, 1, 1000, 300)
    exchange(pair, 10, 0)
    for _ in range(2):
        counts.closing(pair[0])
        assert counts.totals() == (7, 0, 1, 1010, 300)


@pytest.mark.parametrize("kind", ["a UNIX socket", "another system", "an old kernel"])
def test_where_the_kernel_does_not_tell_the_bytes_there_are_none(pair, kind, monkeypatch):
    ours, theirs = socket.socketpair() if kind == "a UNIX socket" else pair
    if kind == "another system":
        monkeypatch.setattr(extensions, "_TCP_INFO", None)
    elif kind == "an old kernel":
        monkeypatch.setattr(extensions, "_SIZE", 100_000)
    with ours, theirs:
        counts = ConnectionCounts(7)
        counts.opened(ours)
        exchange((ours, theirs), 10, 10)
        assert counts.totals() == (7, 1, 1, None, None)
        counts.closing(ours)
    assert counts.totals() == (7, 0, 1, None, None)


def test_a_broken_connection_counts_as_well(pair):
    counts = ConnectionCounts(7)
    counts.opened(pair[0])
    pair[0].close()
    assert counts.totals()[:3] == (7, 1, 1)
    counts.closing(pair[0])
    assert counts.totals()[:3] == (7, 0, 1)
