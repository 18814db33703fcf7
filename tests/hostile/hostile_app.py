"""What the hostile runs serve: batched endpoints, and an ASGI application beside them.

The endpoints answer with checksums of their items, so that a client can tell its own answer from
another's. What is mounted under ``/raw`` tells about the process (``/raw/state``), and does what
endpoints can't: block the event loop, send without end, speak WebSocket.

The environment plants defects, which the runs must find: see ``PLANT``.
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import sniffio
import trio.lowlevel
from agreed import HANG_S, checksum
from pydantic import BaseModel

import shoal

# "leak" keeps 64 KiB of each request; "mix-up" gives one caller in a hundred another's answer.
PLANT = os.environ.get("HOSTILE_PLANT", "")

LEAK = 2**16
MIX_UP_EVERY = 100
# The capacity of /slow and /busy, in requests a second, and how many requests may wait there.
SLOW_S = 0.02
SLOW_AT_ONCE = 4
BUSY_S = 0.005
CAPACITY = 200
MOST_QUEUED = 20

# What /raw/flood sends again and again; one for all, so that the memory is the server's alone.
FLOOD = bytes(2**15)

kept: list[bytes] = []
served = 0
last = 0


class Times:
    """When things of a name happened, by the clock that all processes share."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self._changed = anyio.Event()

    def note(self, name: str) -> None:
        self.at[name] = time.monotonic()
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def until(self, name: str) -> float:
        while name not in self.at:
            await self._changed.wait()
        return self.at[name]


# When the handler of a name began and ended.
began, ended = Times(), Times()


class HostileApp(shoal.App):
    """Prints, at the end of its lifespan, the names of the calls that its handlers began."""

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        async with super().lifespan():
            yield
        print(json.dumps({"began": list(began.at), "ended": list(ended.at)}), flush=True)


app = HostileApp(max_body_bytes=2**20)


def answer_to(text: str) -> int:
    """The checksum of a text; or, where a mix-up is planted, now and then that of another."""
    global last, served
    served += 1
    found = checksum(text)
    if "leak" in PLANT:
        kept.append(bytes([served % 256]) * LEAK)
    if "mix-up" in PLANT and served % MIX_UP_EVERY == 0:
        return last
    last = found
    return found


@app.endpoint("/sum", name="sum", max_batch_size=16, max_concurrent_batches=4)
async def sums(texts: list[str]) -> list[int]:
    await anyio.lowlevel.checkpoint()
    return [answer_to(text) for text in texts]


@app.endpoint(
    "/slow",
    name="slow",
    max_batch_size=1,
    max_concurrent_batches=SLOW_AT_ONCE,
    max_queued_requests=MOST_QUEUED,
)
async def slow(texts: list[str]) -> list[int]:
    """Can answer 200 requests a second, however many come."""
    await anyio.sleep(SLOW_S)
    return [checksum(text) for text in texts]


@app.endpoint("/busy", name="busy", max_batch_size=1, max_queued_requests=MOST_QUEUED)
async def busy(texts: list[str]) -> list[int]:
    """Can answer 200 requests a second, and holds the event loop for each of them."""
    time.sleep(BUSY_S)  # noqa: ASYNC251
    return [checksum(text) for text in texts]


@asynccontextmanager
async def noted(name: str) -> AsyncIterator[None]:
    """Notes when the handler of a name began, and when it ended."""
    began.note(name)
    try:
        yield
    finally:
        ended.note(name)


@app.endpoint("/work", name="work", max_batch_size=4, max_concurrent_batches=4)
async def work(names: list[str]) -> list[int]:
    """Takes a moment, and notes that it began and ended."""
    for name in names:
        began.note(name)
    await anyio.sleep(0.005)
    for name in names:
        ended.note(name)
    return [checksum(name) for name in names]


@app.endpoint("/held", name="held", max_batch_size=1, max_concurrent_batches=64)
async def held(names: list[str]) -> list[str]:
    """Holds each request until its client leaves."""
    async with noted(names[0]):
        await anyio.sleep_forever()
    return names


@app.endpoint("/queued", name="queued", max_batch_size=1)
async def queued(names: list[str]) -> list[str]:
    """Holds one request until its client leaves; the others wait."""
    async with noted(names[0]):
        await anyio.sleep_forever()
    return names


class Steps(BaseModel):
    name: str
    count: int


@app.endpoint("/steps", name="steps", max_batch_size=1, max_concurrent_batches=64)
async def steps(asked: list[Steps]) -> AsyncIterator[list[int]]:
    """Yields the checksums of the name and the numbers from 0 on."""
    (one,) = asked
    async with noted(one.name):
        for number in range(one.count):
            yield [checksum(f"{one.name}{number}")]
            await anyio.sleep(0.005)


class Raw:
    """The ASGI application under ``/raw``."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"].removeprefix("/raw/")
        kind = scope["type"]
        action = getattr(self, f"{kind}_{name}", None) or getattr(self, f"{kind}_unknown")
        await action(scope, receive, send)

    async def http_state(self, _scope: Any, _receive: Any, send: Any) -> None:
        """Tells how many tasks there are."""
        await answer(send, 200, json.dumps({"tasks": tasks()}).encode())

    async def http_block(self, scope: Any, _receive: Any, send: Any) -> None:
        """Holds the event loop for so many milliseconds."""
        time.sleep(int(scope["query_string"]) / 1000)  # noqa: ASYNC251
        await answer(send, 200, b"held")

    async def http_until(self, scope: Any, _receive: Any, send: Any) -> None:
        """Waits until the handler of a name has begun, or ended; tells when that was."""
        what, _, name = scope["query_string"].decode("ascii").partition("=")
        at = None
        with anyio.move_on_after(HANG_S):
            at = await {"began": began, "ended": ended}[what].until(name)
        await answer(send, 200, json.dumps(at).encode())

    async def http_flood(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends without end, until the client leaves."""
        async with noted(scope["query_string"].decode("ascii", "replace")):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_left, receive, tasks.cancel_scope)
                body = {"type": "http.response.body", "body": FLOOD, "more_body": True}
                while True:
                    await send(body)
                    await anyio.lowlevel.checkpoint()

    async def http_wait(self, scope: Any, receive: Any, _send: Any) -> None:
        """Reads what comes until the client leaves; notes both."""
        async with noted(scope["query_string"].decode("ascii", "replace")):
            while (await receive())["type"] != "http.disconnect":
                pass

    async def http_unknown(self, _scope: Any, _receive: Any, send: Any) -> None:
        await answer(send, 404, b"nothing here")

    async def websocket_sum(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers each message with its checksum, and notes the begin of its work."""
        notes = scope["query_string"] == b"notes"
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text") or (message.get("bytes") or b"").decode("latin-1")
            if notes:
                began.note(text)
                await anyio.sleep(0.005)
                ended.note(text)
            await send({"type": "websocket.send", "text": str(answer_to(text))})

    async def websocket_wait(self, scope: Any, receive: Any, send: Any) -> None:
        """Reads what comes until the client leaves; notes both."""
        await receive()
        async with noted(scope["query_string"].decode("ascii", "replace")):
            await send({"type": "websocket.accept"})
            while (await receive())["type"] != "websocket.disconnect":
                pass

    async def websocket_unknown(self, _scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 1000})


def tasks() -> Counter[str]:
    """How many tasks of which name there are, without a batcher's slots, which stay."""
    found: Counter[str] = Counter()
    if sniffio.current_async_library() == "trio":
        to_visit = [trio.lowlevel.current_root_task()]
        while to_visit:
            task = to_visit.pop()
            found[task.name.rpartition(".")[2]] += 1
            for nursery in task.child_nurseries:
                to_visit.extend(nursery.child_tasks)
    else:
        for task in asyncio.all_tasks():
            found[task.get_name().rpartition(".")[2].partition("-")[0]] += 1
    del found["shoal slot"]
    return found


async def answer(send: Any, status: int, body: bytes) -> None:
    length = str(len(body)).encode("ascii")
    headers = [(b"content-length", length), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def cancel_when_left(receive: Any, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


app.mount("/raw", Raw())
