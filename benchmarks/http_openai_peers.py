#!/usr/bin/env python3
"""OpenAI's chats, streamed, by Shoal and by other servers with the same fake model.

The model takes 2 ms for each step, whatever the number of prompts, and gives each of them a token;
a text has 32 tokens. Clients ask in closed loops. LitServe is installed by ``make bench-peers``.

    python benchmarks/http_openai_peers.py [--seconds 5] [--clients 1 32 128] [--only NAMES]
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if __name__ == "__main__":
    # In place of this folder, whose http.py is not the standard library's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.http_load import Load, ask, drive, percentile_ms, request_bytes
from benchmarks.http_servers import Server, shoal_serve, uvicorn

if TYPE_CHECKING:
    from benchmarks.http_process import ServerProcess

TOKENS: Final = 32
PATH: Final = "/v1/chat/completions"
APP: Final = "benchmarks.http_openai_app:app"
MESSAGES: Final = [{"role": "user", "content": "The quick brown fox jumps over the lazy"}]

SERVERS: Final = (
    (shoal_serve("Shoal on trio, closed batches", APP), "generate"),
    (shoal_serve("Shoal on uvloop, closed batches", APP, "--event-loop", "asyncio"), "generate"),
    (shoal_serve("Shoal on trio, continuous", APP), "continuous"),
    (shoal_serve("Shoal on uvloop, continuous", APP, "--event-loop", "asyncio"), "continuous"),
    (shoal_serve("Shoal on trio, in a process", APP), "process"),
    (shoal_serve("Shoal on uvloop, in a process", APP, "--event-loop", "asyncio"), "process"),
    (
        Server(
            "LitServe",
            ("python", "-m", "benchmarks.http_peers.litserve_openai", "--port", "{port}"),
            ("litserve",),
            is_peer=True,
        ),
        "lit",
    ),
    (uvicorn("a server like vLLM's", "benchmarks.http_peers.engine_openai:app"), "engine"),
)


def body_for(model: str) -> bytes:
    asked = {"model": model, "messages": MESSAGES, "temperature": 0.7, "stream": True}
    return json.dumps(asked).encode()


def answers(model: str, port: int) -> bool:
    """Returns whether a server answers rightly."""
    return ask(port, "POST", PATH, body_for(model))[0] == 200


def measured(server: ServerProcess, model: str, clients: int, seconds: float) -> Load:
    """Returns the measurements of clients in closed loops."""
    request = request_bytes(PATH, body_for(model), "text/event-stream")
    return drive(
        server, request, clients=clients, tokens=TOKENS, warm_up_s=seconds / 4, seconds=seconds
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Streamed chats, beside other servers.")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the servers' names")
    given = parser.parse_args()
    print("clients  tokens/s  first token: median, 99 %  CPU/token    failures  server")
    for server, model in SERVERS:
        if not any(part in server.name for part in given.only):
            continue
        if server.missing:
            print(f"left out: {server.name}; {server.how_to_install}")
            continue
        with server.start() as process:
            process.wait_answer(partial(answers, model))
            for clients in given.clients:
                load = measured(process, model, clients, given.seconds)
                first = [percentile_ms(load.first_token_s, percent) for percent in (50, 99)]
                cpu_us = load.cpu_s / max(1, load.tokens) * 1e6
                print(
                    f"{clients:7}{load.tokens / load.seconds:10,.0f}{first[0]:14.1f} ms"
                    f"{first[1]:6.1f} ms{cpu_us:8.1f} us{load.failures:10}    {server.name}"
                )


if __name__ == "__main__":
    main()
