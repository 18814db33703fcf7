"""Programs on a batcher that forms batches of what waits, against a plain model of the promises."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

import shoal
from batching import program_world
from batching import programs as ops
from batching.program_world import EPSILON, Watched, World
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anyio.abc import TaskGroup

    from shoal.core.options.options import BatchOptions

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
class Item(program_world.Item):
    """One request of a batch that is formed of what waits."""

    _: KW_ONLY
    options: BatchOptions
    runs: list[Run] = field(default_factory=list)

    @property
    def has_run(self) -> bool:
        return bool(self.runs)

    def steps_of(self, kind: str) -> list[int]:
        return [step for step, slot in enumerate(self.script) if slot == kind]

    @property
    def is_late(self) -> bool:
        return self.due <= self.arrived_at

    @property
    def breaks(self) -> bool:
        return any(slot in BREAKS for slot in self.script)


class FormingWorld(World):
    """One program's batcher, which forms batches of what waits, and what must hold of it."""

    items: list[Item]

    def __init__(self, program: ops.Program, tasks: TaskGroup, watched: Watched) -> None:
        handler = self._stream_handler if program.streams else self._unary_handler
        batcher: shoal.Batcher[Any] = shoal.Batcher(handler, name="it", **program.options)
        super().__init__(program, tasks, watched, batcher)
        self.running: dict[int, Run] = {}
        self.batches: dict[int, Run] = {}
        self.last_number = -1
        self.turned_away: set[Item] = set()  # for want of room; or of time, if not accepted
        self.unbound = False  # the queue may hold more than the bound that was set meanwhile
        self.free_since = self.changed_at = anyio.current_time()

    # What the program does

    def _start(self, op: Any) -> None:
        if isinstance(op, ops.Map):
            self.tasks.start_soon(self._map, op)
            return
        for _ in range(op.count):
            self.tasks.start_soon(self._read if self.program.streams else self._call, op)

    def _configure(self, changes: dict[str, Any]) -> None:
        before = self.options.max_concurrent_batches
        super()._configure(changes)
        self.unbound = True
        self.changed_at = anyio.current_time()
        if self.options.max_concurrent_batches > before:
            self.free_since = self.changed_at

    def _took_in(self) -> None:
        self.unbound = True
        self.changed_at = anyio.current_time()

    # What callers do

    def _arrive(self, script: tuple[str, ...], run_s: float, timeout_s: float | None) -> Item:
        now = anyio.current_time()
        options = self.options
        limits = [s for s in (timeout_s, options.request_timeout_s) if s is not None]
        due = now + min(limits, default=math.inf)
        item = Item(len(self.items), script, run_s, now, due, options=options)
        self.items.append(item)
        return item

    async def _call(self, op: ops.Calls) -> None:
        item = self._arrive(op.script, op.run_s, op.timeout_s)
        with item.scope:
            try:
                item.called = True
                result = await self._face(op.timeout_s)(item)
            except Exception as error:
                self._judge(item, error)
            else:
                assert result == ("result", item.number)
                self._judge(item, None)
            return
        self._left(item)

    async def _map(self, op: ops.Map) -> None:
        items = [self._arrive((script,), 0.0, op.timeout_s) for script in op.scripts]
        scope = anyio.CancelScope()
        for item in items:
            item.scope = scope
            item.called = True
        with scope:
            try:
                results = await self._face(op.timeout_s).map(
                    items, return_exceptions=op.return_exceptions
                )
            except Exception as error:
                late = items[0].is_late and isinstance(error, shoal.errors.DeadlineExceeded)
                refused = late or isinstance(
                    error, (shoal.errors.Overloaded, shoal.errors.BatcherClosed)
                )
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
        item = self._arrive(op.script, op.run_s, op.timeout_s)
        with item.scope:
            try:
                item.called = True
                async with self._face(op.timeout_s)(item) as stream:
                    if await self._read_on(stream, item, op.reads, op.pause_s):
                        self._judge(item, None)
                        return
            except Exception as error:
                self._judge(item, error)
            else:
                self._left(item)
            return
        self._left(item)

    # What handlers do

    async def _unary_handler(self, items: list[Item]) -> list[Any]:
        with self._run(items) as run:
            await self._work(max(item.run_s for item in items))
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
                await self._work(max(item.run_s for item in items))
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

    @contextmanager
    def _run(self, items: list[Item]) -> Iterator[Run]:
        run = Run(items, self.formed_under(shoal.current_batch()), anyio.current_time())
        batch = shoal.current_batch()
        self._check_batch(run, batch)
        for item in items:
            item.runs.append(run)
        self.running[batch.id] = run
        try:
            yield run
        finally:
            del self.running[batch.id]
            if len(self.running) == self.options.max_concurrent_batches - 1:
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
            case Raised() | shoal.errors.WrongBatchSize():
                assert run is not None
                assert broke_at <= length
                assert broke_at <= slot_at
                sent = any(step < broke_at for step in item.steps_of("item"))
                assert item.breaks or not run.options.isolate_errors or sent
                self._check_got(item, complete=True)
            case shoal.errors.Overloaded():
                self.turned_away.add(item)
                assert run is None
                assert now == item.arrived_at
                assert item.options.overload == "reject"
                assert item.options.max_queued_requests is not None
            case shoal.errors.BatcherClosed():
                assert self.closing or self.dropping
            case shoal.errors.DeadlineExceeded():
                if item.is_late:
                    self.turned_away.add(item)
                assert now >= item.due - EPSILON
                assert self.program.streams or now <= item.due + EPSILON
                self._check_got(item, complete=False)
            case shoal.errors.HandlerTimeout():
                assert run is not None
                assert run.options.handler_timeout_s is not None
                assert now >= run.started_at + run.options.handler_timeout_s - EPSILON
                self._check_got(item, complete=False)
            case shoal.errors.SlowReader():
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
        now = anyio.current_time()
        options = self.options
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

    def check_at_end(self) -> None:
        super().check_at_end()
        self._check_counts()
        assert self.running == {}
        statistics = self.batcher.statistics()
        assert sum(statistics.batches.values()) == statistics.batch_size.total
        assert statistics.batch_size.total == len(self.batches)
        assert statistics.batch_size.sum == sum(len(run.items) for run in self.batches.values())

    def _check_counts(self) -> None:
        statistics = self.batcher.statistics()
        assert statistics.failed == self.number_in(State.FAILED)
        assert min(statistics.cancelled, statistics.expired) >= 0
        left = statistics.cancelled + statistics.expired
        accepted = {request.item for request in self.requests}
        refused = {item for item in self.turned_away if item not in accepted or not item.is_late}
        assert left + statistics.rejected == self.number_in(State.CANCELLED) + len(refused)
        assert len(accepted) == len(self.requests) <= len(self.items) - len(refused)
        assert not accepted & refused
