"""A backend of hostile code that a program of operations is done to, beside a neighbour.

A program is a list of operations: calls and streams whose items say what the code does with them,
readers that leave, moods that the code falls into, and verbs. The code raises whatever there is, at
whatever place, changes its lists, answers too much or too little, and blocks its thread. In all
that the controller stays open, the neighbour answers after each operation, every call and verb ends
with an answer or an error of its own, and in the end one verb and a good mood bring it back.

It runs on the real clock, since constructors and plain code run in threads: nothing in it waits for
a time to pass but for the pauses between two starts, which are made short.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest import mock

import anyio
from hypothesis import strategies as st

from base_exceptions import Panic, trio_cancelled
from serving.scenes import deployed
from shoal.serving.controller.controller import Controller
from shoal.serving.controller.endpoints import EndpointHandle
from time_limits import HANG_S

Operation: TypeAlias = tuple[str, str, str]


class Odd(Exception):
    """One that can't be made with its own arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


_KEPT = trio_cancelled()

RAISES: dict[str, Callable[[], BaseException]] = {
    "error": lambda: ValueError("wrong"),
    "odd": lambda: Odd(1, 2),
    "panic": lambda: Panic("index"),
    "exit": lambda: SystemExit(3),
    "ctrl-c": KeyboardInterrupt,
    "cancelled": lambda: asyncio.CancelledError("of a nested loop"),
    "cancelled by trio": lambda: _KEPT,
    "closed": GeneratorExit,
    "stop": lambda: StopIteration(1),
    "stop of async": StopAsyncIteration,
    "group": lambda: BaseExceptionGroup("several", [SystemExit(3), ValueError("wrong")]),
}
DOES = ("well", "clears", "appends", "too many", "too few", "nothing", *RAISES)
PLACES = ("init", "reconfigure", "health", "close", "attribute")
VERBS = ("restart", "scale up", "scale down", "update", "tell", "replace")

operations: st.SearchStrategy[Operation] = st.one_of(
    st.tuples(st.just("call"), st.sampled_from(DOES), st.just("")),
    st.tuples(st.just("stream"), st.sampled_from(DOES), st.sampled_from(["reads", "leaves"])),
    st.tuples(st.just("mood"), st.sampled_from([*RAISES, "well"]), st.sampled_from(PLACES)),
    st.tuples(st.just("verb"), st.sampled_from(VERBS), st.sampled_from(["waits", "leaves"])),
    st.tuples(st.just("create"), st.sampled_from([*RAISES]), st.sampled_from(PLACES)),
    st.tuples(st.just("block"), st.sampled_from(DOES), st.just("")),
)


class Mood:
    """What the code is about to do, and the gate that it blocks at."""

    def __init__(self) -> None:
        self.raises: dict[str, str] = {}
        self.gate = threading.Event()
        self.gate.set()

    def at(self, place: str) -> None:
        """Raises what is to be raised at a place."""
        if (how := self.raises.get(place, "well")) in RAISES:
            raise RAISES[how]()


def _given(items: list[Any], how: str) -> Any:
    """Does to a list, and gives back, what an item says."""
    if how in RAISES:
        raise RAISES[how]()
    given = list(items)
    if how == "clears":
        items.clear()
    elif how == "appends":
        items.append("more")
    elif how in ("too many", "too few"):
        given = [*given, "more"] if how == "too many" else given[1:]
    return None if how == "nothing" else given


class Async:
    """Hostile code that is async."""

    def __init__(self, mood: Mood) -> None:
        mood.at("init")
        self._mood = mood

    def __getattribute__(self, name: str) -> Any:
        if name in ("health", "reconfigure", "close"):
            object.__getattribute__(self, "_mood").at("attribute")
        return object.__getattribute__(self, name)

    async def __call__(self, items: list[Any]) -> Any:
        await anyio.lowlevel.checkpoint()
        return _given(items, items[0])

    async def steps(self, items: list[Any]) -> AsyncIterator[Any]:
        how = items[0]
        yield list(items)
        await anyio.lowlevel.checkpoint()
        yield _given(items, how)

    async def reconfigure(self, _: Any) -> None:
        self._mood.at("reconfigure")

    async def health(self) -> None:
        self._mood.at("health")

    async def close(self) -> None:
        self._mood.at("close")


class Plain:
    """The same in threads, where it blocks as well."""

    __init__ = Async.__init__
    __getattribute__ = Async.__getattribute__

    def __call__(self, items: list[Any]) -> Any:
        self._mood.gate.wait()
        return _given(items, items[0])

    def steps(self, items: list[Any]) -> Generator[Any]:
        how = items[0]
        yield list(items)
        yield _given(items, how)

    def reconfigure(self, _: Any) -> None:
        self._mood.at("reconfigure")

    def health(self) -> None:
        self._mood.at("health")

    def close(self) -> None:
        self._mood.at("close")

    _mood: Mood


CODE: dict[str, tuple[Any, str]] = {
    "async": (Async, "task"),
    "plain": (Plain, "task"),
    "thread": (Plain, "thread"),
}


async def neighbour(items: list[Any]) -> list[Any]:
    """Answers each item with itself."""
    return items


@contextmanager
def short_pauses() -> Generator[None]:
    """Has replicas be started again soon."""
    # The real ones are from 0 to 0.1 s after a first failure.
    with mock.patch("shoal.serving.backends.managed.random", SimpleNamespace(random=lambda: 0.01)):
        yield


class Program:
    """One run of a program."""

    def __init__(self, code: str, todo: list[Operation]) -> None:
        self._code, self._placement = CODE[code]
        self._todo = todo
        self._mood = Mood()
        self._number = 0

    async def run(self) -> None:
        with anyio.fail_after(HANG_S), short_pauses():
            async with self._served() as (self._controller, self._handle, beside):
                for number, operation in enumerate(self._todo):
                    await self._do(*operation)
                    assert await beside.call(number) == number
                await self._brought_back()

    @asynccontextmanager
    async def _served(self) -> AsyncGenerator[tuple[Controller, EndpointHandle, EndpointHandle]]:
        async with Controller() as controller:
            try:
                beside = await deployed(controller, "n", neighbour, config={"placement": "task"})
                config = self._config
                handle = await deployed(controller, "b", self._code, self._mood, config=config)
                yield controller, handle, beside
            finally:
                self._mood.gate.set()

    @property
    def _config(self) -> dict[str, Any]:
        return {
            "placement": self._placement,
            "user_config": 0,
            "max_batch_size": 2,
            "graceful_shutdown_timeout_s": 0.2,
            "health_check_period_s": 0.02,
        }

    async def _do(self, kind: str, what: str, where: str) -> None:
        limit_s = 5 if self._mood.gate.is_set() else 0.02
        if kind == "call":
            self._check(what, await self._ended(self._handle.call(what), limit_s))
        elif kind == "stream":
            reading = self._read(what, leaves=where == "leaves")
            self._check(what, await self._ended(reading, limit_s))
        elif kind == "mood":
            self._mood.raises[where] = what
        elif kind == "verb":
            self._mood.gate.set()
            await self._ended(self._verb(what), 0.002 if where == "leaves" else None)
        elif kind == "create":
            mood = Mood()
            mood.raises[where] = what
            await self._ended(
                self._controller.create_backend("c", self._code, mood, config=self._config)
            )
            mood.raises.clear()
            await self._ended(self._controller.delete_backend("c", force=True))
        elif kind == "block":
            self._mood.gate.clear()
            await self._ended(self._handle.call(what), 0.002)

    async def _verb(self, what: str) -> None:
        self._number += 1
        controller = self._controller
        if what == "restart":
            await controller.restart_backend("b")
        elif what.startswith("scale"):
            await controller.scale_backend("b", 2 if what == "scale up" else 1)
        else:
            changes = {
                "update": {"max_batch_size": 2 + self._number % 2},
                "tell": {"user_config": self._number},
                "replace": {"cancel_grace_s": 1 + self._number / 1000},
            }
            await controller.update_backend_config("b", changes[what])

    async def _read(self, what: str, *, leaves: bool) -> Any:
        async with self._handle.options(method_name="steps").stream(what) as stream:
            got: deque[Any] = deque(maxlen=1)
            async for item in stream:
                got.append(item)
                if leaves:
                    break
        return got[0]

    async def _ended(self, awaitable: Awaitable[Any], limit_s: float | None = None) -> Any:
        """Returns a result or an error; None where it was left."""
        with anyio.move_on_after(limit_s):
            try:
                return await awaitable
            except Exception as error:
                return error
        return None

    def _check(self, what: str, got: Any) -> None:
        """Checks that a call has had an answer that was given for it, or an error."""
        assert got is None or isinstance(got, Exception) or got == what, (what, got)

    async def _brought_back(self) -> None:
        self._mood.gate.set()
        self._mood.raises.clear()
        last = self._todo[-1] if self._todo else ("", "", "")
        verb = last[1] if last[0] == "verb" else "restart"
        # A replica may yet die of what it was in the midst of, and a change with it.
        for _ in range(3):
            error = await self._ended(self._verb(verb))
            answer = await self._ended(self._handle.call("well"))
            if error is None and answer == "well":
                return
        raise AssertionError((verb, error, answer))
