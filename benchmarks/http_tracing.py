#!/usr/bin/env python3
"""What tracing costs a request: off, with a trace that is not sampled, and with one that is.

The path of a request without a socket, as in http_path.py, 64 at once. The ways take turns, and the
quickest round of each counts. Spans are made and dropped: exporting them happens in a thread.

    python benchmarks/http_tracing.py [--rounds 200] [--event-loop asyncio]
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

import anyio

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from opentelemetry.sdk.trace import TracerProvider

import shoal
from benchmarks.http_path import CONNECTIONS, path_to
from shoal.observe import instrument

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD = b"POST /noop HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_BODY = b'Content-Length: 12\r\n\r\n{"value": 3}'
_TRACE = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0%d\r\n"
REQUESTS: Mapping[str, bytes] = {
    "off": _HEAD + _TRACE % 1 + _BODY,
    "not sampled": _HEAD + _TRACE % 0 + _BODY,
    "sampled": _HEAD + _TRACE % 1 + _BODY,
}


def app_of(way: str) -> shoal.App:
    app = shoal.App()

    @app.endpoint("/noop", max_batch_size=64)
    async def noop(items: list[dict[str, int]]) -> list[dict[str, int]]:
        return items

    if way != "off":
        instrument(app, tracer_provider=TracerProvider())
    return app


async def measure(rounds: int) -> dict[str, float]:
    """Returns the processor time of a request in each way, in microseconds."""
    least = dict.fromkeys(REQUESTS, float("inf"))
    async with AsyncExitStack() as stack:
        paths = {way: await stack.enter_async_context(path_to(app_of(way))) for way in REQUESTS}
        for _ in range(rounds):
            for way, path in paths.items():
                began = process_time()
                await path.ask(REQUESTS[way])
                least[way] = min(least[way], process_time() - began)
    return {way: took_s / CONNECTIONS * 1e6 for way, took_s in least.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of tracing, for a request.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--event-loop", choices=("trio", "asyncio"), default="trio")
    given = parser.parse_args()
    found = anyio.run(measure, given.rounds, backend=given.event_loop)
    for way, took in found.items():
        print(f"{took:7.1f} us  {way}")


if __name__ == "__main__":
    main()
