"""Sends requests to a server at a steady rate, and prints how many were answered a second."""

from __future__ import annotations

import sys
import time
from typing import Final

import anyio

CONNECTIONS: Final = 16
REQUEST: Final = (
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 1\r\n\r\n1"
)


async def _send(port: int, rate: float, until: float, answered: list[int]) -> None:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        at = time.monotonic()
        while at < until:
            await anyio.sleep(max(0.0, at - time.monotonic()))
            due = 1 + max(0, int((time.monotonic() - at) * rate))
            at += due / rate
            await stream.send(REQUEST * due)
            while due > 0:
                came = (await stream.receive()).count(b"HTTP/1.1 200")
                due -= came
                answered[0] += came


async def _main(url: str, rate: float, seconds: float) -> None:
    port = int(url.rstrip("/").rpartition(":")[2])
    answered = [0]
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for _ in range(CONNECTIONS):
            tasks.start_soon(_send, port, rate / CONNECTIONS, began + 1.2 * seconds, answered)
    print(answered[0] / (time.monotonic() - began))


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
