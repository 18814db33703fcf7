"""The code that the replica check runs: it records events, and waits for signals.

It uses a folder for this, given as an init arg, since it may run in another process. It is part of
the package, not of a test, so that it can be imported wherever it runs.
"""

import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import closing
from functools import wraps
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from shoal.batching.calls.stream import END, SKIP
from shoal.batching.current import current_backend_tag, current_batch, current_replica_tag
from shoal.batching.open_batch import OpenBatch, OpenRequest

_LOOK_EVERY_S = 0.005


class Folder:
    def __init__(self, path: str) -> None:
        self.path = path
        self._diary = Path(path, "diary")

    def note(self, line: str) -> None:
        with self._diary.open("a", encoding="utf-8") as diary:
            diary.write(f"{line}\n")

    def notes(self) -> list[str]:
        if not self._diary.exists():
            return []
        return self._diary.read_text(encoding="utf-8").splitlines()

    def release(self, name: str) -> None:
        """Releases a wait; ``"all"`` releases all."""
        Path(self.path, f"go {name}").touch()

    def is_released(self, name: str) -> bool:
        """Returns whether a wait is released, or the folder has been deleted."""
        return (
            any(Path(self.path, f"go {one}").exists() for one in (name, "all"))
            or not Path(self.path).exists()
        )

    def wait(self, name: str) -> None:
        while not self.is_released(name):
            time.sleep(_LOOK_EVERY_S)

    async def wait_async(self, name: str) -> None:
        while not self.is_released(name):  # noqa: ASYNC110 - it may be in another process
            await anyio.sleep(_LOOK_EVERY_S)


class Mistake(Exception):
    """The error that the code raises on request."""


class Panic(BaseException):
    """An error that is not an `Exception`, like the panics of a Rust extension."""


def raise_panic() -> None:
    raise Panic("in the code")


def raise_system_exit() -> None:
    raise SystemExit(3)


def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


async def double_async(items: list[int]) -> list[int]:
    await anyio.lowlevel.checkpoint()
    return [2 * item for item in items]


class _Code:
    def __init__(
        self,
        folder: str,
        trouble: str = "",
        *,
        greeting: str = "",
        crash: Callable[[], Any] | None = None,
    ) -> None:
        if crash is not None:
            crash()
        self._folder = Folder(folder)
        self._trouble = trouble
        self._greeting = greeting
        self._config: Any = None
        self._tags = (current_backend_tag(), current_replica_tag())
        self._folder.note("constructed")
        if trouble == "raise":
            raise Mistake("constructor")
        if trouble == "wait" and isinstance(self, PlainCode):
            self._folder.wait("constructor")

    def _take_config(self, user_config: Any) -> None:
        self._folder.note(f"configured {user_config}")
        if user_config == "mistake":
            raise Mistake("reconfigure")
        self._config = user_config

    def _be_warm(self) -> None:
        self._folder.note("warmed up")
        if self._trouble == "warm_up":
            raise Mistake("warm_up")

    def _is_well(self) -> bool | None:
        self._folder.note("health")
        if self._config == "ill":
            raise Mistake("health")
        return False if self._config == "false" else None


class PlainCode(_Code):
    def reconfigure(self, user_config: Any) -> None:
        self._take_config(user_config)

    def warm_up(self) -> None:
        self._be_warm()

    def health(self) -> bool | None:
        well = self._is_well()
        if self._config == "hang":
            self._folder.wait("health")
        return well

    def close(self) -> None:
        self._folder.note("closed")

    def __call__(self, items: list[int]) -> list[int]:
        return double(items)

    def one(self, item: int) -> int:
        return 2 * item

    def add(self, left: list[int], right: list[int]) -> list[int]:
        return [a + b for a, b in zip(left, right, strict=True)]

    def fail(self, items: list[int]) -> list[int]:
        raise Mistake(f"call of {len(items)}")

    def slots(self, items: list[int]) -> list[Any]:
        return [Mistake("slot"), 1]

    def state(self, item: int) -> list[Any]:
        tags = (current_backend_tag(), current_replica_tag())
        return [self._greeting, self._config, tags, self._tags]

    def batch(self, items: list[int]) -> list[Any]:
        batch = current_batch()
        return [
            (batch.id, batch.size, str(batch.reason), dict(request.metadata))
            for request in batch.requests
        ]

    def call(self, function: Callable[[], Any]) -> Any:
        return function()

    def hold(self, name: str) -> str:
        self._folder.note(f"holds {name}")
        try:
            self._folder.wait(name)
        finally:
            self._folder.note(f"leaves {name}")
        return name

    def count(self, items: list[int]) -> Generator[Sequence[Any]]:
        for step in range(len(items)):
            yield [item + step for item in items]

    def count_one(self, item: int) -> Generator[Any]:
        yield item
        yield item + 1

    def marks(self, items: list[int]) -> Generator[Sequence[Any]]:
        yield [END, SKIP, StopIteration, Mistake("slot"), 1]

    def break_off(self, items: list[int]) -> Generator[Sequence[Any]]:
        yield items
        raise Mistake("step")

    def go_on(self, name: str) -> Generator[Any]:
        try:
            while True:
                yield current_replica_tag()
        finally:
            self._folder.note(f"closes {name}")

    def hold_step(self, name: str) -> Generator[Any]:
        try:
            yield name
            yield self.hold(name)
        finally:
            self._folder.note(f"closes {name}")


def _as_async(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def run(self: Any, *args: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return method(self, *args)

    return run


def _as_async_steps(method: Callable[..., Generator[Any]]) -> Callable[..., Any]:
    @wraps(method)
    async def run(self: Any, *args: Any) -> AsyncGenerator[Any, None]:
        with closing(method(self, *args)) as steps:
            for step in steps:
                await anyio.lowlevel.checkpoint()
                yield step

    return run


class AsyncCode(_Code):
    close = _as_async(PlainCode.close)
    __call__ = _as_async(PlainCode.__call__)
    one = _as_async(PlainCode.one)
    add = _as_async(PlainCode.add)
    fail = _as_async(PlainCode.fail)
    slots = _as_async(PlainCode.slots)
    state = _as_async(PlainCode.state)
    batch = _as_async(PlainCode.batch)
    call = _as_async(PlainCode.call)
    count = _as_async_steps(PlainCode.count)
    count_one = _as_async_steps(PlainCode.count_one)
    marks = _as_async_steps(PlainCode.marks)
    break_off = _as_async_steps(PlainCode.break_off)
    go_on = _as_async_steps(PlainCode.go_on)

    async def reconfigure(self, user_config: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self._take_config(user_config)

    async def warm_up(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self._trouble == "wait":  # an async class's constructor would hold the event loop
            await self._folder.wait_async("constructor")
        self._be_warm()

    async def health(self) -> bool | None:
        well = self._is_well()
        if self._config == "hang":
            await self._folder.wait_async("health")
        return well

    async def hold(self, name: str) -> str:
        self._folder.note(f"holds {name}")
        try:
            await self._folder.wait_async(name)
        finally:
            self._folder.note(f"leaves {name}")
        return name

    async def hold_step(self, name: str) -> AsyncGenerator[Any, None]:
        try:
            yield name
            yield await self.hold(name)
        finally:
            self._folder.note(f"closes {name}")

    async def open_batch(self, batch: OpenBatch[Any, Any]) -> None:
        """Answers each request by its item; a text is held until its caller leaves."""
        async with anyio.create_task_group() as tasks:
            async for request in batch:
                tasks.start_soon(self._answer_open, request)

    async def open_streams(self, batch: OpenBatch[int, int]) -> None:
        async for request in batch:
            for number in range(request.item):
                await request.send(number)
            request.finish()

    async def _answer_open(self, request: OpenRequest[Any, Any]) -> None:
        if isinstance(request.item, int) and request.item < 0:
            request.fail(Mistake(f"request {request.item}"))
        elif isinstance(request.item, int):
            request.finish((2 * request.item, current_replica_tag()))
        else:
            self._folder.note(f"holds {request.item}")
            try:
                while not (request.ended or self._folder.is_released(request.item)):  # noqa: ASYNC110
                    await anyio.sleep(_LOOK_EVERY_S)
            finally:  # the batch of a caller that was alone may be cancelled
                self._folder.note(f"leaves {request.item}")
