"""The one harness of random programs: it plays a program on a batcher, and watches from outside.

A vocabulary is what programs may say and what must hold then. There are two: batches that are
formed of what waits (`policy_model`), and batches that take requests while their handler runs
(`open_program_model`). All times are multiples of a quarter of a second, so that in virtual time
things that are unlikely to meet (a deadline, the ends of a run and of a window) meet all the time.

The models know nothing of how the engine works. They see what callers get and when, what handlers
are given and when, the statistics, and each state that a request is put into. Every error must have
its cause in the program, so a caller for whose call there is no cause to fail must have got its own
result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

import shoal
from batching.scenes import slots_of
from core.former_scenes import TRANSITIONS
from shoal.core.options.options import BatchOptions
from shoal.core.request import Request, State
from shoal.testing import settle


@dataclass(frozen=True)
class Cancel:
    """One of the callers that wait is cancelled."""

    which: int


@dataclass(frozen=True)
class Advance:
    """Time passes."""

    by_s: float


@dataclass(frozen=True)
class Configure:
    """Options change."""

    changes: dict[str, Any]


class Op(Enum):
    """What is done without a parameter."""

    HOLD = "from now on handlers wait"
    RELEASE = "handlers wait no longer"
    FLUSH = "`Batcher.flush`"
    DRAIN = "`Batcher.drain`"
    CLOSE = "`Batcher.aclose`, in a task of its own"
    SETTLE = "every task runs until it waits; without it the next is in the same tick"


@dataclass(frozen=True)
class Program:
    """A batcher's options, and what is done to it, in order."""

    streams: bool
    options: dict[str, Any]
    ops: list[Any] = field(default_factory=list)
    releases: bool = True  # whether handlers that are held at the end are released before closing
    seed: int = 0  # of trio's scheduler


EPSILON = 1e-6  # virtual time on trio starts at some large number, so its fractions are rounded
GRACE_S = 5.0


@dataclass(eq=False)
class Item(ABC):
    """One request, as a model knows it; it is the item that the call passes."""

    number: int
    script: tuple[str, ...]
    run_s: float
    arrived_at: float
    due: float
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    called: bool = False
    gone: bool = False  # was told to leave before any handler had seen it
    got: list[Any] = field(default_factory=list)
    ends: int = 0

    @property
    @abstractmethod
    def has_run(self) -> bool: ...


class Watched:
    """The requests that a batcher has accepted, in order, and those that had to wait for that."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.parked: set[Request] = set()


@contextmanager
def watched_requests() -> Iterator[Watched]:
    """Watches the requests that are accepted, and fails on a step that is not in the table."""
    watched = Watched()
    wrong: list[tuple[State | None, State]] = []

    def watch(request: Request, name: str, value: Any) -> None:
        if name == "state":
            before = getattr(request, "state", None)
            if before is None:
                watched.requests.append(request)
            if value is State.PARKED:
                watched.parked.add(request)
            if value not in TRANSITIONS[before]:
                wrong.append((before, value))
        object.__setattr__(request, name, value)

    Request.__setattr__ = watch  # type: ignore[method-assign, assignment]
    try:
        yield watched
    finally:
        del Request.__setattr__
    assert wrong == []


class World(ABC):
    """One program's batcher, its callers, its handler, and what is known of them."""

    def __init__(
        self, program: Program, tasks: TaskGroup, watched: Watched, batcher: shoal.Batcher[Any]
    ) -> None:
        self.program = program
        self.tasks = tasks
        self.requests = watched.requests
        self.was_parked = watched.parked
        self.batcher = batcher
        self.items: list[Any] = []
        self.errors: list[BaseException] = []
        self.gate: anyio.Event | None = None
        self.closing = False
        self.dropping = False  # whether it drains, and has failed its queue
        self._formed_under: dict[int, BatchOptions] = {}

    # What the program does

    async def do(self, op: Any) -> None:
        match op:
            case Cancel():
                self._cancel(op.which)
            case Advance():
                await anyio.sleep(op.by_s)
            case Op.HOLD:
                self.gate = self.gate or anyio.Event()
            case Op.RELEASE:
                self.release()
            case Configure():
                self._configure(op.changes)
            case Op.FLUSH:
                self.batcher.flush()
            case Op.DRAIN:
                self.dropping |= self.batcher.options.drop_queued_on_shutdown
                self.batcher.drain()
            case Op.CLOSE:
                self.closing = True
                self.tasks.start_soon(self.batcher.aclose)
            case Op.SETTLE:
                await settle()
                self.check_at_rest()
            case _:
                self._start(op)

    @abstractmethod
    def _start(self, op: Any) -> None:
        """Starts the callers of an operation."""

    def release(self) -> None:
        if self.gate is not None:
            self.gate.set()
            self.gate = None

    def _cancel(self, which: int) -> None:
        waiting = [item for item in self.items if item.called and not item.ends]
        if waiting:
            chosen = waiting[which % len(waiting)]
            for item in waiting:
                if item.scope is chosen.scope:
                    # A reader leaves by closing its stream, at its next turn; and who has joined an
                    # open batch may be given to the handler although it has left since.
                    item.gone = not item.has_run and not self.program.streams
            chosen.scope.cancel()

    @property
    def options(self) -> BatchOptions:
        """The options by which batches form now: a batch that gathers keeps those it began with."""
        session = self.batcher._session
        return self.batcher.options if session is None else session._former.options

    def formed_under(self, batch: shoal.Batch) -> BatchOptions:
        """Returns the options that were in force when a batch was formed that starts now."""
        return self._formed_under.pop(batch.id, self.options)

    def _configure(self, changes: dict[str, Any]) -> None:
        self.batcher.configure(**changes)
        session = self.batcher._session
        if session is not None and not isinstance(session._intake._adopt, partial):
            session._intake._adopt = partial(self._adopt, session._intake._adopt)

    def _adopt(self, adopt: Callable[[], None]) -> None:
        before = self.options
        adopt()
        if self.options is not before:
            session = self.batcher._session
            assert session is not None
            self._formed_under = {batch.id: before for batch in session.slots.batches}
            self._took_in()

    @abstractmethod
    def _took_in(self) -> None:
        """Notes that options which were changed before have come into force."""

    # What callers and handlers do

    def _face(self, timeout_s: float | None) -> Any:
        call = self.batcher.call
        return call if timeout_s is None else call.options(timeout_s=timeout_s)

    async def _read_on(self, stream: Any, item: Any, reads: int | None, pause_s: float) -> bool:
        """Reads so many items, or all; says whether the stream has come to its end."""
        while reads is None or len(item.got) < reads:
            try:
                item.got.append(await anext(stream))
            except StopAsyncIteration:
                return True
            await anyio.sleep(pause_s)
        return False

    async def _work(self, run_s: float) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if run_s:
            await anyio.sleep(run_s)

    # What must hold

    @abstractmethod
    def check_at_rest(self) -> None:
        """Checks what holds whenever every task waits."""

    def check_at_end(self) -> None:
        """Checks what holds when the batcher is closed and all callers have ended."""
        assert all(item.ends == 1 for item in self.items), "a caller has no end, or two"
        assert len(set(map(id, self.errors))) == len(self.errors), "callers share an error"
        assert slots_of(self.batcher) == 0, "a task of the batcher is left"
        statistics = self.batcher.statistics()
        assert (statistics.state, statistics.queued, statistics.parked) == ("closed", 0, 0)
        assert (statistics.running, statistics.batches_running) == (0, 0)
        states = {request.state for request in self.requests}
        ends = {State.FINISHED, State.FAILED, State.CANCELLED}
        assert ends.issuperset(states), "an accepted request has not ended"
        assert statistics.finished == self.number_in(State.FINISHED)

    def number_in(self, state: State) -> int:
        return sum(request.state is state for request in self.requests)


async def run_program(world_type: Any, program: Program) -> None:
    """Runs a program in a world, and raises AssertionError where a promise is not kept."""
    with watched_requests() as watched, anyio.fail_after(1000):
        async with anyio.create_task_group() as tasks:
            world: World = world_type(program, tasks, watched)
            async with world.batcher:
                try:
                    for op in program.ops:
                        await world.do(op)
                    if program.releases:
                        world.release()
                finally:
                    world.closing = True
                left_at = anyio.current_time()
            assert anyio.current_time() <= left_at + GRACE_S + EPSILON
    world.check_at_end()
