"""Runs a random program on open or continuous batches, against a plain model of the promises.

As in `program_model` the model watches from outside: what callers get, what handlers are given and
when, the statistics, and each state that a request is put into. Every error must have its cause in
the program.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

import shoal
from batching import programs as ops
from batching.program_model import EPSILON, GRACE_S, watched_requests
from shoal.core.request import Request, State
from shoal.testing import settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.abc import TaskGroup


class Failed(Exception):
    """What a handler fails one request with."""


class Raised(Exception):
    """What a handler raises."""


@dataclass(frozen=True)
class OpenProgram:
    """A batcher's options, its handler, and what is done to it.

    Attributes:
        fill: How its batches are filled.
        streams: Whether its calls are answered by streams.
        steps: Whether its handler works in steps; if not it has a task for each request.
        costs: Whether a request counts by its cost.
        options: The batcher's options.
        ops: What is done, in order.
        releases: Whether handlers that are held at the end are released before closing.
        seed: The seed of trio's scheduler.
    """

    fill: str
    streams: bool
    steps: bool
    costs: bool
    options: dict[str, Any]
    ops: list[Any] = field(default_factory=list)
    releases: bool = True
    seed: int = 0


@dataclass(eq=False)
class Run:
    """One run of the handler, on one batch."""

    batch: Any
    active: list[Item] = field(default_factory=list)
    given: float = 0
    raised: bool = False
    returned: bool = False


@dataclass(eq=False)
class Item:
    """One request, as the model knows it; it is the item that the call passes."""

    number: int
    cost: int
    script: tuple[str, ...]
    run_s: float
    arrived_at: float
    due: float
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    called: bool = False
    gone: bool = False
    run: Run | None = None
    got: list[Any] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    ends: int = 0


class OpenWorld:
    """One program's batcher, its callers, its handler, and what is known of them."""

    def __init__(self, program: OpenProgram, tasks: TaskGroup) -> None:
        self.program = program
        self.tasks = tasks
        costs = {"batch_size_fn": lambda item: item.cost} if program.costs else {}
        make: Any = shoal.Batcher
        self.batcher: shoal.Batcher[Any] = make(
            self._handler,
            fill=program.fill,
            streams=program.streams,
            name="it",
            **program.options,
            **costs,
        )
        self.items: list[Item] = []
        self.errors: list[BaseException] = []
        self.runs: list[Run] = []
        self.all_runs: list[Run] = []
        self.gate: anyio.Event | None = None
        self.closing = False
        self.least = self.batcher.options.max_batch_size
        self.was_bounded = self.batcher.options.max_queued_requests is not None

    async def do(self, op: Any) -> None:
        match op:
            case ops.Calls():
                for _ in range(op.count):
                    self.tasks.start_soon(self._read if self.program.streams else self._call, op)
            case ops.Cancel():
                self._cancel(op.which)
            case ops.Advance():
                await anyio.sleep(op.by_s)
            case ops.Hold():
                self.gate = self.gate or anyio.Event()
            case ops.Release():
                self.release()
            case ops.Configure():
                self.batcher.configure(**op.changes)
                options = self.batcher.options
                self.least = min(self.least, options.max_batch_size)
                self.was_bounded = self.was_bounded or options.max_queued_requests is not None
            case ops.Flush():
                self.batcher.flush()
            case ops.Drain():
                self.batcher.drain()
            case ops.Close():
                self.closing = True
                self.tasks.start_soon(self.batcher.aclose)
            case ops.Settle():
                await settle()
                self.check_at_rest()

    def release(self) -> None:
        if self.gate is not None:
            self.gate.set()
            self.gate = None

    def _cancel(self, which: int) -> None:
        waiting = [item for item in self.items if item.called and not item.ends]
        if waiting:
            chosen = waiting[which % len(waiting)]
            # A reader leaves by closing its stream, at its next turn; and who has joined may be
            # given to the handler although it has left since.
            chosen.gone = not self.program.streams and chosen.run is None
            chosen.scope.cancel()

    # What callers do

    def _arrive(self, op: ops.Calls) -> Item:
        now = anyio.current_time()
        limits = [
            s for s in (op.deadline_s, self.batcher.options.request_timeout_s) if s is not None
        ]
        due = now + min(limits, default=math.inf)
        number = len(self.items)
        cost = 1 + number % 3 if self.program.costs else 1
        item = Item(number, cost, op.script, op.run_s, now, due)
        self.items.append(item)
        return item

    def _face(self, op: ops.Calls) -> Any:
        call = self.batcher.call
        return call if op.deadline_s is None else call.options(deadline_s=op.deadline_s)

    async def _call(self, op: ops.Calls) -> None:
        item = self._arrive(op)
        with item.scope:
            try:
                item.called = True
                result = await self._face(op)(item)
            except Exception as error:
                self._judge(item, error)
            else:
                assert result == ("result", item.number)
                assert item.run is not None
                item.ends += 1
            return
        item.ends += 1

    async def _read(self, op: ops.Calls) -> None:
        item = self._arrive(op)
        with item.scope:
            try:
                item.called = True
                async with self._face(op)(item) as stream:
                    while op.reads is None or len(item.got) < op.reads:
                        try:
                            item.got.append(await anext(stream))
                        except StopAsyncIteration:
                            assert item.run is not None
                            assert item.got == item.sent
                            break
                        await anyio.sleep(op.pause_s)
            except Exception as error:
                self._judge(item, error)
                return
        item.ends += 1
        assert item.got == item.sent[: len(item.got)]

    # What handlers do

    async def _handler(self, batch: Any) -> None:
        with self._run(batch) as run:
            await (self._in_steps(batch, run) if self.program.steps else self._in_tasks(batch, run))

    async def _in_tasks(self, batch: Any, run: Run) -> None:
        async with anyio.create_task_group() as tasks:
            async for request in batch:
                self._given(run, request)
                tasks.start_soon(self._serve, request, run, tasks)

    async def _serve(self, request: Any, run: Run, tasks: TaskGroup) -> None:
        for kind in request.item.script:
            await self._work(request.item.run_s)
            if request.cancelled or await self._answer(request, run, kind):
                return
            if kind == "return":
                tasks.cancel_scope.cancel()

    async def _in_steps(self, batch: Any, run: Run) -> None:
        places: dict[Any, int] = {}
        async for joined in batch.steps():
            for request in joined:
                self._given(run, request)
                places[request] = 0
            self._check_step(batch)
            await self._work(max((request.item.run_s for request in batch.active), default=0))
            for request in batch.active:
                kind = request.item.script[places.setdefault(request, 0)]
                places[request] += 1
                if kind == "return":
                    run.returned = True
                    return
                await self._answer(request, run, kind)
                if kind == "forget":
                    places[request] -= 1
            if batch.active and all(r.item.script[-1] == "forget" for r in batch.active):
                await anyio.sleep(0.25)  # a step takes some time

    async def _answer(self, request: Any, run: Run, kind: str) -> bool:
        """Does one step of a request's script; returns whether it was the last."""
        item = request.item
        if kind == "raise":
            run.raised = True
            raise Raised
        if kind == "return":
            run.returned = True
            return False
        if kind == "forget":
            return True
        if kind == "fail":
            request.fail(Failed(item.number))
        elif not self.program.streams:
            request.finish(("result", item.number))
        elif kind == "item":
            chunk = (item.number, len(item.sent))
            item.sent.append(chunk)  # before: it may be read at once
            await request.send(chunk)
            return False
        else:
            request.finish()
        assert request.ended
        return True

    async def _work(self, run_s: float) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if run_s:
            await anyio.sleep(run_s)

    @contextmanager
    def _run(self, batch: Any) -> Iterator[Run]:
        run = Run(batch)
        assert batch.id not in [other.batch.id for other in self.all_runs]
        self.runs.append(run)
        self.all_runs.append(run)
        assert shoal.current_batch().id == batch.id
        try:
            yield run
        finally:
            self.runs.remove(run)

    # What must hold

    def _given(self, run: Run, request: Any) -> None:
        item: Item = request.item
        assert item.run is None, "a request runs twice"
        item.run = run
        run.active.append(item)
        assert not item.gone, "the handler was given a request whose caller had left"
        if not request.cancelled:
            assert not item.ends
            assert anyio.current_time() <= item.due + EPSILON
        run.given += item.cost
        most = self._most()
        if self.program.fill == "open":
            assert run.given <= most
        assert sum(r.item.cost for r in run.batch.active) <= most

    def _most(self) -> int:
        # What has joined under a larger bound stays.
        changes = [op.changes for op in self.program.ops if isinstance(op, ops.Configure)]
        sizes = [change["max_batch_size"] for change in changes if "max_batch_size" in change]
        return max([self.program.options["max_batch_size"], *sizes])

    def _check_step(self, batch: Any) -> None:
        """A place that is free has been taken before the step."""
        if self.program.fill == "open" or self.closing or self.program.costs:
            return
        options = self.batcher.options
        if len(self.runs) > options.max_concurrent_batches:
            return
        if len(batch.active) < options.max_batch_size:
            assert self.batcher.statistics().queued == 0, "a free place was not taken"

    def _judge(self, item: Item, error: Exception) -> None:
        item.ends += 1
        self.errors.append(error)
        now = anyio.current_time()
        run = item.run
        match error:
            case Failed():
                assert error.args == (item.number,)
                assert item.script[-1] == "fail"
            case Raised():
                assert self._has(run, "raised")
            case ExceptionGroup():
                assert error.subgroup(Raised) is not None
                assert self._has(run, "raised")
            case shoal.Unfinished():
                over = self.closing or self.program.fill == "open" or self._one_too_many()
                forgotten = run is not None and item.script[-1] == "forget" and over
                assert forgotten or self._has(run, "returned")
            case shoal.Overloaded():
                assert self.was_bounded
                assert run is None
            case shoal.ItemTooLarge():
                assert self.program.costs
                assert item.cost > self.least
                assert run is None
            case shoal.BatcherClosed():
                assert self.closing
            case shoal.DeadlineExceeded():
                assert now >= item.due - EPSILON
            case shoal.SlowReader():
                assert run is not None
                assert self.program.streams
            case _:
                raise AssertionError(f"an error without a cause: {error!r}") from error
        assert item.got == item.sent[: len(item.got)]

    def _one_too_many(self) -> bool:
        changes = [op.changes for op in self.program.ops if isinstance(op, ops.Configure)]
        return any("max_concurrent_batches" in change for change in changes)

    def _has(self, run: Run | None, what: str) -> bool:
        """Whether a run raised or returned; of one that the request was in, as far as is known."""
        return any(getattr(other, what) for other in (self.all_runs if run is None else [run]))

    def check_at_rest(self) -> None:
        """What holds whenever every task waits."""
        statistics = self.batcher.statistics()
        options = self.batcher.options
        assert statistics.batches_running == len(self.runs)
        if self.closing or self.program.costs:
            return
        slots = options.max_concurrent_batches
        if len(self.runs) > slots or not statistics.queued:
            return
        assert len(self.runs) == slots, "requests wait beside an idle slot"
        for run in self.runs:
            active = len(run.batch.active)
            if self.program.fill == "open":
                assert run.batch.reason is not shoal.CutReason.OPEN, "an open batch has room"
            elif not self.program.steps:
                assert active >= options.max_batch_size, "a free place was not taken"

    def check_at_end(self, requests: list[Request]) -> None:
        """What holds when the batcher is closed and all callers have ended."""
        assert all(item.ends == 1 for item in self.items)
        assert len(set(map(id, self.errors))) == len(self.errors), "callers share an error"
        assert self.batcher.stacks() == []
        assert self.runs == []
        statistics = self.batcher.statistics()
        assert (statistics.state, statistics.queued, statistics.parked) == ("closed", 0, 0)
        assert (statistics.running, statistics.batches_running) == (0, 0)
        states = [request.state for request in requests]
        assert {State.FINISHED, State.FAILED, State.CANCELLED}.issuperset(states)
        assert statistics.finished == states.count(State.FINISHED)
        assert sum(statistics.batches.values()) == len(self.all_runs)
        assert statistics.batch_size.total == len(self.all_runs)
        assert statistics.batch_size.sum == sum(run.batch.size for run in self.all_runs)


async def run_open_program(program: OpenProgram) -> None:
    """Runs a program, and raises AssertionError where a promise is not kept."""
    with watched_requests() as requests, anyio.fail_after(1000):
        async with anyio.create_task_group() as tasks:
            world = OpenWorld(program, tasks)
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
    world.check_at_end(requests)
