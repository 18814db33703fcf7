"""Runs a random program on a batcher that forms batches of what waits, by any of its options.

What a batch may be made of, who may be ahead of whom, and which ends a call may have is in
`policy_promises`.
"""

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup

import shoal
from batching import policy_programs as ops
from batching.policy_calls import Call, InSlot, Raised, Run
from batching.policy_promises import Promises
from batching.program_world import Configure, Op, Program, Watched
from shoal.core.request import State
from shoal.failures.retry_after import LEAST_PAUSE_S


class PolicyWorld(Promises):
    """One program's batcher, its callers, its handler, and what is known of them."""

    def __init__(self, program: Program, tasks: TaskGroup, watched: Watched) -> None:
        handler = self._stream_handler if program.streams else self._unary_handler
        batcher: shoal.Batcher[Any] = shoal.Batcher(handler, name="it", **program.options)
        super().__init__(program, tasks, watched, batcher)
        self._places = 0

    # What the program does

    async def do(self, op: Any) -> None:
        match op:
            case Op.FLUSH:
                self.flushed.update(self.waiting(State.QUEUED))
                self.batcher.flush()
            case Op.DRAIN | Op.CLOSE:
                self.drained = True
                await super().do(op)
            case Configure():
                before = self.batcher.options
                try:
                    await super().do(op)
                except ValueError:
                    assert self.batcher.options is before
                else:
                    self.history.append(self.options)
            case _:
                await super().do(op)

    def _configure(self, changes: dict[str, Any]) -> None:
        before = self.options.max_concurrent_batches
        super()._configure(changes)
        self.unbound = True
        self.changed_at = anyio.current_time()
        if self.options.max_concurrent_batches > before:
            self.free_since = self.changed_at

    def _took_in(self) -> None:
        self.history.append(self.options)
        task = anyio.get_current_task().id
        for call in self.items:
            if call.task == task and not call.ends:
                call.options = self.options  # it enters now, and is the first under these options
        self.unbound = True
        self.changed_at = anyio.current_time()

    def _start(self, op: Any) -> None:
        if isinstance(op, ops.Map):
            calls = [self._new(shape, op.asks) for shape in op.shapes]
            made = self._made_map(calls, op) if op.asks.early else None
            self.tasks.start_soon(self._map_all, op, calls, made)
            return
        for shape in op.shapes:
            call = self._new(shape, op.asks)
            made = self._made(call) if op.asks.early else None
            self.tasks.start_soon(self._call_one, call, made)

    def _new(self, shape: ops.Shape, asks: ops.Asks) -> Call:
        call = Call(
            len(self.items), (shape.kind,), asks.run_s, 0.0, 0.0,
            options=self.options, shape=shape, asks=asks, world=self,
            high=shape.cost or 0, made_at=len(self.history) - 1,
        )  # fmt: skip
        if self.program.streams:
            call.script = asks.script
        self.items.append(call)
        return call

    # What callers do

    def _face_of(self, asks: ops.Asks) -> Any:
        options = {
            "priority": asks.level,
            "timeout_s": asks.timeout_s,
            "queue_timeout_s": asks.queue_timeout_s,
        }
        asked = {name: value for name, value in options.items() if value is not None}
        return self.batcher.call.options(**asked) if asked else self.batcher.call

    def _made(self, call: Call) -> Any:
        try:
            return self._face_of(call.asks)(call)
        except Exception as error:
            return error

    def _enter(self, call: Call) -> None:
        """Notes that a call is made, or awaited, now."""
        if not call.asks.early:
            call.made_at = len(self.history) - 1
        call.arrived_at = anyio.current_time()
        call.options = self.options
        call.task = anyio.get_current_task().id
        under = (self.history[call.made_at], call.options)
        limits = [(call.asks.timeout_s, options.request_timeout_s) for options in under]
        call.dues = [
            call.arrived_at + min((s for s in two if s is not None), default=math.inf)
            for two in limits
        ]
        call.due = min(call.dues)
        call.place = self._places
        self._places += 1
        call.called = True

    async def _call_one(self, call: Call, made: Any) -> None:
        asks = call.asks
        with call.scope:
            if asks.scope_s is not None:
                call.scope.deadline = anyio.current_time() + asks.scope_s
            self._enter(call)
            try:
                made = self._made(call) if made is None else made
                if isinstance(made, Exception):
                    raise made
                is_over = True
                if self.program.streams:
                    async with made as stream:
                        is_over = await self._read_on(stream, call, asks.reads, asks.pause_s)
                else:
                    assert await made == call.result
            except Exception as error:
                self._judge(call, error)
            else:
                if is_over:
                    self._judge(call, None)
                else:
                    self._left(call)
            return
        self._left(call)

    def _made_map(self, calls: list[Call], op: ops.Map) -> Any:
        try:
            return self._face_of(op.asks).map(calls, return_exceptions=op.return_exceptions)
        except Exception as error:
            return error

    async def _map_all(self, op: ops.Map, calls: list[Call], made: Any) -> None:
        scope = calls[0].scope
        options = self.options
        policies = [*options.queue_policies.values(), options.default_queue_policy]
        bounds = [one.max_queued_requests for one in (options, *policies) if one is not None]
        is_bounded = any(bound is not None for bound in bounds)
        self.has_repeated = self.has_repeated or is_bounded
        for call in calls:
            call.scope, call.is_repeated = scope, is_bounded
            self._enter(call)
        with scope:
            try:
                made = self._made_map(calls, op) if made is None else made
                if isinstance(made, Exception):
                    raise made
                results = await made
            except Exception as error:
                if self._is_refusal(calls, error):
                    self.errors.append(error)
                else:
                    assert not op.return_exceptions
                    self._judge_first(calls, error)
                return
            assert len(results) == len(calls)
            for call, result in zip(calls, results, strict=True):
                if isinstance(result, Exception):
                    assert op.return_exceptions
                    self._judge(call, result)
                else:
                    assert result == call.result
                    self._judge(call, None)
            return
        for call in calls:
            self._left(call)

    def _is_refusal(self, calls: list[Call], error: Exception) -> bool:
        """Says whether no call of a map was made; then that is the end of all of them."""
        if anyio.current_time() != calls[0].arrived_at or any(call.runs for call in calls):
            return False
        accepted = {request.item.whole or request.item for request in self.requests}
        is_refused = isinstance(error, shoal.errors.Overloaded) and "shed" not in str(error)
        if accepted.intersection(calls) and not is_refused:
            return False
        if is_refused:
            self.refused += calls
        elif isinstance(error, shoal.errors.DeadlineExceeded):
            self.late += [call for call in calls if not call.is_repeated or call.surely_fits]
        for call in calls:
            call.ends += 1
        assert any(self.has_cause(call, error) for call in calls), f"no cause for {error!r}"
        return True

    # What handlers do

    @contextmanager
    def _run(self, items: list[Call]) -> Iterator[Run]:
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

    def _refuse(self, calls: list[Call]) -> None:
        """Raises `RetryLater` if a call is one of those whose first runs do."""
        later = [call for call in calls if call.shape.kind == "later" and not call.refusals]
        if not later:
            return
        for call in later:
            call.refusals += 1
        for call in calls:
            call.went_back = True
            (call.whole or call).went_back = True
        self.unbound = True  # the queue takes them back, however long it is
        after_s = later[0].number % 3 / 4
        self.limit.paused_until = max(
            self.limit.paused_until, anyio.current_time() + max(after_s, LEAST_PAUSE_S)
        )
        raise shoal.RetryLater(after_s)

    async def _unary_handler(self, items: list[Any]) -> list[Any]:
        self.given = items
        calls: list[Any] = [request.item for request in shoal.current_batch().requests]
        with self._run(calls) as run:
            await self._work(max(call.run_s for call in calls))
            self._refuse(calls)
            kinds = [call.shape.kind for call in calls]
            if "raise" in kinds:
                run.broke_at = 0
                raise Raised(shoal.current_batch().id)
            results = [
                InSlot(call.number) if call.shape.kind == "slot" else call.result for call in calls
            ]
            results += ["padding"] * (len(items) - len(calls))
            if "short" in kinds:
                run.broke_at = 0
                results.pop()
            return results

    async def _stream_handler(self, items: list[Any]) -> AsyncIterator[list[Any]]:
        self.given = items
        calls: list[Any] = [request.item for request in shoal.current_batch().requests]
        with self._run(calls) as run:
            for step in range(max(len(call.script) for call in calls) + 1):
                await self._work(max(call.run_s for call in calls))
                if step == 0:
                    self._refuse(calls)
                kinds = [c.script[step] if step < len(c.script) else "end" for c in calls]
                if "raise" in kinds:
                    run.broke_at = step
                    raise Raised(shoal.current_batch().id)
                slots = {"end": shoal.END, "skip": shoal.SKIP}
                made = [
                    InSlot(call.number) if kind == "slot" else slots.get(kind, (call.number, step))
                    for call, kind in zip(calls, kinds, strict=True)
                ]
                made += ["padding"] * (len(items) - len(calls))
                if "short" in kinds:
                    run.broke_at = step
                    made.pop()
                yield made
