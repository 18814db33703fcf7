"""Runs the replicas of the replica check: one promise at a time, with a time limit."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from shoal.batching.batcher import Batcher
from shoal.batching.calls.stream import END, SKIP
from shoal.batching.current import Identity, running_batch, setting
from shoal.core.request import Batch, DispatchReason, State
from shoal.errors import ReplicaNotStarted
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, Placement, Replica, ReplicaOptions
from shoal.testing.policies import make_request
from shoal.testing.replicas.code import AsyncCode, Folder, PlainCode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence

    from anyio.abc import TaskGroup

    from shoal.batching.handlers.handler import Fill
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


@dataclass(eq=False)
class CheckedCall:
    """A call in its own task."""

    result: Any = None
    # The events that the code had recorded when the call ended.
    notes: Sequence[str] = ()
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def end(self) -> Any:
        """Waits for the end; returns the result or the error, None if the call was cancelled."""
        await self.ended.wait()
        return self.result


@dataclass(eq=False)
class Stage:
    """Runs replicas of one placement, with one kind of code, and compares what they do."""

    placement: Placement
    kind: Kind
    folder: Folder
    patience_s: float
    crash: Callable[[], Any] | None
    # Whether replicas form batches of their own.
    own_batches: bool
    # The promise that is being checked; any failure breaks it.
    promise: str = READY
    # The replica that runs, and the tasks of its calls.
    played: Played = field(init=False)
    tasks: TaskGroup = field(init=False)

    def broken(self, how: str) -> AssertionError:
        name = getattr(self.placement, "__qualname__", None) or repr(self.placement)
        return AssertionError(
            f"{name} breaks a promise: {self.promise}; with {self.kind} code, {how}"
        )

    def expect(self, is_kept: object, how: str) -> None:
        if not is_kept:
            raise self.broken(how)

    def same(self, what: str, got: Any, wanted: Any) -> None:
        self.expect(_is_same(got, wanted), f"{what} gave {got!r}, not {wanted!r}")

    def refused(self, error: type[Exception], what: str, function: Callable[[], Any]) -> None:
        try:
            got = function()
        except error:
            return
        raise self.broken(f"{what} got {got!r}")

    async def gives(self, method: str, items: list[Any], wanted: Any) -> None:
        """Checks the result or the error of a method."""
        got = await outcome(self.played.run(method, items))
        self.same(f"{method} of {items}", got, wanted)

    async def yields(self, method: str, items: list[Any], wanted: list[Any]) -> None:
        """Checks the steps of a generator; its error is the last."""
        got = await self.played.steps(method, items)
        if self.own_batches:
            got, wanted = _by_request(got, len(items)), _by_request(wanted, len(items))
        self.same(f"{method} of {items}", got, wanted)

    def begin(self, work: Awaitable[Any]) -> CheckedCall:
        call = CheckedCall()

        async def run() -> None:
            with call.scope:
                call.result = await outcome(work)
            call.notes = self.folder.notes()
            call.ended.set()

        self.tasks.start_soon(run)
        return call

    async def holding(self, work: Awaitable[Any], name: str) -> CheckedCall:
        """Begins a call, and waits until its code holds a name."""
        call = self.begin(work)
        await self.until(f"holds {name}")
        return call

    async def until(self, line: str) -> None:
        """Waits until the code has recorded an event."""
        while line not in self.folder.notes():  # noqa: ASYNC110 - by another process
            await anyio.sleep(_LOOK_EVERY_S)

    def code(self, mistake: str = "", **kwargs: Any) -> Definition:
        code = PlainCode if self.kind == "plain" else AsyncCode
        return Definition(code, (self.folder.path, mistake), tuple(kwargs.items()))

    def made(self, definition: Definition, user_config: Any = None, **options: Any) -> Played:
        options = {"start_timeout_s": self.patience_s, "cancel_grace_s": 0.5, **options}
        blueprint = Blueprint(
            identity=IDENTITY,
            definition=definition,
            user_config=user_config,
            options=ReplicaOptions(**options),
        )
        return Played(self.placement(blueprint))

    @asynccontextmanager
    async def playing(self, definition: Definition | None = None) -> AsyncGenerator[Played]:
        """Runs a replica during a block, which starts when it is ready; stops it afterwards."""
        promise = self.promise
        if definition is not None:
            self.played = played = self.made(definition)
        else:
            self.promise = READY
            code = self.code("configured mistake", greeting="hello")
            self.played = played = self.made(code, "first")
        async with anyio.create_task_group() as self.tasks:
            self.tasks.start_soon(played.serve)
            await played.ready.wait()
            self.expect(played.description is not None, f"it ended with {played.error!r}")
            self.promise = promise
            try:
                yield played
            except BaseException:
                self.folder.release("all")
                self.tasks.cancel_scope.cancel()
                raise
            self.promise = STOPPED
            played.replica.stop()
            await played.ended.wait()
        self.promise = promise

    def batcher(self, method: str, fill: Fill, *, streams: bool = False) -> Any:
        """Returns a batcher of open batches of two requests."""
        made: Any = Batcher
        run = partial(self.played.replica.run_open, method)
        return made(run, fill=fill, streams=streams, max_batch_size=2, batch_wait_timeout_s=0)

    async def does_not_start(self, played: Played, why: str = "") -> None:
        await played.serve()
        self.expect(played.description is None, "it was ready")
        error = played.error
        is_kept = isinstance(error, ReplicaNotStarted) and why in f"{error} {error.__cause__}"
        self.expect(is_kept, f"serve ended with {error!r}, not for {why!r}")


def _is_same(got: Any, wanted: Any) -> bool:
    """Compares results; an error has the type, the text, and the replica of the wanted one."""
    if isinstance(wanted, Exception):
        tags = [getattr(error, "replica", None) for error in (got, wanted)]
        return isinstance(got, type(wanted)) and str(wanted) in str(got) and tags[0] == tags[1]
    if issubclass(type(wanted), list):
        is_list = issubclass(type(got), list) and len(got) == len(wanted)
        return is_list and all(map(_is_same, got, wanted))
    return bool(got == wanted)


def _by_request(steps: list[Any], count: int) -> list[list[Any]]:
    """Returns what each stream of a batch gave, however it was divided into steps."""
    streams: list[list[Any]] = [[] for _ in range(count)]
    for step in steps:
        slots: list[Any] = [step] * count if isinstance(step, Exception) else step
        for stream, slot in zip(streams, slots, strict=True):
            if slot not in (END, SKIP, StopIteration, StopAsyncIteration):
                stream.append(slot)
    return streams


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
