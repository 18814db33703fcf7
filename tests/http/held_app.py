"""What the tests of served calls share: an App whose handler is held."""

import json
from collections import deque
from contextlib import asynccontextmanager

import anyio
from server_in_memory import serving

import shoal
from shoal.testing import settle
from shoal.testing.asgi import ask


class Held:
    """An async handler that waits until it is let go."""

    def __init__(self):
        self.batches = []
        self.go = anyio.Event()
        self.cancelled = 0

    async def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        return items

    async def let_go(self):
        self.go.set()
        await settle()


class Steps:
    """A generator handler whose steps are let through one by one."""

    def __init__(self):
        self.batches = []
        self.requests = []
        self.task = None
        self.taken = 0
        self.closed = False
        self._steps = deque()
        self._stepped = anyio.Event()

    async def __call__(self, items: list[int]):
        self.batches.append(items)
        self.requests = shoal.current_batch().requests
        self.task = anyio.get_current_task().id
        try:
            while (step := await self._next()) is not shoal.END:
                if isinstance(step, Exception):
                    raise step
                self.taken += 1
                yield [step] * len(items)
        finally:
            self.closed = True

    async def _next(self):
        while not self._steps:
            self._stepped = anyio.Event()
            await self._stepped.wait()
        return self._steps.popleft()

    def step(self, value):
        self._steps.append(value)
        self._stepped.set()

    def end(self):
        self.step(shoal.END)

    async def take(self, *values):
        """Lets a step through for each value, and waits until all that follows has happened."""
        for value in values:
            self.step(value)
            await settle()


def slow_app(server_timing="never", batch_wait_timeout_s=1, **options):
    """An App whose handlers take seconds; one fails for the item 0."""
    app = shoal.App(server_timing=server_timing)

    @app.endpoint("/slow", max_batch_size=2, batch_wait_timeout_s=batch_wait_timeout_s, **options)
    async def slow(items: list[int]) -> list[int]:
        await anyio.sleep(3)
        if 0 in items:
            raise ValueError
        return items

    @app.endpoint("/steps")
    async def steps(items: list[int]):
        await anyio.sleep(2)
        yield items
        await anyio.sleep(2)

    return app


@asynccontextmanager
async def served(app, **options):
    async with app.lifespan(), serving(app, **options) as server:
        yield server


def statistics(app, name="held"):
    return app.controller.backends[name].method_batchers["__call__"].batcher.statistics()


def counted(app, name="held"):
    endpoint = app.controller.endpoints[name]
    return endpoint.requests, endpoint.errors


async def metrics_of(app):
    return (await ask(app, "/-/metrics", method="GET")).body.decode()


async def answers_counted(app, name="held"):
    metrics = await metrics_of(app)
    start = f'request_seconds_count{{endpoint="{name}",outcome="'
    lines = [line.partition(start)[2] for line in metrics.splitlines() if start in line]
    return {line.partition('"')[0]: float(line.split()[-1]) for line in lines}


def kind_of(answer):
    return json.loads(answer[1])["type"].removeprefix("urn:shoal:problem:")
