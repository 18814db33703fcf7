"""Signals at random moments of a load on all protocols: what became of each request.

Each request has a name, and the application tells at its end which names it began. So a request
that the server took and did not answer is seen, and not taken for one that came too late.
"""

import json
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio
from agreed import HANG_S, checksum
from good_client import request
from hostile_server import HostileServer
from protocol_clients import Answer, Http1Client, Http2Client, Lost, WebSocketClient

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
JSON_LINES: Final = "Accept: application/x-ndjson"
STEPS: Final = 4
# What a client of each kind does, and how many there are.
CLIENTS: Final = {"kept": 3, "fresh": 2, "streams": 3, "http2": 2, "websocket": 2}

# A request was answered; its client was told that it ended early, or that it was not served.
ANSWERED, CUT_OFF, REFUSED = "answered", "cut off", "refused"


@dataclass
class Terminated:
    """What became of the requests of one run."""

    signum: signal.Signals
    code: int = -1
    outcomes: dict[str, str] = field(default_factory=dict)
    sent_before: set[str] = field(default_factory=set)
    began: set[str] = field(default_factory=set)

    def flaws(self) -> list[str]:
        found = [] if self.code == 0 else [f"the exit code is {self.code}"]
        for name, outcome in self.outcomes.items():
            if outcome in (ANSWERED, CUT_OFF) or (outcome == REFUSED and name not in self.began):
                continue
            if name in self.began:
                found.append(f"{name} was begun: {outcome}")
            elif name in self.sent_before:
                found.append(f"{name} was sent before the signal: {outcome}")
        return found


class _Load:
    """Clients of all kinds, which ask until they are sent away."""

    def __init__(self, server: HostileServer, found: Terminated) -> None:
        self._port = server.port
        self.found = found
        self.has_ended = False
        self.is_on = trio.Event()
        self._unanswered: set[str] = set()

    def start(self, nursery: trio.Nursery, kinds: list[str]) -> None:
        for kind in kinds:
            client: Callable[[str], Awaitable[None]] = getattr(self, f"_{kind}")
            for number in range(CLIENTS[kind]):
                self._unanswered.add(f"{kind} {number}")
                nursery.start_soon(client, f"{kind} {number}")

    def _send(self, who: str, number: int) -> str:
        name = f"{who} {number}"
        self.found.outcomes[name] = "nothing"
        if not self.has_ended:
            self.found.sent_before.add(name)
        return name

    def _end(self, name: str, outcome: str) -> None:
        """Notes what became of a request; the load is on when each client has had an answer."""
        self.found.outcomes[name] = outcome
        if outcome == ANSWERED and self._unanswered:
            self._unanswered.discard(name.rpartition(" ")[0])
            if not self._unanswered:
                self.is_on.set()

    def _note(self, name: str, answer: Answer | Lost, expected: object) -> bool:
        """Notes what a request was answered with; returns whether the client may go on."""
        self._end(name, _outcome(answer, expected))
        return isinstance(answer, Answer) and answer.status == 200 and not answer.is_last

    async def _kept(self, who: str) -> None:
        await self._on_one_connection(who, lambda name: request("/work", name), checksum)

    async def _streams(self, who: str) -> None:
        def stream(name: str) -> bytes:
            return request("/steps", {"name": name, "count": STEPS}, JSON_LINES)

        await self._on_one_connection(who, stream, _lines)

    async def _on_one_connection(
        self, who: str, request: Callable[[str], bytes], expected: Callable[[str], object]
    ) -> None:
        number = 0
        while (client := await self._connected()) is not None:
            may_go_on = True
            while may_go_on:
                name = self._send(who, number)
                number += 1
                answer = await _answer(client, request(name))
                may_go_on = self._note(name, answer, expected(name))
            await client.aclose()

    async def _fresh(self, who: str) -> None:
        number = 0
        while (client := await self._connected()) is not None:
            name = self._send(who, number)
            number += 1
            answer = await _answer(client, request("/work", name, "Connection: close"))
            self._note(name, answer, checksum(name))
            await client.aclose()

    async def _http2(self, who: str) -> None:
        """Makes two calls and asks for two streams at once, again and again."""
        number = 0
        while not self.has_ended:
            try:
                client = await Http2Client.to(self._port)
            except OSError:
                return
            while not client.is_going_away:
                names = [self._send(who, number + offset) for offset in range(4)]
                number += 4
                calls = [("/work", name) for name in names[:2]]
                streams = [("/steps", {"name": name, "count": STEPS}) for name in names[2:]]
                answers = await client.ask([*calls, *streams])
                wanted = [checksum(name) for name in names[:2]] + [_lines(n) for n in names[2:]]
                goes_on = [
                    self._note(name, answer, expected)
                    for name, answer, expected in zip(names, answers, wanted, strict=True)
                ]
                if not all(goes_on):
                    break
            await client.aclose()

    async def _websocket(self, who: str) -> None:
        """Sends one message after another, and waits for each answer."""
        number = 0
        while not self.has_ended:
            try:
                client = await WebSocketClient.to(self._port, "/raw/sum?notes")
            except (OSError, Lost):
                continue
            while True:
                name = self._send(who, number)
                number += 1
                try:
                    text = await client.ask(name)
                except Lost as lost:
                    self._end(name, str(lost))
                    break
                if text is None:
                    self._end(name, CUT_OFF)
                    break
                self._end(name, ANSWERED if text == str(checksum(name)) else text)
            await client.aclose()

    async def _connected(self) -> Http1Client | None:
        try:
            return await Http1Client.to(self._port)
        except OSError:
            return None


def run_termination(server: HostileServer, *, seed: int, with_http2: bool = True) -> Terminated:
    rng = random.Random(seed)
    found = Terminated(SIGNALS[seed % len(SIGNALS)])
    kinds = [kind for kind in CLIENTS if with_http2 or kind != "http2"]
    trio.run(_terminated, server, found, kinds, rng.uniform(0.0, 0.3))
    return found


async def _terminated(
    server: HostileServer, found: Terminated, kinds: list[str], after_s: float
) -> None:
    load = _Load(server, found)
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            load.start(nursery, kinds)
            await load.is_on.wait()
            await trio.sleep(after_s)
            load.has_ended = True
            found.code, said = await trio.to_thread.run_sync(server.terminate, found.signum)
    found.began = set(said.get("began", ()))


async def _answer(client: Http1Client, sent: bytes) -> Answer | Lost:
    try:
        return await client.ask(sent)
    except Lost as lost:
        return lost


def _outcome(answer: Answer | Lost, expected: object) -> str:
    if isinstance(answer, Lost):
        return str(answer)
    if answer.reason:
        return REFUSED
    if answer.status == 503:
        return CUT_OFF
    lines = [json.loads(line) for line in answer.body.splitlines() if line]
    if isinstance(expected, list):
        if lines[-1:] == [{"end": True}] and lines[:-1] == expected:
            return ANSWERED
        if lines and "error" in lines[-1]:
            return CUT_OFF
    elif lines == [expected]:
        return ANSWERED
    return f"{answer.status} {answer.body[:200]!r}"


def _lines(name: str) -> Sequence[object]:
    return [{"item": checksum(f"{name}{number}")} for number in range(STEPS)]
