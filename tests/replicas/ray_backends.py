"""Backends for Ray's actors, and what the tests put on a cluster beside them.

Ray's processes import this module: the tests give them the path to it.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from importlib import import_module
from typing import Any

import anyio
import anyio.to_thread

import shoal
from shoal.loops.this_loop import parking_of_this_loop
from shoal.testing.replicas.code import Folder


class ByKeyword(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Opaque:
    """It can't be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not to be pickled")

    def __repr__(self) -> str:
        return "Opaque"


class KnownHereOnly:
    """It can be pickled, and not be made again in any other process than this one."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["pid"] != os.getpid():
            raise LookupError("known elsewhere only")


class Box:
    """An item that is no array, and as large as one."""

    def __init__(self, nbytes: int) -> None:
        self.content = bytes(nbytes)
        self.nbytes = nbytes


def current_trace() -> str:
    from opentelemetry import trace

    return f"{trace.get_current_span().get_span_context().trace_id:x}"


class Model:
    """Says where it runs, and does what it is asked to.

    Args:
        folder: Where it notes what happens.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Folder(folder)

    def __call__(self, items: list[Any]) -> list[Any]:
        return items

    def reconfigure(self, user_config: Any) -> None:
        self.folder.note(f"configured {user_config}")

    def close(self) -> None:
        self.folder.note("closed")

    def traces(self, items: list[Any]) -> list[str]:
        return [current_trace() for _ in items]

    async def traces_in_a_loop(self, items: list[Any]) -> list[str]:
        return [current_trace() for _ in items]

    def pids(self, items: list[Any]) -> list[int]:
        return [os.getpid() for _ in items]

    def nodes(self, items: list[Any]) -> list[str]:
        context = sys.modules["ray"].get_runtime_context()
        return [context.get_node_id() for _ in items]

    def environment(self, names: list[str]) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    async def loops(self, items: list[Any]) -> list[str]:
        return [parking_of_this_loop().name for _ in items]

    async def seconds_left(self, items: list[Any]) -> list[Any]:
        now = anyio.current_time()
        return [r.deadline and r.deadline - now for r in shoal.current_batch().requests]

    def sums(self, boxes: list[Box]) -> list[int]:
        return [len(box.content) for box in boxes]

    def opaque(self, items: list[Any]) -> list[Any]:
        return [Opaque() for _ in items]

    def strange(self, items: list[Any]) -> list[Any]:
        return [KnownHereOnly() for _ in items]

    def raises(self, errors: list[Exception]) -> list[Any]:
        raise errors[0]

    def raises_by_keyword(self, items: list[Any]) -> list[Any]:
        raise ExceptionGroup("both", [ByKeyword(code=1), ValueError(2)]) from ByKeyword(code=3)

    def raises_strangely(self, items: list[Any]) -> list[Any]:
        raise ValueError("at a distance", Opaque())

    def is_stuck(self, items: list[Any]) -> list[Any]:
        self.folder.note("began")
        self.folder.wait("on")
        return items

    def takes_its_time(self, items: list[float]) -> list[float]:
        time.sleep(items[0])
        return items

    async def waits(self, items: list[Any]) -> list[Any]:
        self.folder.note("began")
        try:
            await anyio.sleep_forever()
        finally:
            self.folder.note("cancelled")
        return items

    def counts(self, items: list[int]) -> Generator[list[Any]]:
        for number in range(items[0]):
            self.folder.note("step")
            yield [number for _ in items]

    async def counts_in_a_scope(self, items: list[int]) -> AsyncGenerator[list[Any]]:
        with anyio.CancelScope():
            for number in range(items[0]):
                await anyio.lowlevel.checkpoint()
                yield [number for _ in items]

    def forks(self, items: list[Any]) -> list[Any]:
        """Leaves a child that runs until it is told; returns the id of this process for each."""
        if os.fork() == 0:
            self.folder.wait("on")
            os._exit(0)
        return [os.getpid()] * len(items)

    def is_stuck_in_a_step(self, items: list[Any]) -> Generator[list[Any]]:
        yield items
        self.folder.note("began")
        self.folder.wait("on")

    def crashes_in_a_step(self, items: list[Any]) -> Generator[list[Any]]:
        yield items
        self.folder.wait("on")
        os._exit(3)


class Panic(BaseException):
    """Like the class that Rust extensions raise."""


RAISES: dict[Any, Any] = {
    "exit": lambda: SystemExit(3),
    "ctrl-c": KeyboardInterrupt,
    "panic": lambda: Panic("index"),
    "cancelled": asyncio.CancelledError,
}


def answered(item: Any) -> Any:
    if item in RAISES:
        raise RAISES[item]()
    return item


class Raising:
    """Raises what it is told to, wherever it is told.

    Args:
        start: What the constructor is told.
    """

    def __init__(self, start: str = "") -> None:
        answered(start)
        self.config = ""

    def reconfigure(self, user_config: str) -> None:
        answered(user_config)
        self.config = user_config

    def health(self) -> None:
        answered(self.config.removeprefix("be in health "))

    def close(self) -> None:
        answered(self.config.removeprefix("be in closing "))

    def __call__(self, items: list[Any]) -> list[Any]:
        return [answered(item) for item in items]

    async def in_the_loop(self, items: list[Any]) -> list[Any]:
        return [answered(item) for item in items]

    @shoal.batch
    async def gathered(self, items: list[Any]) -> list[Any]:
        return [answered(item) for item in items]

    def plain_steps(self, items: list[Any]) -> Generator[list[Any]]:
        yield ["step"]
        yield [answered(item) for item in items]

    async def steps_in_the_loop(self, items: list[Any]) -> AsyncGenerator[list[Any]]:
        yield ["step"]
        yield [answered(item) for item in items]


class RaisingInTheLoop(Raising):
    """The same with async hooks."""

    async def reconfigure(self, user_config: str) -> None:  # type: ignore[override]
        super().reconfigure(user_config)

    async def health(self) -> None:  # type: ignore[override]
        super().health()

    async def close(self) -> None:  # type: ignore[override]
        super().close()


class AlwaysStuck:
    """All that it does takes for ever, and its health is not the worse for that."""

    def __call__(self, items: list[Any]) -> list[Any]:
        threading.Event().wait()
        return items

    def health(self) -> bool:
        return True


class Caller:
    """Calls another backend by a handle: one that it was given, and one that it gets itself.

    Args:
        other: The handle that it was given.
        folder: Where it notes what happens.
    """

    def __init__(self, other: shoal.Handle, folder: str = "") -> None:
        self.other = other
        self.folder = Folder(folder)

    async def __call__(self, item: Any) -> Any:
        return await self.other.call(item)

    async def by_connect(self, item: Any) -> Any:
        async with shoal.connect() as client:
            handle = await client.get_handle("other")
            return await handle.call(item)

    def plain(self, item: Any) -> Any:
        return self.other.sync.call(item)

    async def within(self, timeout_s: float) -> Any:
        return await self.other.options(timeout_s=timeout_s).call("wait")

    @shoal.batch
    async def batched(self, items: list[Any]) -> list[Any]:
        return [await self.other.call(item) for item in items]

    async def steps(self, count: int) -> AsyncGenerator[Any]:
        async with self.other.options(method_name="steps").stream(count) as steps:
            async for step in steps:
                yield step

    def plain_steps(self, count: int) -> Generator[Any]:
        with self.other.sync.options(method_name="steps").stream(count) as steps:
            yield from steps

    async def by_item(self, handle: Any) -> Any:
        return await handle.call(5)

    async def missing(self, name: str) -> Any:
        async with shoal.connect() as client:
            return await client.get_handle(name)

    async def total(self, array: Any) -> Any:
        doubled = await self.other.call(array)
        doubled += 1
        return doubled


class CallerInBatches:
    """Calls another backend for each request of an open batch, and streams its answers."""

    def __init__(self, other: shoal.Handle) -> None:
        self.other = other

    async def __call__(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        async def answer(request: shoal.OpenRequest[Any, Any]) -> None:
            for _ in range(3):
                await request.send(await self.other.call(request.item))
            request.finish()

        async with anyio.create_task_group() as tasks:
            async for request in batch:
                tasks.start_soon(answer, request)


class CallsWhileItStarts:
    """Calls another backend in its constructor."""

    def __init__(self, other: shoal.Handle) -> None:
        self.said = other.sync.call(20)

    def __call__(self, item: Any) -> Any:
        return self.said


class Noting:
    """Takes a moment for each batch; notes which requests it began, on which node.

    Args:
        folder: Where it notes what happens.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Folder(folder)
        context = sys.modules["ray"].get_runtime_context()
        self.node = context.get_node_id()

    def __call__(self, items: list[int]) -> list[Any]:
        for item in items:
            self.folder.note(f"began {item} {self.node}")
        time.sleep(0.02)
        return [[item, self.node] for item in items]


class Shard:
    """One of two parts of a model."""

    def pid(self) -> int:
        """The process that it runs in."""
        return os.getpid()

    def add(self, items: list[int]) -> list[int]:
        """Its part of the work."""
        return [item + 1 for item in items]


class Sharded:
    """Has its model in two actors, each with a CPU."""

    def __init__(self) -> None:
        ray: Any = import_module("ray")
        shard_class = ray.remote(num_cpus=1)(Shard)
        self.shards = [shard_class.remote() for _ in range(2)]
        self._get = ray.get
        # As models do that connect their shards with each other.
        self.pids = [self._get(shard.pid.remote()) for shard in self.shards]

    def __call__(self, items: list[int]) -> list[int]:
        for shard in self.shards:
            items = self._get(shard.add.remote(items))
        return items

    def where(self, items: list[Any]) -> list[list[int]]:
        """The processes of the shards."""
        return [self.pids for _ in items]


class ShardedSteps(Sharded):
    async def __call__(self, batch: shoal.OpenBatch[int, int]) -> None:  # type: ignore[override]
        """Streams what the shards make of an item, step by step, until its caller leaves."""
        async for _ in batch.steps():
            active = batch.active
            items = [request.item for request in active]
            made = await anyio.to_thread.run_sync(super().__call__, items)
            await batch.send(dict(zip(active, made, strict=True)))
