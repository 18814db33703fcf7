"""Overload: requests arrive at a fixed rate, whether or not earlier ones were answered.

A closed loop of clients slows down with the server, and so never overloads it. Here each request
has its time, on a connection of its own or on a kept one, and is sent at that time.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import trio
from agreed import checksum
from good_client import request
from held_places import percentile
from hostile_app import CAPACITY, MOST_QUEUED
from hostile_server import MIB, HostileServer
from protocol_clients import Answer, Http1Client, Lost

# A kept connection that has been idle for longer is not used again: the server may be closing it.
FRESH_S: Final = 0.5
ANSWER_S: Final = 30.0
REFUSED: Final = (429, 503)
# How long an accepted request may wait in the queue, beyond its own time.
WAIT_S: Final = (MOST_QUEUED + 1) / CAPACITY
MOST_MEMORY: Final = 20 * MIB


@dataclass
class Overload:
    """What became of requests that arrived at a rate."""

    accepted_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    without_retry_after: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[bytes] = field(default_factory=list)
    grown: int = 0

    def p99_s(self) -> float:
        return percentile(self.accepted_s, 99)

    def flaws(self) -> list[str]:
        others = {code: n for code, n in self.statuses.items() if code not in (200, *REFUSED)}
        checks = {
            f"{len(self.lost)} requests had no answer: {self.lost[:5]}": self.lost,
            f"{len(self.wrong)} answers were wrong: {self.wrong[:5]}": self.wrong,
            f"answers with other statuses: {others}": others,
            f"{self.without_retry_after} refusals without Retry-After": self.without_retry_after,
            f"the memory grew by {self.grown / MIB:.1f} MiB": self.grown > MOST_MEMORY,
        }
        return [flaw for flaw, is_so in checks.items() if is_so]


class _Arrivals:
    def __init__(self, server: HostileServer, path: str) -> None:
        self.found = Overload()
        self._server = server
        self._path = path
        # Those used last come first.
        self._kept: list[tuple[float, Http1Client]] = []

    async def run(self, count: int, rate: float) -> None:
        began = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    await trio.sleep_until(began + number / rate)
                    nursery.start_soon(self._ask, number)
        finally:
            for _, client in self._kept:
                await client.aclose()

    async def _ask(self, number: int) -> None:
        text = f"request {number}"
        is_kept = number % 2 == 0
        began = trio.current_time()
        client = self._free() if is_kept else None
        how = "fresh connection" if client is None else "kept connection"
        try:
            if client is None:
                client = await Http1Client.to(self._server.port)
            with trio.fail_after(ANSWER_S):
                answer = await client.ask(request(self._path, text))
        except (Lost, trio.TooSlowError, OSError) as error:
            self.found.lost.append(f"{number} on a {how}: {error}")
            if client is not None:
                await client.aclose()
            return
        self._note(answer, text, trio.current_time() - began)
        if is_kept and not answer.is_last:
            self._kept.append((trio.current_time(), client))
        else:
            await client.aclose()

    def _free(self) -> Http1Client | None:
        while self._kept:
            used_at, client = self._kept.pop()
            if used_at > trio.current_time() - FRESH_S:
                return client
            client.stream.socket.close()
        return None

    def _note(self, answer: Answer, text: str, took_s: float) -> None:
        found = self.found
        found.statuses[answer.status] += 1
        if answer.status == 200:
            found.accepted_s.append(took_s)
            if json.loads(answer.body) != checksum(text):
                found.wrong.append(answer.body)
        else:
            found.refused_s.append(took_s)
            found.without_retry_after += b"retry-after" not in answer.headers


def run_overload(
    server: HostileServer, count: int, *, path: str = "/slow", times_capacity: float = 3.0
) -> Overload:
    """Has requests arrive at a multiple of the rate that a path can answer."""
    memory = server.memory()
    arrivals = _Arrivals(server, path)
    trio.run(arrivals.run, count, times_capacity * CAPACITY)
    arrivals.found.grown = server.memory() - memory
    return arrivals.found


async def _ask_while_blocked(server: HostileServer, clients: int, hold_s: float) -> list[str]:
    """Has clients send while the event loop is held; returns what was not answered."""
    lost: list[str] = []
    kept = [await Http1Client.to(server.port) for _ in range(clients)]
    for client in kept:
        await client.ask(request("/sum", "before"))

    async def ask(client: Http1Client, how: str) -> None:
        try:
            answer = await client.ask(request("/sum", "meanwhile"))
            if json.loads(answer.body) != checksum("meanwhile"):
                lost.append(f"{how}: {answer}")
        except (Lost, OSError) as error:
            lost.append(f"{how}: {error}")
        await client.aclose()

    blocker = await Http1Client.to(server.port)
    await blocker.send(request(f"/raw/block?{int(hold_s * 1000)}", None))
    await trio.sleep(hold_s / 4)
    async with trio.open_nursery() as nursery:
        for client in kept:
            nursery.start_soon(ask, client, "kept connection")
        for _ in range(clients):
            fresh = await Http1Client.to(server.port)
            nursery.start_soon(ask, fresh, "fresh connection")
    await blocker.aclose()
    return lost


def ask_while_blocked(server: HostileServer, clients: int, hold_s: float) -> list[str]:
    """Sends requests while the event loop is held; returns which of them were not answered."""
    return trio.run(_ask_while_blocked, server, clients, hold_s)
