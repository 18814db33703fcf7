"""Runs a random program and holds all that happens against a plain model of the promises.

The model knows nothing of how the engine works. It watches from outside: what callers get and when,
what handlers are given and when, the statistics, and each state that a request is put into. Every
error must have its cause in the program, so a caller for whose call there is no cause to fail must
have got its own result.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

import shoal
from batching import programs as ops
from shoal.core.request import TRANSITIONS, Request, State
from shoal.testing import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anyio.abc import TaskGroup

    from shoal.core.options import BatchOptions

EPSILON = 1e-6  # virtual time on trio starts at some large number, so its fractions are rounded
GRACE_S = 5.0
BREAKS = ("raise", "short")


class InSlot(Exception):
    """What a handler puts into the slot of one request."""


class Raised(Exception):
    """What a handler raises."""


@dataclass(eq=False)
class Run:
    """One call of the handler."""

    items: list[Item]
    options: BatchOptions
    started_at: float
    broke_at: float = math.inf  # the step at which it raised, or gave the wrong number of slots


@dataclass(eq=False)
class Item:
    """One request, as the model knows it; it is the item that the call passes."""

    number: int
    script: tuple[str, ...]
    run_s: float
    arrived_at: float
    due: float
    options: BatchOptions
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    called: bool = False
    gone: bool = False  # was told to leave before any handler had seen it
    got: list[Any] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    ends: int = 0

    def steps_of(self, kind: str) -> list[int]:
        return [step for step, slot in enumerate(self.script) if slot == kind]

    @property
    def is_late(self) -> bool:
        return self.due <= self.arrived_at

    @property
    def breaks(self) -> bool:
        return any(slot in BREAKS for slot in self.script)


class World:
    """One program's batcher, its callers, its handler, and what is known of them."""

    def __init__(self, program: ops.Program, tasks: TaskGroup) -> None:
        self.program = program
        self.tasks = tasks
        handler = self._stream_handler if program.streams else self._unary_handler
        self.batcher: shoal.Batcher[Any] = shoal.Batcher(handler, name="it", **program.options)
        self.items: list[Item] = []
        self.errors: list[BaseException] = []
        self.running: dict[int, Run] = {}
        self.batches: dict[int, Run] = {}
        self.last_number = -1
        self.gate: anyio.Event | None = None
        self.closing = False
        self.turned_away: set[Item] = set()  # for want of room; or of time, if not accepted
        self.unbound = False  # the line may hold more than the bound that was set meanwhile
        self.free_since = self.changed_at = anyio.current_time()

    # What the program does

    async def do(self, op: Any) -> None:
        match op:
            case ops.Calls():
                for _ in range(op.count):
                    self.tasks.start_soon(self._read if self.program.streams else self._call, op)
            case ops.Map():
                self.tasks.start_soon(self._map, op)
            case ops.Cancel():
                self._cancel(op.which)
            case ops.Advance():
                await anyio.sleep(op.by_s)
            case ops.Hold():
                self.gate = self.gate or anyio.Event()
            case ops.Release():
                self.release()
            case ops.Configure():
                self._configure(op.changes)
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
            for item in waiting:
                if item.scope is chosen.scope:
                    # A reader leaves by closing its stream, at its next turn.
                    item.gone = not item.runs and not self.program.streams
            chosen.scope.cancel()

    def _configure(self, changes: dict[str, Any]) -> None:
        before = self.batcher.options.max_concurrent_batches
        self.batcher.configure(**changes)
        self.unbound = True
        self.changed_at = anyio.current_time()
        if self.batcher.options.max_concurrent_batches > before:
            self.free_since = self.changed_at

    # What callers do

    def _arrive(self, script: tuple[str, ...], run_s: float, deadline_s: float | None) -> Item:
        now = anyio.current_time()
        options = self.batcher.options
        limits = [s for s in (deadline_s, options.request_timeout_s) if s is not None]
        due = now + min(limits, default=math.inf)
        item = Item(len(self.items), script, run_s, now, due, options)
        self.items.append(item)
        return item

    def _face(self, deadline_s: float | None) -> Any:
        call = self.batcher.call
        return call if deadline_s is None else call.options(deadline_s=deadline_s)

    async def _call(self, op: ops.Calls) -> None:
        item = self._arrive(op.script, op.run_s, op.deadline_s)
        with item.scope:
            try:
                item.called = True
                result = await self._face(op.deadline_s)(item)
            except Exception as error:
                self._judge(item, error)
            else:
                assert result == ("result", item.number)
                self._judge(item, None)
            return
        self._left(item)

    async def _map(self, op: ops.Map) -> None:
        items = [self._arrive((script,), 0.0, op.deadline_s) for script in op.scripts]
        scope = anyio.CancelScope()
        for item in items:
            item.scope = scope
            item.called = True
        with scope:
            try:
                results = await self._face(op.deadline_s).map(
                    items, return_exceptions=op.return_exceptions
                )
            except Exception as error:
                late = items[0].is_late and isinstance(error, shoal.DeadlineExceeded)
                refused = late or isinstance(error, (shoal.Overloaded, shoal.BatcherClosed))
                if refused and not any(item.runs for item in items):
                    for item in items:
                        self._judge(item, error, shared=True)
                    self.errors.append(error)
                    return
                assert not op.return_exceptions
                self._judge_first(items, error)
                return
            assert len(results) == len(items)
            for item, result in zip(items, results, strict=True):
                if isinstance(result, Exception):
                    assert op.return_exceptions
                    self._judge(item, result)
                else:
                    assert result == ("result", item.number)
                    self._judge(item, None)
            return
        for item in items:
            self._left(item)

    def _judge_first(self, items: list[Item], error: Exception) -> None:
        """A map raised: that error has its cause in one of the items, and the others had an end."""
        for position, item in enumerate(items):
            try:
                self._judge(item, error, shared=True)
            except AssertionError:
                item.ends -= 1
                self._judge(item, None)
            else:
                self.errors.append(error)
                for later in items[position + 1 :]:
                    later.ends += 1
                return
        raise AssertionError(f"no cause for {error!r}")

    async def _read(self, op: ops.Calls) -> None:
        item = self._arrive(op.script, op.run_s, op.deadline_s)
        with item.scope:
            try:
                item.called = True
                async with self._face(op.deadline_s)(item) as stream:
                    while op.reads is None or len(item.got) < op.reads:
                        try:
                            item.got.append(await anext(stream))
                        except StopAsyncIteration:
                            self._judge(item, None)
                            return
                        await anyio.sleep(op.pause_s)
            except Exception as error:
                self._judge(item, error)
            else:
                self._left(item)
            return
        self._left(item)

    # What handlers do

    async def _unary_handler(self, items: list[Item]) -> list[Any]:
        with self._run(items) as run:
            await self._work(items)
            kinds = [item.script[0] for item in items]
            if "raise" in kinds:
                run.broke_at = 0
                raise Raised(shoal.current_batch().id)
            results = [
                InSlot(item.number) if kind == "slot" else ("result", item.number)
                for item, kind in zip(items, kinds, strict=True)
            ]
            if "short" in kinds:
                run.broke_at = 0
                results.pop()
            return results

    async def _stream_handler(self, items: list[Item]) -> AsyncIterator[list[Any]]:
        with self._run(items) as run:
            for step in range(max(len(item.script) for item in items) + 1):
                await self._work(items)
                kinds = [i.script[step] if step < len(i.script) else "end" for i in items]
                if "raise" in kinds:
                    run.broke_at = step
                    raise Raised(shoal.current_batch().id)
                slots = {"end": shoal.END, "skip": shoal.SKIP}
                made = [
                    InSlot(item.number) if kind == "slot" else slots.get(kind, (item.number, step))
                    for item, kind in zip(items, kinds, strict=True)
                ]
                if "short" in kinds:
                    run.broke_at = step
                    made.pop()
                yield made

    async def _work(self, items: list[Item]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        run_s = max(item.run_s for item in items)
        if run_s:
            await anyio.sleep(run_s)

    @contextmanager
    def _run(self, items: list[Item]) -> Iterator[Run]:
        run = Run(items, self.batcher.options, anyio.current_time())
        batch = shoal.current_batch()
        self._check_batch(run, batch)
        for item in items:
            item.runs.append(run)
        self.running[batch.id] = run
        try:
            yield run
        finally:
            del self.running[batch.id]
            if len(self.running) == self.batcher.options.max_concurrent_batches - 1:
                self.free_since = anyio.current_time()

    # What must hold

    def _check_batch(self, run: Run, batch: shoal.Batch) -> None:
        items, options, now = run.items, run.options, run.started_at
        numbers = [item.number for item in items]
        assert [request.item for request in batch.requests] == items
        assert numbers == sorted(set(numbers)), "order within a batch"
        if batch.id in self.batches:
            first = self.batches[batch.id]
            run.options = first.options
            assert first.options.isolate_errors, "a handler was given a batch twice"
            assert set(items) < set(first.items)
            return
        self.batches[batch.id] = run
        assert 1 <= len(items) <= options.max_batch_size
        assert numbers[0] > self.last_number, "order across batches"
        self.last_number = numbers[-1]
        assert len(self.running) < options.max_concurrent_batches
        wait_s = math.inf if options.batch_wait_timeout_s is None else options.batch_wait_timeout_s
        for item in items:
            assert not item.gone, "the handler was given a request whose caller had left"
            assert not item.ends, "the handler was given a request that had ended"
            assert now <= item.due + EPSILON, "the handler was given an expired request"
            latest = max(item.arrived_at + wait_s, self.free_since, self.changed_at)
            assert now <= latest + EPSILON, "a request waited for too long"

    def _left(self, item: Item) -> None:
        """A caller was cancelled, or left its stream."""
        item.ends += 1
        self._check_got(item, complete=False)

    def _judge(self, item: Item, error: Exception | None, *, shared: bool = False) -> None:
        """A caller got its result, or the whole of its stream, or an error."""
        item.ends += 1
        if error is not None and not shared:
            self.errors.append(error)
        now = anyio.current_time()
        run = item.runs[-1] if item.runs else None
        broke_at = math.inf if run is None else run.broke_at
        slot_at = min(item.steps_of("slot"), default=math.inf)
        length = 0 if not self.program.streams else len(item.script)
        match error:
            case None:
                assert run is not None
                assert slot_at == math.inf
                assert broke_at > length
                assert self.program.streams or now <= item.due + EPSILON
                self._check_got(item, complete=True)
            case InSlot():
                assert error.args == (item.number,)
                assert slot_at < broke_at
                self._check_got(item, complete=True)
            case Raised() | shoal.WrongBatchSize():
                assert run is not None
                assert broke_at <= length
                assert broke_at <= slot_at
                sent = any(step < broke_at for step in item.steps_of("item"))
                assert item.breaks or not run.options.isolate_errors or sent
                self._check_got(item, complete=True)
            case shoal.Overloaded():
                self.turned_away.add(item)
                assert run is None
                assert now == item.arrived_at
                assert item.options.overload == "reject"
                assert item.options.max_queued_requests is not None
            case shoal.BatcherClosed():
                assert self.closing
            case shoal.DeadlineExceeded():
                if item.is_late:
                    self.turned_away.add(item)
                assert now >= item.due - EPSILON
                assert self.program.streams or now <= item.due + EPSILON
                self._check_got(item, complete=False)
            case shoal.HandlerTimeout():
                assert run is not None
                assert run.options.handler_timeout_s is not None
                assert now >= run.started_at + run.options.handler_timeout_s - EPSILON
                self._check_got(item, complete=False)
            case shoal.SlowReader():
                assert run is not None
                assert run.options.slow_reader_timeout_s is not None
                self._check_got(item, complete=False)
            case _:
                raise AssertionError(f"an error without a cause: {error!r}") from error

    def _check_got(self, item: Item, *, complete: bool) -> None:
        """A stream gives its own items, in order, up to where it or its batch came to an end."""
        if not self.program.streams:
            return
        # Only who has been sent nothing runs again, so the last run is the one that tells.
        broke_at = [run.broke_at for run in item.runs[-1:]]
        last = min([*item.steps_of("slot"), *broke_at], default=math.inf)
        wanted = [(item.number, step) for step in item.steps_of("item") if step < last]
        assert item.got == (wanted if complete else wanted[: len(item.got)])

    def check_at_rest(self) -> None:
        """What holds whenever every task waits."""
        now = anyio.current_time()
        options = self.batcher.options
        statistics = self.batcher.statistics()
        assert statistics.batches_running == len(self.running)
        free = options.max_concurrent_batches - statistics.batches_running
        if self.closing:
            return
        if free > 0:
            assert statistics.queued < options.max_batch_size, "a full batch waits"
            if options.batch_wait_timeout_s is not None:
                for item in self.items:
                    due = item.arrived_at + options.batch_wait_timeout_s
                    assert not item.called or item.ends or item.runs or due > now - EPSILON
        if statistics.queued + statistics.parked == 0:
            self.unbound = False
        bound = options.max_queued_requests
        if bound is not None and not self.unbound:
            assert statistics.queued <= bound + max(free, 0) * options.max_batch_size
        assert bound is not None or statistics.parked == 0

    def check_at_end(self, requests: list[Request]) -> None:
        """What holds when the batcher is closed and all callers have ended."""
        assert all(item.ends == 1 for item in self.items)
        assert len(set(map(id, self.errors))) == len(self.errors), "callers share an error"
        assert self.batcher.stacks() == [], "a task of the batcher is left"
        assert self.running == {}
        statistics = self.batcher.statistics()
        assert (statistics.state, statistics.queued, statistics.parked) == ("closed", 0, 0)
        assert (statistics.running, statistics.batches_running) == (0, 0)
        states = [request.state for request in requests]
        assert statistics.finished == states.count(State.FINISHED)
        assert statistics.failed == states.count(State.FAILED)
        assert min(statistics.cancelled, statistics.expired) >= 0
        left = statistics.cancelled + statistics.expired
        accepted = {request.item for request in requests}
        refused = {item for item in self.turned_away if item not in accepted or not item.is_late}
        assert left + statistics.rejected == states.count(State.CANCELLED) + len(refused)
        assert len(accepted) == len(requests) <= len(self.items) - len(refused)
        assert not accepted & refused
        ends = {State.FINISHED, State.FAILED, State.CANCELLED}
        assert ends.issuperset(states), "an accepted request has not ended"
        assert sum(statistics.batches.values()) == statistics.batch_size.total == len(self.batches)
        assert statistics.batch_size.sum == sum(len(run.items) for run in self.batches.values())


@contextmanager
def watched_requests(parked: set[Request] | None = None) -> Iterator[list[Request]]:
    """Gives the requests that are accepted, and fails on a step that is not in the table.

    Args:
        parked: Where to put those that had to wait to be let in.
    """
    requests: list[Request] = []
    wrong: list[tuple[State | None, State]] = []

    def watch(request: Request, name: str, value: Any) -> None:
        if name == "state":
            before = getattr(request, "state", None)
            if before is None:
                requests.append(request)
            if value is State.PARKED and parked is not None:
                parked.add(request)
            if value not in TRANSITIONS[before]:
                wrong.append((before, value))
        object.__setattr__(request, name, value)

    Request.__setattr__ = watch  # type: ignore[method-assign, assignment]
    try:
        yield requests
    finally:
        del Request.__setattr__
    assert wrong == []


async def run_program(program: ops.Program) -> None:
    """Runs a program, and raises AssertionError where a promise is not kept."""
    with watched_requests() as requests, anyio.fail_after(1000):
        async with anyio.create_task_group() as tasks:
            world = World(program, tasks)
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
