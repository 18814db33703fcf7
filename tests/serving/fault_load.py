"""Constant load on endpoints while faults are aimed at their backends; and what it may see of them.

Whoever aims a fault at a backend says so first, and names the errors that its callers may then end
with. Any other error, and any error of another backend's, is a stray one.
"""

import random
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from serving.fault_backends import STEPS
from shoal.serving.controller.controller import Controller

HANG_S = 40


@dataclass
class Fault:
    """A fault that is aimed at a backend."""

    tag: str
    errors: tuple[type[Exception], ...]
    start: float
    end: float | None = None


@dataclass
class Seen:
    """What callers saw."""

    asked: int = 0
    answered: int = 0
    blamed: dict[str, int] = field(default_factory=dict)
    stray: list[str] = field(default_factory=list)
    clear: int = 0


class FaultLoad:
    """Callers that call endpoints again and again, and check what they get."""

    def __init__(
        self, controller: Controller, random: random.Random, pause_s: float, first: int = 0
    ) -> None:
        self.seen = Seen()
        self.numbers: list[int] = []
        self._controller = controller
        self._random = random
        self._pause_s = pause_s
        self._faults: list[Fault] = []
        self._next = first
        self._is_over = False

    def stop(self) -> None:
        """Has the callers make no further call."""
        self._is_over = True

    @contextmanager
    def aimed(self, tag: str, *errors: type[Exception]) -> Generator[None]:
        """Lets callers of a backend see these errors, if their call is under way in the block."""
        fault = Fault(tag, errors, anyio.current_time())
        self._faults.append(fault)
        try:
            yield
        finally:
            fault.end = anyio.current_time()

    async def run(self, endpoint: str, callers: int) -> None:
        """Calls, until it is stopped and all calls have ended."""
        async with anyio.create_task_group() as tasks:
            for number in range(callers):
                tasks.start_soon(self._call_on, endpoint, number % 3 == 0)

    async def _call_on(self, endpoint: str, streams: bool) -> None:
        while not self._is_over:
            await anyio.sleep(self._random.uniform(0, self._pause_s))
            await self.call(endpoint, streams=streams)

    async def call(self, endpoint: str, order: str = "", *, streams: bool = False) -> Any:
        """Makes one call; it ends once, in time, with its answer or its error."""
        number = self._next
        self._next += 1
        self.seen.asked += 1
        started = anyio.current_time()
        traffic = self._controller.endpoints[endpoint].traffic
        assert traffic is not None
        weights = dict(traffic.weights)
        try:
            with anyio.fail_after(HANG_S):
                tag = await self._answer(endpoint, (number, order), streams)
        except Exception as error:
            self._blame(error, started, weights)
            return error
        assert weights[tag] > 0
        self.seen.answered += 1
        self.seen.clear += not self._faults_of(tag, started)
        self.numbers.append(number)
        return None

    async def _answer(self, endpoint: str, item: tuple[int, str], streams: bool) -> str:
        handle = await self._controller.get_handle(endpoint)
        if not streams:
            number, tag = await handle.call(item)
            assert number == item[0]
            return tag
        got: list[tuple[int, str]] = []
        async with handle.options(method_name="steps").stream(item) as stream:
            async for step in stream:
                got.append(step)
                assert step == (item[0], got[0][1])
        assert len(got) == STEPS
        return got[0][1]

    def _blame(self, error: Exception, started: float, weights: dict[str, float]) -> None:
        found = re.search(r"\b(v\d+)\b", str(error))
        tag = found[1] if found else ""
        faults = self._faults_of(tag, started)
        name = type(error).__name__
        if tag in weights and any(type(error) in fault.errors for fault in faults):
            self.seen.blamed[name] = self.seen.blamed.get(name, 0) + 1
            return
        self.seen.stray.append(f"{name}: {error} (faults: {faults}, traffic: {weights})")
        self.seen.clear += not faults

    def _faults_of(self, tag: str, started: float) -> list[Fault]:
        """Returns the faults aimed at a backend that a call which ends now may have met."""
        return [
            fault
            for fault in self._faults
            if fault.tag == tag and (fault.end is None or fault.end >= started)
        ]
