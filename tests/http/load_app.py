"""What `test_end_to_end.py` serves with ``shoal serve``.

A client can wait for what happens in here by calling ``/when``: it is answered once that is so.
Standard output tells when the drain begins and, at the end, what was received and counted.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

import shoal

received: list[str] = []
happened: set[str] = set()
changed: dict[str, anyio.Event] = {}


def happen(what: str) -> None:
    happened.add(what)
    changed.pop(what, anyio.Event()).set()


async def until(what: str) -> None:
    while what not in happened:
        await changed.setdefault(what, anyio.Event()).wait()


class LoadApp(shoal.App):
    """Says what happens to it."""

    def begin_drain(self) -> None:
        super().begin_drain()
        print("draining", flush=True)
        happen("draining")

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        async with super().lifespan():
            yield
        print(json.dumps({"received": received, **await self.counts()}), flush=True)

    async def counts(self) -> dict[str, dict[str, float]]:
        """What the metrics say of ``/work``: calls and requests by outcome."""
        body = bytearray()

        async def send(message) -> None:
            body.extend(message.get("body", b""))

        scope = {"type": "http", "method": "GET", "path": "/-/metrics", "headers": []}
        await self(scope, anyio.sleep_forever, send)
        counts = {"shoal_requests_total": Counter(), "shoal_request_seconds_count": Counter()}
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                labels = sample.labels
                name = labels.get("backend") or labels.get("endpoint")
                if sample.name in counts and name == "work":
                    counts[sample.name][labels["outcome"]] += sample.value
        return counts


app = LoadApp(max_body_bytes=1000)


@app.endpoint("/happen", max_batch_size=1, max_concurrent_batches=100)
async def tell(whats: list[str]) -> list[None]:
    happen(whats[0])
    return [None]


@app.endpoint("/when", max_batch_size=1, max_concurrent_batches=100)
async def when(whats: list[str]) -> list[bool]:
    await until(whats[0])
    return [True]


@app.endpoint("/work", name="work", max_batch_size=4)
async def work(items: list[str]) -> list[str]:
    """Answers at once, or, when it has been told of the signal, once the drain has begun."""
    received.extend(items)
    if "signal" in happened:
        await until("draining")
    return items


@app.endpoint("/held", name="held", max_batch_size=1, max_queued_requests=2)
async def held(names: list[str]) -> list[str]:
    """Holds a request until its name has happened."""
    received.extend(names)
    happen(f"{names[0]} runs")
    try:
        await until(names[0])
    except anyio.get_cancelled_exc_class():
        happen(f"{names[0]} cancelled")
        raise
    return names


@app.endpoint("/steps", name="steps", max_batch_size=1)
async def steps(names: list[str]) -> AsyncIterator[list[str]]:
    """Yields the name, and once more when it has happened."""
    received.extend(names)
    try:
        yield names
        await until(names[0])
        yield names
    finally:
        happen(f"{names[0]} ended")


class Point(BaseModel):
    x: int


@app.endpoint("/points")
async def points(items: list[Point]) -> list[int]:
    return [item.x for item in items]
