"""What `test_end_to_end.py` serves with ``shoal serve``.

Standard output tells when the drain begins and, at the end, what was received and counted.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from prometheus_client.parser import text_string_to_metric_families

import shoal

received: list[str] = []
draining = anyio.Event()
waits_for_the_drain = False


class LoadApp(shoal.App):
    """Says what happens to it."""

    def begin_drain(self) -> None:
        super().begin_drain()
        print("draining", flush=True)
        draining.set()

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


@app.post("/wait-for-the-drain")
async def wait_for_the_drain() -> None:
    global waits_for_the_drain
    waits_for_the_drain = True


@app.endpoint("/work", name="work", max_batch_size=4)
async def work(items: list[str]) -> list[str]:
    """Answers at once, or, where a test wants that, once the drain has begun."""
    received.extend(items)
    if waits_for_the_drain:
        await draining.wait()
    return items


@app.endpoint("/held", name="held", max_batch_size=1, max_queued_requests=2)
async def held(names: list[str]) -> list[str]:
    await anyio.sleep_forever()
    return names


@app.endpoint("/steps", name="steps", max_batch_size=1)
async def steps(names: list[str]) -> AsyncIterator[list[str]]:
    """Yields the name, and once more when the drain begins."""
    yield names
    await draining.wait()
    yield names
