#!/usr/bin/env python3
"""The path of a request through the server, the application and the batcher, in bytecodes.

Counts the bytecodes that Python runs for one request, without a socket, by the part of the path. A
count is the same on each machine and at each time, so it shows what a change costs where times
vary by a third. 64 connections ask at once, as in http.py.

    python benchmarks/http_path.py [--event-loop asyncio] [--functions] [--access-log]
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import anyio.lowlevel

from benchmarks.http_app import noop_app
from shoal.asgi.headers import RequestGuard
from shoal.asgi.http_options import HttpOptions
from shoal.loops.this_loop import parking_of_this_loop
from shoal.loops.timers import LoopTimers
from shoal.server.http1.connection import Http1Connection
from shoal.server.shared import Shared

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import FrameType

    from shoal import App

CONNECTIONS: Final = 64
REQUEST: Final = (
    b"POST /noop HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 12\r\n\r\n"
    b'{"value": 3}'
)
ROUNDS_BEFORE: Final = 5

# Each part of the path, why it is there, and the modules that it consists of.
PARTS: Final[Sequence[tuple[str, str, tuple[str, ...]]]] = (
    (
        "head",
        "llhttp parses it; the checks against smuggling, one header at a time",
        ("http1/head.py",),
    ),
    (
        "connection",
        "its task, the request's part of ASGI, the bytes of the head, and the deadline",
        (
            "http1/connection.py",
            "http1/call.py",
            "server/served_call.py",
            "server/timeouts.py",
            "server/shared.py",
        ),
    ),
    (
        "routing",
        "finds the endpoint by path and method, and the backend by its traffic",
        (
            *("app/app.py", "app/router.py", "requests/dispatch.py"),
            *("serving/endpoint.py", "backends/method_batcher.py"),
            *("batching/batcher.py", "failures/held.py"),
        ),
    ),
    (
        "exchange",
        "what is read of the request; its id, its counts, and the response",
        (*("requests/exchange.py", "json/endpoint.py", "requests/call.py"),),
    ),
    (
        "JSON",
        "its media type and size are checked; pydantic reads it, orjson writes it",
        (
            *("json/payload.py", "json/validation.py", "json/scan.py"),
            *("requests/plain.py", "json/queries.py"),
        ),
    ),
    (
        "batcher",
        "the request, its deadline, the queue, the batch, the handler, the wake-up",
        ("batching/", "core/", "serving/", "replicas/", "shoal/loops/"),
    ),
)


class Client:
    """A socket whose client takes all that is sent to it."""

    peer = name = ("127.0.0.1", 80)
    unsent = b""
    is_paused = False

    def start(self) -> None:
        pass

    pause = resume = end_sending = close = abort = start

    def send(self, _data: bytes) -> bool:
        return True

    def has_unread(self) -> bool:
        return False


class RequestPath:
    """The path of the requests of many connections to an application, without sockets.

    Args:
        shared: What the server's connections share.
    """

    def __init__(self, shared: Shared) -> None:
        nothing: Any = None
        self._shared = shared
        self._connections = [
            Http1Connection(shared, Client(), lambda: None, nothing)  # type: ignore[arg-type]
            for _ in range(CONNECTIONS)
        ]
        for connection in self._connections:
            connection.start()

    async def ask(self, request: bytes) -> None:
        """Sends a request on each connection, and waits until all are answered."""
        asked = self._shared.calls_finished + CONNECTIONS
        for connection in self._connections:
            connection.data_received(request)
        while self._shared.calls_finished < asked:
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def path_to(app: App, options: HttpOptions | None = None) -> AsyncGenerator[RequestPath]:
    """Opens an application, and the path to it."""
    async with app.lifespan(), anyio.create_task_group() as tasks:
        parking = parking_of_this_loop()
        timeouts = LoopTimers(parking)
        tasks.start_soon(timeouts.run)
        options = options or HttpOptions()
        guard = RequestGuard(options, ("0.0.0.0", 80))
        yield RequestPath(Shared(app, options, {}, parking, timeouts, tasks, "http", guard))
        tasks.cancel_scope.cancel()


async def counted(
    app: App, request: bytes, options: HttpOptions | None = None
) -> Counter[tuple[str, str]]:
    """Returns the bytecodes of a round, by file and function."""
    found: Counter[tuple[str, str]] = Counter()

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            found[frame.f_code.co_filename, frame.f_code.co_name] += 1
        return trace

    async with path_to(app, options) as path:
        for _ in range(ROUNDS_BEFORE):
            await path.ask(request)
        sys.settrace(trace)
        try:
            await path.ask(request)
        finally:
            sys.settrace(None)
    return found


def part_of(file: str) -> str:
    """Returns the name of the part that a file is of."""
    for name, _, modules in PARTS:
        if any(module in file for module in modules) and "site-packages" not in file:
            return name
    return "event loop"


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytecodes of a request, by the part of its path.")
    parser.add_argument("--event-loop", choices=("trio", "asyncio"), default="trio")
    parser.add_argument("--functions", action="store_true", help="list the functions as well")
    parser.add_argument("--access-log", action="store_true", help="enable the access log")
    given = parser.parse_args()
    options = HttpOptions(access_log=given.access_log)
    if given.access_log:
        logging.getLogger("shoal.access").addHandler(logging.NullHandler())
        logging.getLogger("shoal.access").setLevel(logging.INFO)
    found = anyio.run(counted, noop_app, REQUEST, options, backend=given.event_loop)
    found = Counter({where: n for where, n in found.items() if where[0] != __file__})
    by_part: Counter[str] = Counter()
    for (file, _), number in found.items():
        by_part[part_of(file)] += number
    total = sum(by_part.values())
    print(f"bytecodes for a request, {CONNECTIONS} at once, on {given.event_loop}\n")
    reasons = {name: why for name, why, _ in PARTS} | {"event loop": "tasks, shared by many"}
    for name, why in reasons.items():
        print(f"{by_part[name] / CONNECTIONS:7,.0f}  {name:<11} {why}")
    print(f"{total / CONNECTIONS:7,.0f}  in all")
    if given.functions:
        print()
        for (file, function), number in found.most_common(80):
            print(f"{number / CONNECTIONS:7,.1f}  {'/'.join(Path(file).parts[-2:])}: {function}")


if __name__ == "__main__":
    main()
