#!/usr/bin/env python3
"""GraphQL requests with a loader each: `shoal.Loader` beside aiodataloader, on one schema.

    python benchmarks/loaders.py [--requests 20] [--query-ms 2] [--connections 5] [--rounds 30]

Both run the requests of a round at once, in one event loop of asyncio, and query the same database
in threads, by a pool of connections. aiodataloader groups the items of one request; Shoal those of
all requests.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from aiodataloader import DataLoader

import shoal
from examples.graphql import app as example

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED = "query($id: Int!) { book(id: $id) { title author { name publisher { name } } } }"
CALLS = {"books": "book", "authors": "author", "publishers": "publisher"}


class Database:
    """The tables of the example; each query takes a time and a connection, as over a network."""

    def __init__(self, query_s: float, connections: int) -> None:
        self.queries = 0
        self._query_s = query_s
        self._connections = threading.Semaphore(connections)
        self._rows = example.rows

    def rows(self, table: str, ids: list[int]) -> list[Any]:
        with self._connections:
            self.queries += 1
            time.sleep(self._query_s)
            return self._rows(table, ids)

    def of_aiodataloader(self) -> dict[str, Any]:
        async def load(table: str, ids: list[int]) -> list[Any]:
            return await asyncio.to_thread(self.rows, table, ids)

        return {name: DataLoader(partial(load, table)) for name, table in CALLS.items()}


async def milliseconds(requests: int, context: Callable[[], dict[str, Any]], rounds: int) -> float:
    """The median time in which all requests of a round are answered."""
    took: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        asked = [
            example.schema.execute(
                ASKED, variable_values={"id": number % 99 + 1}, context_value=context()
            )
            for number in range(requests)
        ]
        answers = await asyncio.gather(*asked)
        assert not any(answer.errors for answer in answers)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


async def main(requests: int, query_ms: float, connections: int, rounds: int) -> None:
    database = Database(query_ms / 1e3, connections)
    example.rows = database.rows
    calls = example.books, example.authors, example.publishers
    contexts: dict[str, Callable[[], dict[str, Any]]] = {
        "aiodataloader": database.of_aiodataloader,
        "shoal.Loader": example.loaders,
    }
    print(
        f"{requests} requests at once, queries of {query_ms:g} ms, {connections} connections, "
        f"{rounds} rounds"
    )
    async with shoal.open_batchers(*calls):
        for name, context in contexts.items():
            await milliseconds(requests, context, 3)
            database.queries = 0
            took_ms = await milliseconds(requests, context, rounds)
            print(f"{name:14} {database.queries / rounds:5.1f} queries {took_ms:7.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--query-ms", type=float, default=2)
    parser.add_argument("--connections", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    asyncio.run(main(given.requests, given.query_ms, given.connections, given.rounds))
