"""The streaming model of http_handlers.py behind a server in the style of vLLM's.

It is FastAPI on uvicorn. A loop takes requests between two steps of the model, and gives each its
tokens through a queue; the route writes each token as a pydantic model. It is not vLLM itself,
which needs a GPU and a real model.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from fastapi import FastAPI  # type: ignore[import-not-found, unused-ignore]
from fastapi.responses import (  # type: ignore[import-not-found, unused-ignore]
    StreamingResponse,
)
from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MAX_BATCH_SIZE: Final = 64
TOKENS: Final = 32


class Message(BaseModel):
    """A message of a chat."""

    role: str
    content: str


class Asked(BaseModel):
    """The body of a request."""

    model: str
    messages: list[Message]
    max_tokens: int | None = None
    temperature: float | None = None
    stream: bool = False


class Delta(BaseModel):
    """The text of a chunk."""

    role: str | None = None
    content: str | None = None


class Choice(BaseModel):
    """The only choice of a chunk."""

    index: int = 0
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None


class Chunk(BaseModel):
    """A message of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[Choice]


Tokens = asyncio.Queue[str | None]


class Engine:
    """The loop of the model: 2 ms per step, with a token for each request."""

    def __init__(self) -> None:
        self._waiting: list[Tokens] = []
        self._arrived = asyncio.Event()

    def add(self) -> Tokens:
        """Adds a request; returns its tokens, with None at their end."""
        tokens: Tokens = asyncio.Queue()
        self._waiting.append(tokens)
        self._arrived.set()
        return tokens

    async def run(self) -> None:
        """Runs the model's steps until it is cancelled."""
        active: dict[Tokens, int] = {}
        while True:
            while self._waiting and len(active) < MAX_BATCH_SIZE:
                active[self._waiting.pop(0)] = 0
            if not active:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            await asyncio.to_thread(time.sleep, 0.002)
            for tokens, nth in list(active.items()):
                tokens.put_nowait(f"token {nth}")
                active[tokens] = nth + 1
                if nth + 1 == TOKENS:
                    tokens.put_nowait(None)
                    del active[tokens]


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[None]:
    """Runs the engine while the server runs."""
    app.state.engine = Engine()
    running = asyncio.create_task(app.state.engine.run())
    yield
    running.cancel()


app = FastAPI(lifespan=lifespan)


async def events(asked: Asked, tokens: Tokens) -> AsyncIterator[str]:
    """Yields the messages of a stream."""
    ident, created = f"chatcmpl-{uuid4().hex}", int(time.time())

    def event(delta: Delta, reason: str | None = None) -> str:
        choice = Choice(delta=delta, finish_reason=reason)
        chunk = Chunk(id=ident, created=created, model=asked.model, choices=[choice])
        return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"

    yield event(Delta(role="assistant", content=""))
    while (token := await tokens.get()) is not None:
        yield event(Delta(content=token))
    yield event(Delta(), "stop")
    yield "data: [DONE]\n\n"


async def chat(asked: Asked) -> Any:
    """Answers a chat."""
    return StreamingResponse(events(asked, app.state.engine.add()), media_type="text/event-stream")


app.post("/v1/chat/completions")(chat)
