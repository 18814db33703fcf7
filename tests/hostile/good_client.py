"""A client that does all right: it asks for checksums, and checks them.

In a process of its own it asks all the time, so that a hostile client that is busy does not slow
what it measures: ``python good_client.py PORT PID`` asks until its standard input ends.
"""

import json
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from agreed import HANG_S, checksum
from hostile_server import HostileServer

EVERY_S = 0.005


def request(path: str, item: object, *headers: str) -> bytes:
    """A request as a client sends it that keeps its connection."""
    body = json.dumps(item)
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", body]).encode()


class GoodClient:
    """A connection on which requests are made one after another.

    It connects again when the server has closed the connection between two requests.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._number = 0
        self._began = 0.0
        self._received = b""

    def ask(self) -> float:
        """Makes a request; returns how long it took, in seconds.

        Raises:
            OSError: It was not answered.
            AssertionError: It was answered wrong.
        """
        had_one = self._socket is not None
        self.begin()
        took_s = self._wait(10.0)
        if took_s is None and had_one and not self._received:  # closed between two requests
            self.close()
            self.begin()
            took_s = self._wait(10.0)
        if took_s is None:
            raise ConnectionError("a good client's request was not answered")
        return took_s

    def begin(self) -> None:
        self._number += 1
        self._began = time.monotonic()
        self._received = b""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=HANG_S)
        try:
            self._socket.sendall(request("/sum", f"good {self._number}"))
        except OSError:
            self.close()

    def answered_after_s(self, wait_s: float = 0.0) -> float | None:
        """How long the request took that was begun; None if it has not been answered yet."""
        return self._wait(wait_s)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _wait(self, wait_s: float) -> float | None:
        """Reads until the answer is there; None if it is not in time, or does not come."""
        until = time.monotonic() + wait_s
        expected = str(checksum(f"good {self._number}")).encode()
        while not (self._received.startswith(b"HTTP/1.1 200 ") and self._is_whole()):
            if self._socket is None:
                return None
            left_s = max(0.0, until - time.monotonic())
            if not select.select([self._socket], [], [], left_s)[0]:
                return None
            try:
                data = self._socket.recv(2**16)
            except OSError:
                data = b""
            if not data:
                self.close()
                return None
            self._received += data
        assert self._received.endswith(b"\r\n\r\n" + expected), self._received
        return time.monotonic() - self._began

    def _is_whole(self) -> bool:
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = next(
            (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")),
            b"content-length: 0",
        )
        return bool(end) and len(body) == int(length.partition(b":")[2])


@dataclass
class Asked:
    """What a good client measured."""

    times_s: list[float] = field(default_factory=list)
    most_memory: int = 0
    failure: str = ""


class AskingMeanwhile:
    """A good client in a process of its own, which asks until the block ends."""

    def __init__(self, server: HostileServer) -> None:
        self._command = [sys.executable, __file__, str(server.port), str(server.serving_pid())]
        self.asked = Asked()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "asking\n"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            out, _error = self._process.communicate(timeout=HANG_S)
        except BaseException:
            self._process.kill()
            raise
        self.asked = Asked(**json.loads(out))


def ask_until_told(port: int, pid: int) -> Asked:
    """Asks all the time until the standard input ends, and at least once."""
    found = Asked()
    status = Path(f"/proc/{pid}/statm")
    client = GoodClient(port)
    try:
        client.ask()
        print("asking", flush=True)
        is_told: list[object] = []
        while not is_told:
            found.times_s.append(client.ask())
            found.most_memory = max(found.most_memory, int(status.read_text().split()[1]) * 4096)
            is_told = select.select([sys.stdin], [], [], EVERY_S)[0]
    except (OSError, AssertionError) as error:
        found.failure = repr(error)
    return found


if __name__ == "__main__":
    print(json.dumps(vars(ask_until_told(int(sys.argv[1]), int(sys.argv[2])))))
