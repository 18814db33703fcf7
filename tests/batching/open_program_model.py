"""Programs on open and continuous batches, which take requests while their handler runs."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from hypothesis import strategies as st

import shoal
from batching import program_world
from batching.program_world import EPSILON, Advance, Cancel, Configure, Op, Program, Watched, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.abc import TaskGroup

OPTIONS = {
    "max_batch_size": st.integers(1, 4),
    "max_concurrent_batches": st.integers(1, 3),
    "max_queued_requests": st.sampled_from([None, None, 0, 1, 3]),
    "overload": st.sampled_from(["reject", "wait"]),
    "stream_buffer": st.sampled_from([1, 2, 16]),
    "slow_reader_timeout_s": st.sampled_from([None, 1.0]),
    "cancel_abandoned": st.booleans(),
    "request_timeout_s": st.sampled_from([None, None, 2.0]),
    "drop_queued_on_shutdown": st.booleans(),
}
OPTIONS_OF_OPEN = {
    "batch_wait_timeout_s": st.sampled_from([0.0, 0.5, 1.0, 2.0, None]),
    "idle_timeout_s": st.sampled_from([None, None, 0.5]),
}
UNARY = st.sampled_from(["ok"] * 8 + ["fail", "raise", "return", "forget"])
LAST = st.sampled_from(["end"] * 8 + ["fail", "raise", "return", "forget"])


@dataclass(frozen=True)
class Calls:
    """Some callers come at once; on a stream each reads `reads` items, or all, with pauses."""

    count: int
    script: tuple[str, ...]
    run_s: float = 0.0
    timeout_s: float | None = None
    reads: int | None = None
    pause_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OpenProgram(Program):
    """A program on open or continuous batches."""

    fill: str
    steps: bool  # whether its handler works in steps; if not it has a task for each request
    costs: bool  # whether a request counts by its cost


def operations(calls: Any, options: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draws what is done to a batcher, from what may call it and the options that may change."""
    control = st.one_of(
        st.builds(Cancel, st.integers(0, 20)),
        st.builds(Advance, st.sampled_from([0.25, 0.5, 0.75, 1.0, 2.0])),
        st.just(Op.SETTLE),
        st.just(Op.HOLD),
        st.just(Op.RELEASE),
        st.builds(Configure, st.fixed_dictionaries({}, optional=options)),
        st.just(Op.FLUSH),
    )
    rare = st.sampled_from([Op.SETTLE] * 12 + [Op.FLUSH] * 5 + [Op.DRAIN, Op.CLOSE])
    # What shrinks goes towards the first: an operation that does nothing.
    return st.one_of(st.just(Op.SETTLE), calls, calls, calls, control, control, control, rare)


@st.composite
def open_programs(draw: st.DrawFn, *, streams: bool) -> OpenProgram:
    """Draws a program."""
    fill = draw(st.sampled_from(["open", "continuous"]))
    options = {**OPTIONS, **(OPTIONS_OF_OPEN if fill == "open" else {})}
    first = {name: kind for name, kind in options.items() if name != "max_batch_size"}
    size = {"max_batch_size": OPTIONS["max_batch_size"]}
    scripts = (
        st.tuples(st.lists(st.just("item"), max_size=4), LAST).map(lambda s: (*s[0], s[1]))
        if streams
        else st.tuples(UNARY)
    )
    calls = st.builds(
        Calls,
        st.integers(1, 5),
        scripts,
        run_s=st.sampled_from([0.0, 0.0, 0.25, 1.0]),
        timeout_s=st.sampled_from([None, None, 0.0, 0.5, 1.0]),
        reads=st.sampled_from([None, None, None, 0, 1, 3]),
        pause_s=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    )
    grace = {"graceful_shutdown_timeout_s": st.just(5.0)}
    return OpenProgram(
        fill=fill,
        streams=streams,
        steps=draw(st.booleans()),
        costs=draw(st.sampled_from([False, False, True])),
        options=draw(st.fixed_dictionaries({**grace, **size}, optional=first)),
        ops=draw(st.lists(operations(calls, options), min_size=8, max_size=30)),
        releases=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


class Failed(Exception):
    """What a handler fails one request with."""


class Raised(Exception):
    """What a handler raises."""


@dataclass(eq=False)
class Run:
    """One run of the handler, on one batch."""

    batch: Any
    active: list[Item] = field(default_factory=list)
    given: float = 0
    raised: bool = False
    returned: bool = False


@dataclass(eq=False)
class Item(program_world.Item):
    """One request of a batch that takes requests while its handler runs."""

    _: KW_ONLY
    cost: int
    run: Run | None = None
    sent: list[Any] = field(default_factory=list)

    @property
    def has_run(self) -> bool:
        return self.run is not None


class OpenWorld(World):
    """One program's batcher, whose batches are open, and what must hold of it."""

    program: OpenProgram
    items: list[Item]

    def __init__(self, program: OpenProgram, tasks: TaskGroup, watched: Watched) -> None:
        costs = {"batch_size_fn": lambda item: item.cost} if program.costs else {}
        make: Any = shoal.Batcher
        batcher: shoal.Batcher[Any] = make(
            self._handler,
            fill=program.fill,
            streams=program.streams,
            name="it",
            **program.options,
            **costs,
        )
        super().__init__(program, tasks, watched, batcher)
        self.runs: list[Run] = []
        self.all_runs: list[Run] = []
        self.least = self.options.max_batch_size
        self.was_bounded = self.options.max_queued_requests is not None

    # What the program does

    def _start(self, op: Any) -> None:
        for _ in range(op.count):
            self.tasks.start_soon(self._call, op)

    def _configure(self, changes: dict[str, Any]) -> None:
        super()._configure(changes)
        self._took_in()

    def _took_in(self) -> None:
        options = self.options
        self.least = min(self.least, options.max_batch_size)
        self.was_bounded = self.was_bounded or options.max_queued_requests is not None

    # What callers do

    def _arrive(self, op: Calls) -> Item:
        now = anyio.current_time()
        limits = [s for s in (op.timeout_s, self.options.request_timeout_s) if s is not None]
        due = now + min(limits, default=math.inf)
        number = len(self.items)
        cost = 1 + number % 3 if self.program.costs else 1
        item = Item(number, op.script, op.run_s, now, due, cost=cost)
        self.items.append(item)
        return item

    async def _call(self, op: Calls) -> None:
        item = self._arrive(op)
        with item.scope:
            item.called = True
            try:
                if not self.program.streams:
                    assert await self._face(op.timeout_s)(item) == ("result", item.number)
                    assert item.run is not None
                else:
                    async with self._face(op.timeout_s)(item) as stream:
                        if await self._read_on(stream, item, op.reads, op.pause_s):
                            assert item.run is not None
                            assert item.got == item.sent
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
        changes = [op.changes for op in self.program.ops if isinstance(op, Configure)]
        sizes = [change["max_batch_size"] for change in changes if "max_batch_size" in change]
        return max([self.program.options["max_batch_size"], *sizes])

    def _check_step(self, batch: Any) -> None:
        """A place that is free has been taken before the step."""
        if self.program.fill == "open" or self.closing or self.program.costs:
            return
        options = self.options
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
            case shoal.errors.Unfinished():
                over = self.closing or self.program.fill == "open" or self._one_too_many()
                forgotten = run is not None and item.script[-1] == "forget" and over
                assert forgotten or self._has(run, "returned")
            case shoal.errors.Overloaded():
                assert self.was_bounded
                assert run is None
            case shoal.errors.ItemTooLarge():
                assert self.program.costs
                assert item.cost > self.least
                assert run is None
            case shoal.errors.BatcherClosed():
                assert self.closing or self.dropping
            case shoal.errors.DeadlineExceeded():
                assert now >= item.due - EPSILON
            case shoal.errors.SlowReader():
                assert run is not None
                assert self.program.streams
            case _:
                raise AssertionError(f"an error without a cause: {error!r}") from error
        assert item.got == item.sent[: len(item.got)]

    def _one_too_many(self) -> bool:
        changes = [op.changes for op in self.program.ops if isinstance(op, Configure)]
        return any("max_concurrent_batches" in change for change in changes)

    def _has(self, run: Run | None, what: str) -> bool:
        """Whether a run raised or returned; of one that the request was in, as far as is known."""
        return any(getattr(other, what) for other in (self.all_runs if run is None else [run]))

    def check_at_rest(self) -> None:
        statistics = self.batcher.statistics()
        options = self.options
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
                assert run.batch.reason is not shoal.DispatchReason.OPEN, "an open batch has room"
            elif not self.program.steps:
                assert active >= options.max_batch_size, "a free place was not taken"

    def check_at_end(self) -> None:
        super().check_at_end()
        assert self.runs == []
        statistics = self.batcher.statistics()
        joined = sum(run.batch.size for run in self.all_runs)
        occupancy = statistics.occupancy
        assert (occupancy.joined, occupancy.left, occupancy.idle_batches) == (joined, joined, 0)
        assert occupancy.request_s >= occupancy.busy_s >= 0
        assert statistics.wait_s.total == joined
        assert sum(statistics.batches.values()) == len(self.all_runs)
        if self.program.fill == "open":
            assert statistics.batch_size.total == len(self.all_runs)
            assert statistics.batch_size.sum == joined
        else:
            assert statistics.batch_size.total == statistics.run_s.total == 0
