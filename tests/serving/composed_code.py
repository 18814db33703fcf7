"""Code of backends that call other backends, to be named by import paths or sent to processes."""

import os
import signal
import time
from pathlib import Path

import anyio

import shoal
from shoal.errors import NoSuchName


async def double(number: int):
    return number * 2


async def count(limits: list[int]):
    for step in range(max(limits)):
        yield [step if step < limit else shoal.END for limit in limits]


def _unsent_maker():
    return lambda: None


_unsent = _unsent_maker()  # can't be pickled, nor doubled


def killer(number: int):
    os.kill(os.getpid(), signal.SIGKILL)


async def failing(word: str):
    raise LookupError(f"no such word: {word}")


class Calling:
    """Calls by a handle that it was given, and notes each run in a file."""

    def __init__(self, handle, log=None):
        self.handle = handle
        self.log = log

    async def __call__(self, item):
        note(self.log)
        return await self.handle.call(item)

    async def mapped(self, count):
        made = [one async for one in self.handle.map(iter(range(count)), window=7)]
        assert made == await self.handle.map(range(count), return_exceptions=True)
        unsent = await self.handle.options(timeout_s=9).map([1, _unsent], return_exceptions=True)
        return made, [type(one).__name__ for one in unsent]

    async def summed(self, item):
        async with self.handle.stream(item) as steps:
            return sum([step async for step in steps])


class PlainCalling:
    def __init__(self, handle, log=None):
        self.handle = handle
        self.log = log

    def __call__(self, item):
        note(self.log)
        return self.handle.sync.call(item)

    def mapped(self, count):
        made = list(self.handle.sync.map(range(count), window=7, return_exceptions=True))
        assert made == self.handle.sync.map(range(count), return_exceptions=True)
        asking = self.handle.sync.options(timeout_s=9)
        unsent = asking.map([1, _unsent], return_exceptions=True)
        try:
            asking.map([_unsent])
        except TypeError:
            return made, [type(one).__name__ for one in unsent]

    def summed(self, item):
        with self.handle.sync.stream(item) as steps:
            return sum(steps)


class PlainAmongAsync(PlainCalling):
    """Its process runs an event loop, and its plain code a thread."""

    async def health(self):
        pass


class Connecting:
    """Calls by a client that it gets from `shoal.connect`."""

    async def __call__(self, item):
        async with shoal.connect() as client:
            return await (await client.get_handle("inner")).call(item)

    async def early(self, item):
        async with shoal.connect() as client:
            return await client.get_handle("later", missing_ok=True)

    async def late(self, handle):
        return await handle.call(3)


class PlainConnecting:
    def __call__(self, item):
        handle = shoal.connect().sync.get_handle("inner")
        return handle.options(timeout_s=10).call(item)

    def entered(self, item):
        with shoal.connect() as client:
            handle = client.get_handle("later", missing_ok=True)
            try:
                return handle.call(item)
            except NoSuchName:
                return client.get_handle("inner").call(item)

    def by_name(self, item):
        return shoal.connect().sync.get_handle("inner").classify(item)


class ConnectingAtStart:
    def __init__(self):
        self.client = shoal.connect()

    async def __call__(self, item):
        return await (await self.client.get_handle("inner")).call(item)


class Forwarding:
    """Hands one handle on to the backend behind another."""

    def __init__(self, outer, inner):
        self.outer = outer
        self.inner = inner

    async def __call__(self, item):
        return await self.outer.call(self.inner)


class PlainForwarding(Forwarding):
    def __call__(self, item):
        return self.outer.sync.call(self.inner.sync)


async def use(handle):
    return await handle.call(4)


def plain_use(handle):
    return handle.call(4)


def note(log):
    if log is not None:
        with Path(log).open("a") as file:
            file.write("x")


class Dropping:
    """Reads one result of a stream, and drops it; afterwards another one works."""

    def __init__(self, handle):
        self.handle = handle

    async def __call__(self, item):
        async for step in self.handle.stream(item):
            return step
        raise AssertionError

    async def entered(self, item):
        stream = await self.handle.stream(item).__aenter__()
        return await anext(stream)


class PlainDropping(Dropping):
    def __call__(self, item):
        return next(self.handle.sync.stream(item).__enter__())

    entered = __call__


async def endless(items: list[int]):
    while True:
        yield list(items)
        await anyio.lowlevel.checkpoint()


def plain_endless(items: list[int]):
    while True:
        yield list(items)


async def until_draining(items: list[int]):
    batch = shoal.current_batch()
    while not batch.draining.is_set():
        yield list(items)
        with anyio.move_on_after(60):
            await batch.draining.wait()


def plain_until_draining(items: list[int]):
    batch = shoal.current_batch()
    while not batch.draining.is_set():
        yield list(items)
        time.sleep(0.001)
