#!/usr/bin/env python3
"""What a request costs the server on a WebSocket and over HTTP, for the same item.

Prints the CPU time of the server's process for a request, user and system, of 64 requests at once:
over HTTP on 64 connections, on 64 WebSockets with one each, on 8 with 8 each, and on one with 64.
The connections are open before. The rounds of the four alternate, and the median of each is shown.

    python benchmarks/websocket.py [--event-loop asyncio] [--rounds 9]
"""

from __future__ import annotations

import argparse
import select
import socket
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AT_ONCE: Final = 64
REQUESTS: Final = 200 * AT_ONCE
ITEM: Final = b'{"value": 3}'
HTTP: Final = (
    b"POST /noop HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(ITEM), ITEM)
)
UPGRADE: Final = (
    b"GET /noop HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: shoal.v1\r\n\r\n"
)
MASK: Final = b"\x25\x71\x0c\xd3"


def framed(text: bytes) -> bytes:
    """Returns a client's message as a frame."""
    assert len(text) < 126
    masked = bytes(each ^ MASK[at % 4] for at, each in enumerate(text))
    return bytes((0x81, 0x80 | len(text))) + MASK + masked


def answers_http(received: bytes) -> int:
    """Returns how many answers are complete."""
    return received.count(b"\r\n\r\n")


def answers_websocket(received: bytes) -> int:
    """Returns how many answers have begun."""
    return received.count(b'"result"')


def run(port: int, connections: int, kind: str, requests: int, cpu_s: Callable[[], float]) -> float:
    """Makes requests, always as many at once; returns the CPU time that they took."""
    each = AT_ONCE // connections
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    poll = select.epoll()
    by_number = {one.fileno(): one for one in sockets}
    if kind == "websocket":
        for one in sockets:
            one.sendall(UPGRADE)
            answer = one.recv(2**16)
            assert answer.startswith(b"HTTP/1.1 101"), answer
        messages = [framed(b'{"id":%d,"item":%b}' % (number, ITEM)) for number in range(1000)]
        count: Callable[[bytes], int] = answers_websocket
    else:
        messages = [HTTP] * 1000
        count = answers_http
    sent = ended = 0

    def ask(one: socket.socket, number: int) -> None:
        nonlocal sent
        one.sendall(b"".join(messages[(sent + more) % 1000] for more in range(number)))
        sent += number

    for one in sockets:
        poll.register(one, select.EPOLLIN)
        ask(one, each)
    before: float | None = None
    while ended < requests + AT_ONCE:
        for number, _ in poll.poll():
            one = by_number[number]
            more = count(one.recv(2**16))
            ended += more
            if more and sent < requests + AT_ONCE:
                ask(one, more)
        if before is None and ended >= AT_ONCE:
            before = cpu_s()
    assert before is not None
    took_s = cpu_s() - before
    for one in sockets:
        one.close()
    return took_s


def cpu_s(pid: int) -> float:
    """Returns the CPU time of a process, in seconds."""
    words = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(words[0]) / 1e9


def measured(event_loop: str, rounds: int) -> dict[str, float]:
    """Returns the microseconds of CPU time for a request of each kind."""
    command = ("-m", "shoal", "serve", "--port", "0", "--event-loop", event_loop)
    found: dict[str, list[float]] = {}
    kinds: Sequence[tuple[str, str, int]] = (
        ("HTTP, 64 connections", "http", 64),
        ("64 WebSockets", "websocket", 64),
        ("8 WebSockets", "websocket", 8),
        ("1 WebSocket", "websocket", 1),
    )
    with subprocess.Popen(
        [sys.executable, *command, "benchmarks.http_app:noop_app"],
        cwd=Path(__file__).parents[1],
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            started = next(line for line in server.stderr if line.startswith("Shoal serving "))
            port = int(started.rpartition(":")[2])
            for number in range(rounds + 1):
                for name, kind, connections in kinds:
                    took_s = run(port, connections, kind, REQUESTS, partial(cpu_s, server.pid))
                    if number:  # the first round warms up
                        found.setdefault(name, []).append(took_s / REQUESTS * 1e6)
        finally:
            server.terminate()
    return {name: statistics.median(each) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="The CPU time of a request on a WebSocket.")
    parser.add_argument("--event-loop", choices=("trio", "asyncio"), default="trio")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    found = measured(given.event_loop, given.rounds)
    base = next(iter(found.values()))
    for name, took in found.items():
        print(f"{name:<22} {took:7.1f} us a request  {took / base:5.2f}")


if __name__ == "__main__":
    main()
