"""Scenes for tests of serving: a placement whose replicas start, fail and die when a test says so.

A `Stage` is given as a backend's ``placement``. Its replicas run the backend's real code, in this
event loop and without threads, so virtual time holds for them.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from batching.callers import line_up
from batching.scenes import settle
from handlers import echo as echo
from shoal.batching.current import running_replica
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.instance import Instance
from shoal.replicas.contract import Replica
from shoal.serving.controller.controller import Controller

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from anyio.abc import TaskGroup, TaskStatus

    from batching.callers import Caller
    from shoal.replicas.code.instance import Description
    from shoal.replicas.contract import Blueprint
    from shoal.serving.controller.endpoints import EndpointHandle


class ScriptedReplica(Replica):
    """A replica in this event loop that does what its stage says.

    Attributes:
        stage: The stage that made it.
        calls: The batches that it has run, each with its method's name.
        running: How many items it runs now, and the most there have been at once.
        user_config: What it was told last.
        told: All that its `reconfigure` was told, from its start on.
        end: How it ended; None while it has not.
    """

    def __init__(self, blueprint: Blueprint, stage: Stage) -> None:
        super().__init__(blueprint)
        self.stage = stage
        self.calls: list[tuple[str, list[Any]]] = []
        self.running = 0
        self.most_running = 0
        self.most_batches = 0
        self.told: list[Any] = []
        self.stopped = False
        self.killed: str | None = None
        self.end: str | None = None
        self.is_ready = False
        self.memory: int | None = None
        self.has_ended = anyio.Event()
        self.has_started = anyio.Event()
        self._scopes: list[anyio.CancelScope] = []
        self._starting = anyio.CancelScope()

    @property
    def number(self) -> int:
        """Which one of its backend it is, by the order in which they were made."""
        return int(self.tag.rpartition("#")[2])

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        self.stage.starting.append(self)
        try:
            with self._starting:
                await anyio.lowlevel.checkpoint()
                failure = await self.stage.start(self)
                if failure is not None:
                    raise ReplicaNotStarted(f"{self.tag}: {failure}")
                self.instance = Instance(self.blueprint.definition)
                if self.blueprint.user_config is not None:
                    await self._tell(self.blueprint.user_config)
            if self._starting.cancel_called:
                raise ReplicaNotStarted(f"{self.tag} {self.end}")
            self.is_ready = True
            self.has_started.set()
            task_status.started(self.instance.description)
            await self.has_ended.wait()
            if self.killed is not None:
                if self.stage.kill_gate is not None:
                    await self.stage.kill_gate.wait()
                raise ReplicaDied(f"{self.tag} {self.end}", replica=self.tag)
            if self.stage.stop_gate is not None:
                await self.stage.stop_gate.wait()
        except BaseException:
            self._finish("was cancelled")
            raise
        finally:
            self.is_ready = False
            self.has_started.set()
            self.stage.ended.append(self)

    def stop(self) -> None:
        self.stopped = True
        self._finish("was stopped")

    def kill(self, reason: str) -> None:
        self.killed = self.killed or reason
        self._finish(f"was killed: {reason}")

    def die(self, reason: str = "exploded") -> None:
        """Ends it as if its process had died."""
        self.kill(reason)

    def _finish(self, how: str) -> None:
        self.end = self.end or how
        self.is_ready = False
        self._starting.cancel()
        for scope in self._scopes:
            scope.cancel()
        self.has_ended.set()

    async def run(self, method: str, items: list[Any]) -> Any:
        with self._at_work(method, items):
            return await self.instance.handlers[method].results(items)

    async def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        with self._counted(method, items):
            steps = self.instance.handlers[method].steps(items)
            try:
                while True:
                    with self._alive():
                        step = await anext(steps, None)
                    if step is None:
                        return
                    yield step
            finally:
                await steps.aclose()

    @contextmanager
    def _at_work(self, method: str, items: list[Any]) -> Generator[None]:
        with self._counted(method, items), self._alive():
            yield

    @contextmanager
    def _counted(self, method: str, items: list[Any]) -> Generator[None]:
        self._check_alive()
        self.calls.append((method, list(items)))
        self.stage.calls.append((self.number, list(items)))
        self.running += len(items)
        self.most_running = max(self.most_running, self.running)
        try:
            yield
        finally:
            self.running -= len(items)

    @contextmanager
    def _alive(self) -> Generator[None]:
        """Ends what runs in the block when the replica ends."""
        self._check_alive()
        scope = anyio.CancelScope()
        self._scopes.append(scope)
        self.most_batches = max(self.most_batches, len(self._scopes))
        token = running_replica.set(self.blueprint.identity)
        try:
            with scope:
                yield
        finally:
            running_replica.reset(token)
            self._scopes.remove(scope)
        if scope.cancel_called:
            raise self._death()

    def _check_alive(self) -> None:
        if not self.is_ready:
            raise self._death()

    def _death(self) -> ReplicaDied:
        return ReplicaDied(f"{self.tag} {self.end or 'is not ready'}", replica=self.tag)

    async def reconfigure(self, user_config: Any) -> None:
        with self._alive():
            await self._tell(user_config)

    async def _tell(self, user_config: Any) -> None:
        self.told.append(user_config)
        await self.stage.reconfigure(self, user_config)
        hook = self.instance.hook("reconfigure")
        if hook is not None:
            hook(user_config)

    async def check_health(self) -> None:
        await self.stage.health(self)

    def memory_bytes(self) -> int | None:
        return self.memory


class Stage:
    """Makes scripted replicas; the test sets what they do.

    Attributes:
        replicas: All that were made, in order.
        starting: Those whose start has begun, also if it has ended.
        ended: Those whose `serve` has ended, in this order.
        calls: The batches that were run, each with the number of its replica.
        start: Awaited by each replica that starts; gives back why it fails, or None.
        health: Awaited by each health check.
        reconfigure: Awaited when a replica is told a user config.
        stop_gate: What the end of a replica that was stopped waits for; None for nothing.
        kill_gate: What the end of a replica that was killed waits for; None for nothing.
    """

    takes_open_batches = False

    def __init__(self) -> None:
        self.replicas: list[ScriptedReplica] = []
        self.starting: list[ScriptedReplica] = []
        self.ended: list[ScriptedReplica] = []
        self.calls: list[tuple[int, list[Any]]] = []
        self.start: Callable[[ScriptedReplica], Any] = in_turn
        self.health: Callable[[ScriptedReplica], Any] = at_once
        self.reconfigure: Callable[[ScriptedReplica, Any], Any] = at_once
        self.stop_gate: anyio.Event | None = None
        self.kill_gate: anyio.Event | None = None

    def __call__(self, blueprint: Blueprint) -> ScriptedReplica:
        replica = ScriptedReplica(blueprint, self)
        self.replicas.append(replica)
        return replica

    @property
    def alive(self) -> list[ScriptedReplica]:
        return [replica for replica in self.replicas if replica.is_ready]

    async def lose(self, number: int = 0, wait_s: float | None = None) -> None:
        """Has a replica die, and lets some time pass, or every task run until it waits."""
        self.replicas[number].die()
        await (settle() if wait_s is None else anyio.sleep(wait_s))


async def in_turn(replica: ScriptedReplica) -> None:
    """Starts without a pause, but after those of lower number that are being started."""
    for other in [*replica.stage.starting]:
        if other.number < replica.number:
            await other.has_started.wait()


async def at_once(*_: Any) -> None:
    """Does nothing, without a pause."""


async def never(*_: Any) -> None:
    await anyio.sleep_forever()


def failing(why: str = "no luck", numbers: Callable[[int], bool] = lambda _: True) -> Any:
    """Makes a `Stage.start` that fails, for some numbers or for all."""

    async def start(replica: ScriptedReplica) -> str | None:
        return why if numbers(replica.number) else None

    return start


class Gated:
    """A `Stage.start` that waits, for each replica, until the test lets it go on.

    Args:
        first: How many replicas are let go at once.
    """

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._gates: dict[int, anyio.Event] = {}
        self._failures: dict[int, str] = {}

    async def __call__(self, replica: ScriptedReplica, *_: Any) -> str | None:
        number = replica.number
        if number >= self._first:
            await self._gate(number).wait()
        return self._failures.get(number)

    def let(self, number: int, failure: str | None = None) -> None:
        """Lets replica number so-and-so go on, or has it fail."""
        if failure is not None:
            self._failures[number] = failure
        self._gate(number).set()

    async def go(self, number: int, failure: str | None = None) -> None:
        """Lets a replica go on, and then every task run until it waits."""
        self.let(number, failure)
        await settle()

    def _gate(self, number: int) -> anyio.Event:
        return self._gates.setdefault(number, anyio.Event())


@asynccontextmanager
async def serving(
    code: Any, stage: Stage | None = None, /, **config: Any
) -> AsyncGenerator[tuple[Controller, EndpointHandle, Stage]]:
    """Opens a controller with a backend ``b`` of some code, and an endpoint ``e`` of it."""
    stage = stage or Stage()
    async with Controller() as controller:
        both = {"placement": stage, **config}
        yield controller, await deployed(controller, "b", code, config=both, endpoint="e"), stage


async def deployed(
    client: Any, tag: str, code: Any, *args: Any, endpoint: str | None = None, **more: Any
) -> Any:
    """Makes a backend and an endpoint of it, by default of the same name; returns its handle."""
    await client.create_backend(tag, code, *args, **more)
    await client.create_endpoint(endpoint or tag, backend=tag)
    return await client.get_handle(endpoint or tag)


@asynccontextmanager
async def serving_tasks(
    code: Any, stage: Stage | None = None, /, **config: Any
) -> AsyncGenerator[tuple[Controller, EndpointHandle, Stage, TaskGroup]]:
    """Does as `serving`, with a task group for callers that ends first."""
    async with (
        serving(code, stage, **config) as (controller, handle, stage),
        anyio.create_task_group() as tasks,
    ):
        yield controller, handle, stage, tasks


async def under_way(tasks: TaskGroup, *calls: Any) -> list[Caller]:
    """Makes calls, one after the other, and lets them get as far as they can."""
    callers = await line_up(tasks, *calls)
    await settle()
    return callers


async def slowly(items: list[float]) -> list[float]:
    """Takes as many seconds as the largest item says."""
    await anyio.sleep(max(items))
    return items
