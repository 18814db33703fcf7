"""Runs the replicas of the replica check: one promise at a time, with a time limit."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from shoal.batching.current import Identity, running_batch, setting
from shoal.core.request import Batch, DispatchReason, State
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, Placement, Replica, ReplicaOptions
from shoal.testing.policies import make_request
from shoal.testing.replicas.code import AsyncCode, Folder, PlainCode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from shoal.replicas.code.instance import Description

# A kind of code: plain functions, or async ones.
Kind: TypeAlias = Literal["plain", "async"]

IDENTITY = Identity("checked", "checked#3")
READY = "serve reports the code's description as soon as it is ready, and keeps running"
STOPPED = "stop calls close() once, and makes serve return"

_LOOK_EVERY_S = 0.002


class Played:
    """A replica that the check runs, and how it ended."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.description: Description | None = None
        self.error: BaseException | None = None
        # Set when it is ready, or has ended.
        self.ready = anyio.Event()
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()

    async def serve(self) -> None:
        try:
            with self.scope:
                await self.replica.serve(task_status=self)
        except Exception as error:
            self.error = error
        finally:
            self.ready.set()
            self.ended.set()

    def started(self, value: Any = None) -> None:
        """Records that the replica is ready; `serve` calls it."""
        self.description = value
        self.ready.set()

    async def run(self, method: str, items: list[Any]) -> Any:
        with a_batch_of(items):
            return await self.replica.run(method, items)

    async def steps(self, method: str, items: list[Any]) -> list[Any]:
        """Returns all steps of a generator, followed by its error if it raised one."""
        steps: list[Any] = []
        with a_batch_of(items):
            try:
                async for step in self.replica.run_stream(method, items):
                    steps.append(step)  # noqa: PERF401 - the steps before an error are kept
            except Exception as error:
                steps.append(error)
        return steps


class CheckedCall:
    """A call in its own task, and the events that the code had recorded when it ended."""

    def __init__(self, stage: Stage, work: Awaitable[Any]) -> None:
        self.result: Any = None
        self.notes: list[str] = []
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self._stage = stage
        self._work = work

    async def run(self) -> None:
        try:
            with self.scope:
                self.result = await outcome(self._work)
        finally:
            self.notes = self._stage.folder.notes()
            self.ended.set()


class Stage:
    """Runs replicas of one placement, with one kind of code."""

    def __init__(
        self,
        placement: Placement,
        kind: Kind,
        folder: Folder,
        patience_s: float,
        crash: Callable[[], Any] | None,
        own_batches: bool = False,
    ) -> None:
        self.kind = kind
        self.folder = folder
        # The promise that is being checked; any failure breaks it.
        self.promise = READY
        self.crash = crash
        # Whether replicas form batches of their own.
        self.own_batches = own_batches
        self._placement = placement
        self._patience_s = patience_s

    def broken(self, how: str) -> AssertionError:
        name = getattr(self._placement, "__qualname__", None) or repr(self._placement)
        return AssertionError(
            f"{name} breaks a promise: {self.promise}; with {self.kind} code, {how}"
        )

    def expect(self, is_kept: bool, how: str) -> None:
        if not is_kept:
            raise self.broken(how)

    def code(self, trouble: str = "", **kwargs: Any) -> Definition:
        code = PlainCode if self.kind == "plain" else AsyncCode
        return Definition(code, (self.folder.path, trouble), tuple(kwargs.items()))

    def make(self, definition: Definition, user_config: Any = None, **options: Any) -> Replica:
        options = {"start_timeout_s": self._patience_s, "cancel_grace_s": 0.5, **options}
        return self._placement(
            Blueprint(
                identity=IDENTITY,
                definition=definition,
                user_config=user_config,
                options=ReplicaOptions(**options),
            )
        )

    @asynccontextmanager
    async def playing(
        self, definition: Definition | None = None, user_config: Any = None, **options: Any
    ) -> AsyncGenerator[Played, None]:
        """Runs a replica during a block, which starts when it is ready; stops it afterwards."""
        played = Played(self.make(definition or self.code(), user_config, **options))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(played.serve)
            await played.ready.wait()
            self.expect(played.description is not None, f"it ended with {played.error!r}")
            try:
                yield played
            except BaseException:
                self.folder.release("all")
                tasks.cancel_scope.cancel()
                raise
            self.promise = STOPPED
            played.replica.stop()
            await played.ended.wait()

    async def failed_start(
        self, definition: Definition, user_config: Any = None, **options: Any
    ) -> BaseException | None:
        """Runs a replica that must not become ready; returns the error of `serve`."""
        played = Played(self.make(definition, user_config, **options))
        await played.serve()
        self.expect(played.description is None, "it was ready")
        return played.error

    async def until(self, line: str, times: int = 1) -> None:
        """Waits until the code has recorded an event a number of times."""
        while self.folder.notes().count(line) < times:  # noqa: ASYNC110 - by another process
            await anyio.sleep(_LOOK_EVERY_S)

    async def expire(self, scope: anyio.CancelScope) -> None:
        """Cancels a check when its time is over."""
        await anyio.sleep(self._patience_s)
        scope.cancel()
        self.folder.release("all")


@contextmanager
def a_batch_of(items: list[Any]) -> Generator[None]:
    """Makes a batch of some items the current batch during a block."""
    batch = Batch(7, DispatchReason.FULL, [])
    requests = [make_request(item, metadata={"place": n}) for n, item in enumerate(items)]
    batch.admit(requests)
    try:
        with setting(running_batch, batch):
            yield
    finally:
        for request in requests:
            request.state = State.FINISHED
            request.batch = None


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except Exception as error:
        return error
