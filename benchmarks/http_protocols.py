#!/usr/bin/env python3
"""The cost of a request in each protocol, beside that of the same item in Shoal's own JSON.

Counts the bytecodes of a request, and measures its CPU time, without a socket, as http_path.py
does. The rounds of the protocols alternate, and the quickest of each counts.

    python benchmarks/http_protocols.py [--event-loop asyncio]
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import orjson

import shoal
from benchmarks.http_path import CONNECTIONS, ROUNDS_BEFORE, counted, path_to
from shoal.commands.server.process import collect_less_often, skip_what_was_loaded

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUNDS: Final = 200
SIZES: Final = (1, 16, 256)


async def same(vector: list[list[float]]) -> list[list[float]]:
    """Returns the items."""
    return vector


app: Final = shoal.App(protocols=["oip"])
app.endpoint("/same", name="same", max_batch_size=CONNECTIONS)(same)


def request(path: str, body: bytes, *headers: bytes) -> bytes:
    """Returns a request with a body."""
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
    fields = b"".join([header + b"\r\n" for header in headers])
    return head % (path.encode(), len(body)) + fields + b"\r\n" + body


def requests(size: int) -> Mapping[str, bytes]:
    """Returns the requests with a vector of some size, by protocol."""
    vector = [n + 0.5 for n in range(size)]
    tensor: dict[str, Any] = {"name": "vector", "shape": [1, size], "datatype": "FP64"}
    data = struct.pack(f"<{size}d", *vector)
    described = {**tensor, "parameters": {"binary_data_size": len(data)}}
    head = orjson.dumps({"inputs": [described], "parameters": {"binary_data_output": True}})
    json = b"Content-Type: application/json"
    infer = "/v2/models/same/infer"
    return {
        "JSON": request("/same", orjson.dumps(vector), json),
        "OIP, JSON": request(infer, orjson.dumps({"inputs": [{**tensor, "data": vector}]}), json),
        "OIP, binary": request(
            infer, head + data, b"Inference-Header-Content-Length: %d" % len(head)
        ),
    }


async def times(size: int) -> dict[str, float]:
    """Returns the CPU time of a request in each protocol, in seconds."""
    found: dict[str, float] = {}
    async with path_to(app) as path:
        collect_less_often()  # as `shoal serve` does
        skip_what_was_loaded()
        for number in range(ROUNDS_BEFORE + ROUNDS):
            for name, sent in requests(size).items():
                await path.ask(sent)  # as CPython adapts its code to what ran last
                started = time.process_time()
                await path.ask(sent)
                took = (time.process_time() - started) / CONNECTIONS
                if number >= ROUNDS_BEFORE:
                    found[name] = min(took, found.get(name, took))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of a request in each protocol.")
    parser.add_argument("--event-loop", choices=("trio", "asyncio"), default="trio")
    run = partial(anyio.run, backend=parser.parse_args().event_loop)
    for size in SIZES:
        print(f"\na vector of {size} floats")
        took = run(times, size)
        counts = {n: sum(run(counted, app, r).values()) for n, r in requests(size).items()}
        for name, count in counts.items():
            print(
                f"{name:<12} {count / CONNECTIONS:7,.0f} bytecodes ({count / counts['JSON']:.2f})"
                f" {took[name] * 1e6:7.1f} us ({took[name] / took['JSON']:.2f})"
            )


if __name__ == "__main__":
    main()
