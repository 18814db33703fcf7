"""The code that the replica check runs: it records events, and waits for signals.

It uses a folder for this, given as an init arg, since it may run in another process. It is part of
the package, not of a test, so that it can be imported wherever it runs.

Each method is written once, as async code. `PlainCode` runs the same methods as plain code, in
which they never wait for an event loop.
"""

import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
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


def throw(error: BaseException) -> None:
    raise error


def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


async def double_async(items: list[int]) -> list[int]:
    await anyio.lowlevel.checkpoint()
    return double(items)


class _Code:
    _is_async = True

    def __init__(
        self,
        folder: str,
        mistake: str = "",
        *,
        greeting: str = "",
        waits: bool = False,
        crash: Callable[[], Any] | None = None,
    ) -> None:
        if crash is not None:
            crash()
        self._folder = Folder(folder)
        self._mistake = mistake
        self._greeting = greeting
        self._waits = waits
        self._config: Any = None
        self._born = [current_backend_tag(), current_replica_tag()]
        self._note("constructed")
        if waits and not self._is_async:  # an async class's would hold the event loop
            self._folder.wait("start")

    def _note(self, line: str) -> None:
        """Records an event, and raises if it is the one that the code fails at."""
        self._folder.note(line)
        if line == self._mistake:
            raise Mistake(line)

    async def _pause(self, for_s: float = 0) -> None:
        if self._is_async:
            await anyio.sleep(for_s)
        else:
            time.sleep(for_s)  # noqa: ASYNC251 - as plain code

    async def _hold(self, name: str, is_over: Callable[[], bool] = lambda: False) -> None:
        self._folder.note(f"holds {name}")
        try:
            while not (self._folder.is_released(name) or is_over()):
                await self._pause(_LOOK_EVERY_S)
        finally:  # the batch of a caller that was alone may be cancelled
            self._folder.note(f"leaves {name}")

    async def reconfigure(self, user_config: Any) -> None:
        self._note(f"configured {user_config}")
        self._config = user_config

    async def warm_up(self) -> None:
        if self._waits and self._is_async:
            await self._folder.wait_async("start")
        self._note("warmed up")

    async def health(self) -> bool | None:
        if self._config == "ill":
            raise Mistake("health")
        if self._config == "hang":
            await self._hold("health")
        return False if self._config == "false" else None

    async def close(self) -> None:
        self._note("closed")

    async def __call__(self, items: list[int]) -> list[int]:
        await self._pause()
        return double(items)

    async def one(self, item: int) -> int:
        await self._pause()
        return 2 * item

    async def add(self, left: list[int], right: list[int]) -> list[int]:
        return [a + b for a, b in zip(left, right, strict=True)]

    async def fail(self, items: list[int]) -> list[int]:
        raise Mistake(f"call of {len(items)}")

    async def slots(self, items: list[int]) -> list[Any]:
        return [Mistake("slot"), 1]

    async def recall(self, what: str) -> Any:
        tags = [self._born, [current_backend_tag(), current_replica_tag()]]
        return {"greeting": self._greeting, "config": self._config, "tags": tags}[what]

    async def batch(self, items: list[int]) -> list[Any]:
        batch = current_batch()
        return [[batch.id, batch.size, str(batch.reason)] for _ in items]

    async def metadata(self, items: list[int]) -> list[Any]:
        return [dict(request.metadata) for request in current_batch().requests]

    async def call(self, function: Callable[[], Any]) -> Any:
        return function()

    async def hold(self, name: str) -> str:
        await self._hold(name)
        return name

    async def count(self, items: list[int]) -> AsyncGenerator[Sequence[Any]]:
        for step in range(len(items)):
            await self._pause()
            yield [item + step for item in items]

    async def count_one(self, item: int) -> AsyncGenerator[Any]:
        yield item
        yield item + 1

    async def marks(self, items: list[int]) -> AsyncGenerator[Sequence[Any]]:
        yield [END, SKIP, StopIteration, Mistake("slot"), 1]

    async def break_off(self, items: list[int]) -> AsyncGenerator[Sequence[Any]]:
        yield items
        raise Mistake("step")

    async def go_on(self, name: str) -> AsyncGenerator[Any]:
        try:
            while True:
                await self._pause()
                yield current_replica_tag()
        finally:
            self._folder.note(f"closes {name}")

    async def hold_step(self, name: str) -> AsyncGenerator[Any]:
        try:
            yield name
            await self._hold(name)
            yield name
        finally:
            self._folder.note(f"closes {name}")


class AsyncCode(_Code):
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
        item = request.item
        if isinstance(item, str):
            await self._hold(item, lambda: request.ended)
        elif item < 0:
            request.fail(Mistake(f"request {item}"))
        else:
            request.finish((2 * item, current_replica_tag()))


def _driven(step: Awaitable[Any]) -> Any:
    """Runs async code that never waits for an event loop; returns its result."""
    try:
        step.__await__().__next__()
    except StopIteration as end:
        return end.value
    raise RuntimeError("the code has waited")


def _as_plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def run(self: Any, *args: Any) -> Any:
        return _driven(method(self, *args))

    @wraps(method)
    def run_steps(self: Any, *args: Any) -> Generator[Any]:
        steps = method(self, *args)
        try:
            while True:
                yield _driven(anext(steps))
        except StopAsyncIteration:
            return
        finally:
            _driven(steps.aclose())

    return run_steps if inspect.isasyncgenfunction(method) else run


def _with_plain_methods(cls: type[_Code]) -> type[_Code]:
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if name == "__call__" or not name.startswith("_"):
            setattr(cls, name, _as_plain(method))
    return cls


@_with_plain_methods
class PlainCode(_Code):
    _is_async = False
