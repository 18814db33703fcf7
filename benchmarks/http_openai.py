#!/usr/bin/env python3
"""What OpenAI's protocol costs beside Shoal's own, for the same items of the same model.

Requests are fed to the server's connections without a socket, 64 at once, as in http_path.py. For
each the CPU time is measured, in turns and as the least of many rounds, and the bytecodes that
Python runs, which do not vary. A stream has 64 tokens.

    python benchmarks/http_openai.py [--event-loop asyncio] [--rounds 200]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
from typing_extensions import TypedDict

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import anyio.lowlevel

import shoal
from benchmarks.http_path import CONNECTIONS, Client
from shoal.asgi.headers import RequestGuard
from shoal.asgi.http_options import HttpOptions
from shoal.commands.server.process import collect_less_often, skip_what_was_loaded
from shoal.loops.this_loop import parking_of_this_loop
from shoal.loops.timers import LoopTimers
from shoal.server.http1.connection import Http1Connection
from shoal.server.shared import Shared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import FrameType

TOKENS: Final = 64
PROMPT: Final = "The quick brown fox jumps over the lazy"
VECTOR: Final = [n + 0.5 for n in range(16)]
CHAT: Final = [{"role": "user", "content": PROMPT}]
CHAT_PROMPT: Final = f"user: {PROMPT}\nassistant:"  # the item of the chat

app: Final = shoal.App(protocols=["openai"])


@app.endpoint("/whole", name="whole", max_batch_size=CONNECTIONS)
async def whole(prompts: list[str]) -> list[str]:
    """Returns the prompts."""
    return prompts


class Asked(TypedDict):
    """A chat and its parameters, as a handler takes them that needs more than a prompt."""

    messages: list[Message]
    max_tokens: int
    temperature: float


class Message(TypedDict):
    """One message of a chat."""

    role: str
    content: str


@app.endpoint("/record", name="record", max_batch_size=CONNECTIONS)
async def record(asked: list[Asked]) -> list[str]:
    """Returns the last message of each chat."""
    return [one["messages"][-1]["content"] for one in asked]


@app.endpoint("/vector", name="vector", max_batch_size=CONNECTIONS)
async def vector(texts: list[str]) -> list[list[float]]:
    """Returns a vector for each text."""
    return [VECTOR] * len(texts)


@app.endpoint("/pieces", name="pieces", max_batch_size=CONNECTIONS)
async def pieces(prompts: list[str]) -> AsyncIterator[list[str]]:
    """A token for each prompt in each step."""
    for nth in range(TOKENS):
        yield [f"token {nth}"] * len(prompts)


def request(path: str, body: Any) -> bytes:
    """Returns the bytes of a request."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def asked(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 100, "temperature": 0.7, **more}


# Each kind of answer, and what asks for it; the first one is Shoal's own protocol.
KINDS: Final = {
    "one result": {
        "Shoal's JSON": request("/whole", CHAT_PROMPT),
        "completion": request("/v1/completions", asked("whole", prompt=CHAT_PROMPT)),
        "chat": request("/v1/chat/completions", asked("whole", messages=CHAT)),
    },
    "one result for a chat with parameters": {
        "Shoal's JSON": request(
            "/record", {"messages": CHAT, "max_tokens": 100, "temperature": 0.7}
        ),
        "chat": request("/v1/chat/completions", asked("record", messages=CHAT)),
    },
    f"a vector of {len(VECTOR)} floats": {
        "Shoal's JSON": request("/vector", PROMPT),
        "embedding": request("/v1/embeddings", {"model": "vector", "input": PROMPT}),
        "in base64": request(
            "/v1/embeddings", {"model": "vector", "input": PROMPT, "encoding_format": "base64"}
        ),
    },
    f"a stream of {TOKENS} tokens": {
        "Shoal's SSE": request("/pieces", PROMPT),
        "completion": request("/v1/completions", asked("pieces", prompt=PROMPT, stream=True)),
        "chat": request("/v1/chat/completions", asked("pieces", messages=CHAT, stream=True)),
        "chat, stop": request(
            "/v1/chat/completions", asked("pieces", messages=CHAT, stream=True, stop=["\n\n"])
        ),
    },
}


class Server:
    """A server whose clients are in this process."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        nothing: Any = None
        self._connections = [
            Http1Connection(shared, Client(), lambda: None, nothing)  # type: ignore[arg-type]
            for _ in range(CONNECTIONS)
        ]
        for connection in self._connections:
            connection.start()

    async def ask(self, data: bytes) -> None:
        """Sends a request on each connection, and waits for the answers."""
        until = self._shared.calls_finished + CONNECTIONS
        for connection in self._connections:
            connection.data_received(data)
        while self._shared.calls_finished < until:
            await anyio.lowlevel.checkpoint()

    async def cpu_s(self, data: bytes) -> float:
        """Returns the CPU time of one round."""
        began = time.process_time()
        await self.ask(data)
        return time.process_time() - began

    async def bytecodes(self, data: bytes) -> int:
        """Returns the number of bytecodes of one round."""
        count = 0

        def trace(frame: FrameType, event: str, _arg: object) -> Any:
            nonlocal count
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            count += event == "opcode" and frame.f_code.co_filename != __file__
            return trace

        sys.settrace(trace)
        try:
            await self.ask(data)
        finally:
            sys.settrace(None)
        return count


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """Serves the application without sockets, as `shoal serve` does with them."""
    async with app.lifespan(), anyio.create_task_group() as tasks:
        parking = parking_of_this_loop()
        timeouts = LoopTimers(parking)
        tasks.start_soon(timeouts.run)
        collect_less_often()
        skip_what_was_loaded()
        options = HttpOptions()
        guard = RequestGuard(options, ("0.0.0.0", 80))
        yield Server(Shared(app, options, {}, parking, timeouts, tasks, "http", guard))
        tasks.cancel_scope.cancel()


async def measure(rounds: int) -> None:
    """Prints the costs."""
    async with serving() as server:
        for kind, ways in KINDS.items():
            least = dict.fromkeys(ways, float("inf"))
            for _ in range(rounds):
                for way, data in ways.items():
                    await server.ask(data)  # as CPython adapts its code to what ran last
                    least[way] = min(least[way], await server.cpu_s(data))
            own, own_count = min(least[next(iter(ways))], 1e9), 0
            print(f"\n{kind}: microseconds of CPU, bytecodes, and both as a multiple of our own")
            for way, data in ways.items():
                count = await server.bytecodes(data)
                own_count = own_count or count
                each = least[way] / CONNECTIONS * 1e6
                print(
                    f"  {way:<14}{each:8.1f}{count / CONNECTIONS:9,.0f}"
                    f"{least[way] / own:8.2f}{count / own_count:7.2f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of OpenAI's protocol.")
    parser.add_argument("--event-loop", choices=("trio", "asyncio"), default="trio")
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    print(f"{CONNECTIONS} requests at once, on {given.event_loop}")
    anyio.run(measure, given.rounds, backend=given.event_loop)


if __name__ == "__main__":
    main()
