"""Many requests with a checksum of each in its answer: none wrong, none lost, the memory flat."""

import itertools
import json
import random
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio
from agreed import HANG_S, checksum
from good_client import request
from hostile_server import MIB, HostileServer
from protocol_clients import Answer, Http1Client, Http2Client, Lost, WebSocketClient

T = TypeVar("T")

# How many clients there are of each kind; what a pipelining or an HTTP/2 client asks at once.
CLIENTS: Final = {"kept": 16, "pipelined": 8, "fresh": 2, "http2": 2, "websocket": 4}
AT_ONCE: Final = 8
MOST_SHOWN: Final = 20
MOST_MEMORY: Final = 8 * MIB


@dataclass
class Checked:
    """What became of requests whose answers were checked."""

    asked: int
    answered: int = 0
    took_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    grown: int = 0

    def flaws(self) -> list[str]:
        missing = self.asked - self.answered
        checks = {
            f"{missing} of {self.asked} answers did not come": missing,
            f"{len(self.wrong)} answers were wrong: {self.wrong[:3]}": self.wrong,
            f"requests without an answer: {self.lost[:3]}": self.lost,
            f"the memory grew by {self.grown / MIB:.1f} MiB in the second half": (
                self.grown > MOST_MEMORY
            ),
        }
        return [flaw for flaw, is_so in checks.items() if is_so]


class _Checks:
    """Clients that ask until all requests have been made."""

    def __init__(self, server: HostileServer, count: int, seed: int) -> None:
        self.found = Checked(count)
        self._server = server
        self._port = server.port
        self._half = count // 2
        self._texts = self._new_texts(count, seed)
        self._memory = 0

    def _new_texts(self, count: int, seed: int) -> Iterator[str]:
        rng = random.Random(seed)
        filling = "".join(rng.choices("abcdefghij", k=4000))
        return (f"{number} {filling[: rng.randrange(10, 2000)]}" for number in range(count))

    async def run(self, kinds: tuple[str, ...]) -> None:
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            for kind in kinds:
                for _ in range(CLIENTS[kind]):
                    nursery.start_soon(getattr(self, f"_{kind}"))
        self.found.took_s = time.monotonic() - began
        if self._memory:
            self.found.grown = self._server.memory() - self._memory

    def _take(self, at_most: int) -> list[str]:
        return list(itertools.islice(self._texts, at_most))

    def _note(self, text: str, answer: Answer | Lost | str | None) -> None:
        found = self.found
        if isinstance(answer, Answer) and answer.status:
            is_right = answer.status == 200 and json.loads(answer.body) == checksum(text)
        elif isinstance(answer, str):
            is_right = answer == str(checksum(text))
        else:
            if len(found.lost) < MOST_SHOWN:
                found.lost.append(f"{text[:20]!r}: {answer}")
            return
        found.answered += 1
        if not is_right and len(found.wrong) < MOST_SHOWN:
            found.wrong.append(f"{text[:20]!r}: {answer}")
        if found.answered == self._half:
            self._memory = self._server.memory()

    async def _kept(self) -> None:
        """Asks again and again on a connection."""
        client = await Http1Client.to(self._port)
        for text in self._texts:
            answer = await self._or_lost(client.ask(request("/sum", text)))
            self._note(text, answer)
            if isinstance(answer, Lost) or answer.is_last:
                await client.aclose()
                client = await Http1Client.to(self._port)
        await client.aclose()

    async def _pipelined(self) -> None:
        """Asks several things at once on a connection, again and again; gives up at a loss."""
        client = await Http1Client.to(self._port)
        is_lost = False
        while not is_lost and (texts := self._take(AT_ONCE)):
            await client.send(b"".join(request("/sum", text) for text in texts))
            for text in texts:
                answer = await self._or_lost(client.answer())
                self._note(text, answer)
                if is_lost := isinstance(answer, Lost):
                    break
        await client.aclose()

    async def _fresh(self) -> None:
        for text in self._texts:
            client = await Http1Client.to(self._port)
            self._note(
                text, await self._or_lost(client.ask(request("/sum", text, "Connection: close")))
            )
            await client.aclose()

    async def _http2(self) -> None:
        """Asks several things at once over HTTP/2, again and again."""
        client = await Http2Client.to(self._port)
        while texts := self._take(AT_ONCE):
            answers = await self._or_lost(client.ask([("/sum", text) for text in texts]))
            if isinstance(answers, Lost):
                answers = [answers] * len(texts)
            for text, answer in zip(texts, answers, strict=True):
                self._note(text, answer)
            if client.is_going_away or any(isinstance(answer, Lost) for answer in answers):
                await client.aclose()
                client = await Http2Client.to(self._port)
        await client.aclose()

    async def _websocket(self) -> None:
        """Asks again and again on a WebSocket."""
        client = await WebSocketClient.to(self._port, "/raw/sum")
        for text in self._texts:
            answer = await self._or_lost(client.ask(text))
            self._note(text, answer)
            if not isinstance(answer, str):
                await client.aclose()
                client = await WebSocketClient.to(self._port, "/raw/sum")
        await client.aclose()

    async def _or_lost(self, asking: Awaitable[T]) -> T | Lost:
        """What a request came to; that it was lost, if it was, or if nothing came in time."""
        with trio.move_on_after(HANG_S):
            try:
                return await asking
            except Lost as lost:
                return lost
        return Lost(f"no answer in {HANG_S} s".encode())


def run_checksums(
    server: HostileServer, count: int, *, seed: int = 0, kinds: tuple[str, ...] = tuple(CLIENTS)
) -> Checked:
    checks = _Checks(server, count, seed)
    trio.run(checks.run, kinds)
    return checks.found
