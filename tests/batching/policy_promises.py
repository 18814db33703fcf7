"""What must hold of each batch and each end, whatever options form the batches.

It is the half of `policy_model` that checks. What it needs to know of a request that waits (its
state, its level, whether it was delayed) it reads off it; the rest it sees from outside.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import anyio
from anyio.abc import TaskGroup

import shoal
from batching import policy_programs as ops
from batching.policy_calls import Call, InSlot, LimitOf, Raised, Run
from batching.program_world import EPSILON, Program, Watched, World
from core.former_scenes import check
from shoal.core.options.option import SAME
from shoal.core.options.options import BatchOptions
from shoal.core.request import Request, State


class Promises(World):
    """One program's batcher, and what must hold of it."""

    items: list[Call]

    def __init__(
        self, program: Program, tasks: TaskGroup, watched: Watched, batcher: shoal.Batcher[Any]
    ) -> None:
        super().__init__(program, tasks, watched, batcher)
        self.running: dict[int, Run] = {}
        self.batches: dict[int, Run] = {}
        self.limit = LimitOf()
        self.unbound = False  # the queue may hold more than the bound that was set meanwhile
        self.free_since = self.changed_at = anyio.current_time()
        self.history = [self.options]
        self.refused: list[Call] = []
        self.has_repeated = False
        self.late: list[Call] = []
        self.runs_of: Counter[int] = Counter()
        self.flushed: set[Request] = set()
        self.drained = False
        self.shed_seen = 0
        self.failure: AssertionError | None = None  # which a handler raised, of ours or the model's
        self.given: Sequence[Any] = ()

    def waiting(self, *states: State) -> list[Request]:
        return [request for request in self.requests if request.state in states]

    # What must hold of a batch

    def _check_batch(self, run: Run, batch: shoal.Batch) -> None:
        calls: list[Any] = run.items
        for call in calls:
            if call.whole is not None:
                call.whole.runs.append(run)
        self.runs_of[batch.id] += 1
        assert len(set(calls)) == len(calls) >= 1
        if batch.id in self.batches:
            first = self.batches[batch.id]
            run.options = first.options
            assert first.options.isolate_errors, "a handler was given a batch twice"
            assert [item for item in first.items if item in calls] == calls
            assert len(calls) < len(first.items)
        else:
            self.batches[batch.id] = run
            assert len(self.running) < run.options.max_concurrent_batches
            self._check_calls(calls, run)
            assert run.started_at > self.limit.opens_at(run.options) - EPSILON, "beyond its limit"
            costs = [call.cost if run.options.batch_size_fn else 1 for call in calls]
            self.limit.spend(run.options, sum(costs), run.started_at)
            self._check_order(batch.requests, run.options)
        self._check_size(calls, run.options)

    def _check_calls(self, calls: list[Any], run: Run) -> None:
        now, options = run.started_at, run.options
        for call in calls:
            whole = call.whole or call
            assert not whole.ends, "the handler was given a request that had ended"
            if whole.is_repeated:  # at other times, and its tasks leave a turn later
                continue
            assert not whole.gone, "the handler was given a request whose caller had left"
            assert now <= max(whole.dues) + EPSILON, "the handler was given an expired request"
            ends = whole.queue_ends()
            if not whole.went_back and all(action == "reject" for _until, action in ends):
                assert now <= max(ends)[0] + EPSILON, "it has been in the queue for too long"
        if options.bucket_by is not None:
            assert len({call.key for call in calls}) == 1, "two keys share a batch"

    def _check_size(self, calls: list[Any], options: BatchOptions) -> None:
        by_cost = options.batch_size_fn is not None
        size = sum(call.cost for call in calls) if by_cost else len(calls)
        assert size <= (options.max_batch_cost or options.max_batch_size)
        if options.max_batch_cost is not None:
            assert len(calls) <= options.max_batch_size
        preferred = options.preferred_batch_sizes
        costly = sum(call.cost > 0 for call in calls) if by_cost else len(calls)
        if options.batch_wait_timeout_s == 0 and options.idle_timeout_s is None:
            assert preferred is None or size <= preferred[-1] or costly == 1
        assert list(self.given[: len(calls)]) == calls
        padding = self.given[len(calls) :]
        if options.allowed_batch_sizes is None:
            assert not padding
            return
        wanted = min(allowed for allowed in options.allowed_batch_sizes if allowed >= size)
        assert wanted == size + (sum(one.cost for one in padding) if by_cost else len(padding))

    def _check_order(self, requests: Sequence[Request], options: BatchOptions) -> None:
        isolates = options.priority_mixing == "isolate"
        if isolates:
            assert len({request.priority for request in requests}) == 1, "two levels share a batch"
        now = anyio.current_time()
        for request in requests:
            self.flushed.discard(request)
            self._check_level(request, options)
            latest = self._latest(request, options)
            assert request in self.was_parked or now <= latest + EPSILON, "it waited for too long"
        waiting = [
            other
            for other in self.waiting(State.QUEUED)
            if options is self.options  # else they have had new ranks since the batch left
            if options.bucket_by is None or other.item.key == requests[0].item.key
            if not isolates or other.priority == requests[0].priority
            if not (other.item.whole or other.item).gone
            if other not in self.was_parked  # it may have been admitted when this batch had left
        ]
        inner = pairwise(requests)
        outer = [(request, other) for request in requests for other in waiting]
        for before, after in [*inner, *outer]:
            self._check_pair(before, after, options)

        for request in requests:
            for other in self.waiting(State.PARKED):
                assert request.item.order < other.item.order, "it has overtaken who had no room"

    def _check_pair(self, before: Request, after: Request, options: BatchOptions) -> None:
        """Checks that one request may be ahead of another."""
        if any(r.options is not None and r.options.delayed_at is not None for r in (before, after)):
            return  # those that were delayed have other places
        if before.item.is_repeated or after.item.is_repeated:
            return
        if len(self.history) > 1 and (before.item.went_back or after.item.went_back):
            return  # the options may have changed while it was out, and so its rank
        ranks = self._rank(before, options), self._rank(after, options)
        assert ranks[0] <= ranks[1], "it is not its turn"
        if ranks[0] == ranks[1] and before.priority == after.priority:
            assert before.item.order < after.item.order, "order of arrival"

    def _rank(self, request: Request, options: BatchOptions) -> tuple[float, ...]:
        level, aging_s = request.priority, options.priority_aging_s
        if options.order == "deadline":
            due = None if request.options is None else request.options.due
            if aging_s is None:
                return level, math.inf if due is None else due
            due = request.arrived_at + aging_s if due is None else due
            return (round(due + (level - 1) * aging_s, 6),)
        if options.priority_levels == 1:
            return ()
        return (level,) if aging_s is None else (round(request.arrived_at + level * aging_s, 6),)

    def _check_level(self, request: Request, options: BatchOptions) -> None:
        asked_priority = (request.item.whole or request.item).asks.level
        usual = options.usual_priority
        assert request.priority == (
            min(asked_priority, options.priority_levels) if asked_priority else usual
        )

    def _window_s(self, request: Request, options: BatchOptions) -> float:
        policy = options.queue_policy(request.priority)
        wait_s = options.batch_wait_timeout_s
        if wait_s == 0 and options.idle_timeout_s is not None:
            wait_s = None
        if policy is not None and policy.batch_wait_timeout_s is not SAME:
            wait_s = policy.batch_wait_timeout_s
        return math.inf if wait_s is None or options.adaptive is not None else wait_s

    def _latest(self, request: Request, options: BatchOptions) -> float:
        """When a request must be on its way that was never parked, at the latest."""
        due = request.arrived_at + self._window_s(request, options)
        return max(due, self.free_since, self.changed_at, self.opened_at)

    @property
    def opened_at(self) -> float:
        """Until when the limit, or a `RetryLater`, held batches back."""
        return self.limit.opens_at(self.options)

    # What must hold of an end

    def _left(self, item: Call) -> None:
        """A caller was cancelled, or left its stream."""
        item.ends += 1
        self._check_got(item, complete=False)

    def _judge_first(self, items: list[Call], error: Exception) -> None:
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

    def _check_got(self, item: Call, *, complete: bool) -> None:
        """A stream gives its own items, in order, up to where it or its batch came to an end."""
        if not self.program.streams:
            return
        # Only who has been sent nothing runs again, so the last run is the one that tells.
        broke_at = [run.broke_at for run in item.runs[-1:]]
        last = min([*item.steps_of("slot"), *broke_at], default=math.inf)
        wanted = [(item.number, step) for step in item.steps_of("item") if step < last]
        assert item.got == (wanted if complete else wanted[: len(item.got)])

    def _judge(self, item: Any, error: Exception | None, *, shared: bool = False) -> None:
        item.ends += 1
        if isinstance(error, AssertionError):
            self.failure = error
        if error is not None and not shared:
            self.errors.append(error)
        if isinstance(error, shoal.errors.Overloaded) and not shared:
            if "shed" in str(error):
                self.shed_seen += 1
            else:
                self.refused.append(item)
        accepted = any((r.item.whole or r.item) is item for r in self.requests)
        if isinstance(error, shoal.errors.DeadlineExceeded) and not accepted:
            self.late.append(item)
        # A map may split an item, be refused, and call it again when nothing is split any more.
        is_whole = any(item in run.items for run in item.runs[-1:])
        if error is None and item.parts and not is_whole:
            assert item.shape.kind != "join" or len(item.parts) == 1
            assert all(self.has_cause(part, None) for part in item.parts)
        else:
            pieces = [item, *item.parts]
            assert any(self.has_cause(piece, error) for piece in pieces), f"no cause: {error!r}"

    def has_cause(self, call: Call, error: Exception | None) -> bool:
        """Says whether a call, or a part of one, may have come to this end."""
        now, streams = anyio.current_time(), self.program.streams
        run = call.runs[-1] if call.runs else None
        broke_at = math.inf if run is None else run.broke_at
        slots = call.steps_of("slot")
        slot_at = min(slots, default=math.inf)
        length = len(call.script) if streams else 0
        match error:
            case None:
                self._check_got(call, complete=True)
                made = call.whole or call
                assert streams or made.is_repeated or now <= max(made.dues) + EPSILON
                return run is not None and slot_at == math.inf and broke_at > length
            case InSlot():
                self._check_got(call, complete=True)
                return error.args == (call.number,) and slot_at < broke_at
            case Raised() | shoal.errors.WrongBatchSize():
                self._check_got(call, complete=True)
                sent = any(step < broke_at for step in call.steps_of("item"))
                isolates = run is not None and run.options.isolate_errors
                return broke_at <= min(length, slot_at) and (call.breaks or sent or not isolates)
            case shoal.errors.HandlerTimeout():
                limit_s = None if run is None else run.options.handler_timeout_s
                return (
                    run is not None
                    and limit_s is not None
                    and (now >= run.started_at + limit_s - EPSILON)
                )
            case shoal.errors.SlowReader():
                return run is not None and run.options.slow_reader_timeout_s is not None
            case shoal.errors.BatcherClosed():
                return self.closing or self.dropping
            case AssertionError():
                return True  # it is raised at the end
            case shoal.errors.DeadlineExceeded():
                return (call.whole or call).is_repeated or self._is_out_of_time(call, now)
            case shoal.errors.Overloaded():
                return self._is_overload(call, error, now)
            case ops.Broken(args=("join", call.number)):
                return call.shape.kind == "join" and len(call.parts) > 1
            case _:
                return (run is None or call.went_back) and self._is_misfit(call, error)

    def _is_out_of_time(self, call: Call, now: float) -> bool:
        self._check_got(call, complete=False)
        streams = self.program.streams
        is_due = any(abs(now - due) < EPSILON for due in (call.whole or call).dues)
        if is_due or (streams and now > call.due):
            if not call.runs and not call.is_late and not streams:
                self._check_that_it_could_not_leave(call)
            return True
        ends = (call.whole or call).queue_ends()
        return (not call.runs or call.went_back) and any(
            action == "reject" and now >= until - EPSILON for until, action in ends
        )

    def _check_that_it_could_not_leave(self, call: Call) -> None:
        """Who has waited for other requests until its deadline had no slot to leave by."""
        mine = [r for r in self.requests if (r.item.whole or r.item) is (call.whole or call)]
        if not mine or self.was_parked.intersection(mine):
            return
        free = len(self.running) < self.options.max_concurrent_batches
        since = max(self.free_since, self.changed_at, self.opened_at)
        assert not free or since > call.arrived_at - EPSILON, "it has not left in time"

    def _is_overload(self, call: Call, error: Exception, now: float) -> bool:
        options = self.options
        if call.runs and not call.went_back:
            return False
        if "shed" in str(error):
            return options.overload.startswith("shed") or any(
                o.overload.startswith("shed") for o in call.lives_under
            )
        options = call.options
        policies = [*options.queue_policies.values(), options.default_queue_policy]
        bounded = options.max_queued_requests is not None and options.overload != "wait"
        return now == call.arrived_at and (
            bounded
            or options.refuse_late
            or any(policy is not None and policy.max_queued_requests for policy in policies)
        )

    def _is_misfit(self, call: Call, error: Exception) -> bool:
        """Says whether an item was not one that could be served, when it came or after a change."""
        under = call.lives_under
        split = [o for o in under if o.split is not None]
        match error:
            case ops.Broken(args=("cost", call.number)):
                return call.cost is None and any(o.batch_size_fn is not None for o in under)
            case ops.Broken(args=("key", call.number)):
                return call.key is None and any(o.bucket_by is not None for o in under)
            case ops.Broken(args=("split", call.number)):
                return call.shape.split == "raise" and bool(split)
            case shoal.errors.ItemTooLarge():
                limited = [o for o in under if o.batch_size_fn is not None]
                mosts = [o.max_batch_cost or o.max_batch_size for o in limited]
                return bool(mosts) and call.cost is not None and call.cost > min(mosts)
            case TypeError():
                return call.shape.split == "empty" and bool(split)
            case ValueError():
                return (call.asks.level or 1) > min(o.priority_levels for o in under)
        return False

    def check_at_rest(self) -> None:
        now, options = anyio.current_time(), self.options
        statistics = self.batcher.statistics()
        assert statistics.batches_running == len(self.running)
        former = self.batcher._session._intake.former
        check(former)
        queued = self.waiting(State.QUEUED)
        assert len(queued) == statistics.queued
        assert len(self.waiting(State.PARKED)) == statistics.parked
        if not self.waiting(State.QUEUED, State.PARKED):
            self.unbound = False
        bound = options.max_queued_requests
        slots = options.max_concurrent_batches
        if bound is not None and options.batch_size_fn is None and not self.unbound:
            assert statistics.queued <= bound + slots * options.max_batch_size
        assert bound is not None or statistics.parked == 0
        self.flushed = {request for request in self.flushed if request.state is State.QUEUED}
        if statistics.batches_running >= slots or now < self.opened_at + EPSILON:
            return
        assert not self.flushed, "a flush has not sent all that it covers"
        assert not (self.drained or self.closing) or not queued, "who drains does not wait"
        for request in queued:
            if request not in self.was_parked:
                due = request.arrived_at + self._window_s(request, options)
                assert due > now - EPSILON, "its window is over"
        if options.batch_size_fn is None and options.adaptive is None:
            enough = (options.preferred_batch_sizes or [options.max_batch_size])[0]
            isolates = options.priority_mixing == "isolate"
            buckets = Counter(
                (
                    request.item.key if options.bucket_by is not None else None,
                    request.priority if isolates else None,
                )
                for request in queued
            )
            assert all(count < enough for count in buckets.values()), "a full batch waits"

    def check_at_end(self) -> None:
        if self.failure is not None:
            raise self.failure
        super().check_at_end()
        self._check_counts()
        assert self.running == {}
        statistics = self.batcher.statistics()
        assert sum(statistics.batches.values()) == statistics.batch_size.total
        assert statistics.batch_size.total == len(self.batches)
        assert statistics.batch_size.sum == sum(len(run.items) for run in self.batches.values())
        former = self.batcher._session._intake.former
        assert len(former.overdue.timers) == 0, "a timer is left"
        assert list(former._policy.waiting()) == []
        for number, first in self.batches.items():
            breaking = sum(item.breaks for item in first.items)
            halvings = math.ceil(math.log2(len(first.items)))
            assert self.runs_of[number] - 1 <= 2 * breaking * halvings, "too many runs"

    def _check_counts(self) -> None:
        statistics = self.batcher.statistics()
        refused = set(self.refused)
        undone = sum((r.item.whole or r.item) in refused for r in self.requests)
        rejected = sum(max(1, len(call.parts)) for call in refused)
        late = sum(max(1, len(call.parts)) for call in self.late)
        # A map whose items are refused together calls them again in parts.
        repeated = self.number_in(State.FAILED) - undone - statistics.failed - statistics.shed
        assert repeated == 0 or (self.has_repeated and repeated > 0)
        ended = statistics.cancelled + statistics.expired
        # The parts of such a map that are too late are counted before the map has ended.
        too_early = ended - self.number_in(State.CANCELLED) - late
        assert too_early == 0 or (self.has_repeated and too_early > 0)
        assert statistics.rejected == rejected or (
            self.has_repeated and statistics.rejected > rejected
        )
        assert statistics.shed >= self.shed_seen
        assert min(statistics.cancelled, statistics.expired - late) >= 0
