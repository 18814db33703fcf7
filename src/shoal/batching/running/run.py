"""One run of a handler on one batch: the base of all runs, and that with one result for each item.

A run answers all requests of its batch that still have callers, and returns. It raises only errors
that must not be swallowed: `KeyboardInterrupt`, `SystemExit`, and cancellation from outside. All
other exceptions of a handler, of any class, fail only its batch.

The handler runs in its slot's cancel scope, which is cancelled when all callers have left, when the
handler's time is up, and when the replica that runs it ends, if that is in the event loop. None of
these interrupts a handler in a thread, or one that shields its clean-up. Its callers still get
their errors in time; the run, and so the slot, ends when the handler does.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.batching.calls.flight import Flight
from shoal.batching.current import running_batch, setting
from shoal.batching.handlers.batch_results import check_results, not_results
from shoal.batching.handlers.handler import in_own_context
from shoal.batching.running.requeueing import queue_again, retry_later
from shoal.core.policies.sizing import padded
from shoal.core.queue import cost_of
from shoal.core.request import Batch, State, is_declined
from shoal.errors import (
    DeadlineExceeded,
    HandlerFailed,
    HandlerTimeout,
    ReplicaDied,
    SlowReader,
    WrongBatchSize,
    WrongResultType,
)
from shoal.failures.exceptions import ends_the_program, is_of_a_signal, must_propagate, own_copy
from shoal.failures.hints import with_hint
from shoal.failures.retry_after import retry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.batching.calls.intake import Intake
    from shoal.batching.handlers.handler import Handler, HoldLog
    from shoal.core.counters import Counters
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Request
    from shoal.loops.parking import Parking, Scope

RUNNING = State.RUNNING

_WRONG_SIZE: Final = "gave back {got} results; it must give back one for each, in their order"

logger: Final = logging.getLogger("shoal")


class RunsAgain(Exception):
    """A replica died: its requests without an item run again, up to `retries` times."""

    # A handler that forwards batches raises it, or puts it in the place of a result.

    def __init__(self, death: Exception, retries: int) -> None:
        super().__init__(death)
        self.death = death
        self.retries = retries


class ScopesMixedUp(Exception):
    """A generator has not left its cancel scopes although it was closed."""


@dataclass(slots=True)
class Run(ABC):
    intake: Intake
    handler: Handler
    options: BatchOptions
    hold_log: HoldLog
    name: str = field(init=False)
    parking: Parking = field(init=False)
    counters: Counters = field(init=False)

    def __post_init__(self) -> None:
        intake = self.intake
        self.name, self.parking, self.counters = intake.name, intake.parking, intake.counters

    async def run(self, batch: Batch, scope: Scope) -> None:
        # A cancellation propagates to the handler and is raised again. If `scope` was cancelled,
        # all requests have ended; otherwise the caller must end the remaining ones.
        batch.on_left = partial(self._left, batch, scope)
        if not self.options.isolate_errors:  # else its parts run after the end of a replica
            batch.scope = scope
        token = running_batch.set(batch)
        try:
            if batch.surroundings is None:
                await self._run_requests(batch, batch.members, scope)
            else:
                with batch.surroundings:
                    await self._run_requests(batch, batch.members, scope)
        except ScopesMixedUp as error:
            self._fail_all(batch.members, partial(self._yields_in_scope, error.__cause__ or error))
            scope.cancel()  # so that the slot leaves it, and detects whether it can continue
        except BaseException as error:
            if not scope.cancel_called or ends_the_program(error):
                raise
            # The handler was interrupted, and may then raise anything.
        finally:
            batch.on_left = batch.scope = None
            running_batch.reset(token)
            if batch.active and scope.cancel_called:
                self._fail_all(batch.members, self._timed_out)

    def _left(self, batch: Batch, scope: Scope, request: Request | None) -> None:
        if batch.active == 0 and self.options.cancel_abandoned:
            scope.cancel()

    async def _run_requests(self, batch: Batch, requests: Sequence[Request], scope: Scope) -> None:
        failure: BaseException | None = None
        try:
            attempt = in_own_context(self._attempt(batch, requests), self.hold_log)
            timeout_s = self.options.handler_timeout_s
            if timeout_s is None:
                await attempt
            else:
                # A deadline on the handler's cancel scope would be enough for handlers that end
                # when cancelled. But a handler may shield its clean-up, and one in a thread can't
                # be cancelled; their callers must get the error in time, too.
                time_is_up = partial(self._time_is_up, batch, requests, scope)
                timers = self.intake.timers
                timer = timers.add(self.parking.now() + timeout_s, time_is_up)
                try:
                    await attempt
                finally:
                    timers.forget(timer)
        except ScopesMixedUp:
            raise
        except BaseException as error:
            if not must_propagate(error, self.parking):
                failure = error
            elif (
                self.handler.convert_error is None
                or not ends_the_program(error)
                or is_of_a_signal(error)
            ):
                raise
            else:
                failure = self.handler.convert_error(error)
        if failure is None:
            return
        # Outside of the block above: errors of later runs would have this one as their context.
        try:
            failure = with_hint(failure)
            has_died = isinstance(failure, (RunsAgain, ReplicaDied))
            if scope.cancel_called and batch.active and not has_died:
                self._fail_all(requests, self._timed_out)
            else:
                await self._failed(batch, requests, failure)
        finally:
            del failure  # its traceback holds this frame

    def _items(self, requests: Sequence[Request]) -> list[Any]:
        """Returns the items of a run, padded to an allowed size; raises what ``pad`` raises."""
        items = [request.item for request in requests]
        sizes, pad = self.options.allowed_batch_sizes, self.options.pad
        if sizes is None:
            return items
        by_cost = self.options.batch_size_fn is not None
        size = cost_of(requests) if by_cost else len(items)
        wanted = padded(sizes, size)
        if size >= wanted:
            return items
        if pad is None:
            return items + [items[-1]] * (wanted - len(items))
        made = list(pad(list(items), wanted))
        if len(made) < len(items) or (not by_cost and len(made) != wanted):
            raise ValueError(
                f"pad of {self.name} was given {len(items)} items and must give back {wanted}, "
                f"not {len(made)}"
            )
        return made

    @abstractmethod
    async def _attempt(self, batch: Batch, requests: Sequence[Request]) -> None: ...

    async def _failed(
        self, batch: Batch, requests: Sequence[Request], failure: BaseException
    ) -> None:
        """Fails the requests for which the handler raised, or runs them again."""
        if isinstance(failure, RunsAgain):
            self._queue_again(requests, failure)
            requests, failure = still_running(requests), failure.death
            if not requests:
                return
        if (retry := retry_of(failure)) is not None:
            back = [r for r in still_running(requests) if self._may_run_again(r)]
            retry_later(self.intake, batch, back, retry)
            if rest := still_running(requests):
                self._fail_with(batch, rest, failure)
            return
        if not self.options.isolate_errors or len(requests) < 2:
            self._fail_with(batch, requests, failure)
            return
        # A single remaining request is run again too: the error may be due to another request that
        # its caller has left.
        waiting = [r for r in still_running(requests) if self._may_run_again(r)]
        again = set(waiting)
        self._fail_with(batch, [r for r in requests if r not in again], failure)
        middle = len(waiting) // 2
        for half in (waiting[:middle], waiting[middle:]):
            part = still_running(half)
            if part:
                self.counters.isolating_runs += 1
                part_batch = Batch(batch.id, batch.reason, part, draining=batch.draining)
                part_batch.trace = batch.trace
                batch.on_overdue = part_batch.set_overdue
                try:
                    with setting(running_batch, part_batch), self.parking.new_scope() as part_scope:
                        await self._run_requests(batch, part, part_scope)
                    if part_scope.cancel_called:
                        self._fail_all(part, self._timed_out)
                except RuntimeError as error:  # `part_scope` can't be left
                    raise ScopesMixedUp from error
                finally:
                    batch.on_overdue = None
                    part_batch.members = []

    def _queue_again(self, requests: Sequence[Request], failure: RunsAgain) -> None:
        """Queues the requests that may run again after the death of their replica."""
        back = [
            r
            for r in still_running(requests)
            if self._may_run_again(r) and deaths_of(r) < failure.retries
        ]
        if back:
            queue_again(self.intake, cast("Batch", back[0].batch), back, failure.death)

    def _may_run_again(self, request: Request) -> bool:
        """Returns whether a request can be answered by another run of the handler."""
        return True

    def _fail_with(self, batch: Batch, requests: Sequence[Request], failure: BaseException) -> None:
        if batch.active == 0:
            # A handler that makes calls with the same deadline raises this when its callers expire.
            late = isinstance(failure, DeadlineExceeded)
            logger.log(
                logging.DEBUG if late else logging.WARNING,
                "%s: the handler raised after all callers of batch %d had left",
                self.name,
                batch.id,
                exc_info=failure,
            )
        self._fail_all(requests, lambda: own_copy(failure))

    def _time_is_up(self, batch: Batch, requests: Sequence[Request], scope: Scope) -> None:
        """Fails the callers because of the time limit, and interrupts the handler if possible."""
        self._fail_all(requests, self._timed_out)
        scope.cancel()  # a generator in a thread is asked for no further step
        batch.set_overdue()

    def _yields_in_scope(self, cause: BaseException) -> HandlerFailed:
        error = HandlerFailed(
            f"the handler of {self.name} yields inside of a cancel scope: a block of "
            "move_on_after, fail_after, a task group or an opened batcher; leave the block before "
            "each yield:\n"
            "    with anyio.fail_after(1):\n"
            "        step = await compute(items)\n"
            "    yield step"
        )
        error.__cause__ = cause
        return error

    def _timed_out(self) -> HandlerTimeout:
        return HandlerTimeout(
            f"the handler of {self.name} did not end within {self.options.handler_timeout_s} s"
        )

    def _fail_all(
        self, requests: Sequence[Request], make_error: Callable[[], BaseException]
    ) -> None:
        for request in requests:
            if request.state is RUNNING:
                self._fail(request, make_error())

    def _fail(self, request: Request, error: BaseException) -> None:
        request.error = error
        if is_declined(error):
            self._end(request, State.DECLINED)
            self.counters.declined += 1
        else:
            batch = cast("Batch", request.batch)
            if batch.failure is None:
                batch.failure = error
            self._end(request, State.FAILED)
            self.counters.failed += 1
        self.parking.wake_all((request,))

    def _finish_all(self, requests: Sequence[Request]) -> None:
        """Ends running streams after their buffered items."""
        for request in requests:
            self._end(request, State.FINISHED)
        self.counters.finished += len(requests)
        self.parking.wake_all(requests)

    def _end(self, request: Request, state: State) -> None:
        batch, request.batch = request.batch, None
        assert batch is not None
        batch.active -= 1
        request.state = state

    def _listed(self, results: Any, wanted: int, wrong_size: str, *, is_step: bool) -> list[Any]:
        """Returns what the handler returned, or a step, in a list with one value for each item."""
        check_results(self.handler.name, wanted, results, is_step=is_step)
        try:
            got = len(results)
        except TypeError:
            raise not_results(self.handler.name, wanted, results) from None
        if getattr(results, "__iter__", None) is not None:
            values: list[Any] = list(results)
        else:
            values = [results[index] for index in range(got)]
        if got != wanted or len(values) != wanted:
            raise WrongBatchSize(
                f"the handler of {self.name} was given {wanted} items and "
                + wrong_size.format(got=got),
                expected=wanted,
                got=got,
            )
        return values

    def _fail_slow_reader(self, request: Request) -> None:
        error = SlowReader(
            f"a stream of {self.name} blocked its batch for {self.options.slow_reader_timeout_s} s:"
            f" its reader left {request.waiter.capacity} items in the buffer"
        )
        if isinstance(request.batch, Flight):  # one reader of several
            request.batch.fail(request, error)
        else:
            self._fail(request, error)


class UnaryRun(Run):
    __slots__ = ()

    async def _attempt(self, batch: Batch, requests: Sequence[Request]) -> None:
        items = self._items(requests)
        width = len(items)  # the handler may change the list
        results = await self.handler.results(items)
        if results.__class__ is list and len(results) == width:
            values: Sequence[Any] = list(results)  # the handler may change its list
        else:
            values = self._listed(results, width, _WRONG_SIZE, is_step=False)
        if width > len(requests):
            values = values[: len(requests)]  # the results of padding are dropped
        has_errors = has_coroutines = False
        for kind in kinds_of(values):
            has_errors = has_errors or issubclass(kind, BaseException)
            has_coroutines = has_coroutines or kind is CoroutineType
        if has_errors:
            self._fail_places(requests, values)
        if has_coroutines and self.handler.threaded:
            raise self._not_awaited(values)
        running = requests
        if batch.active < batch.size or len(requests) < batch.size:
            values = [v for r, v in zip(requests, values, strict=True) if r.state is RUNNING]
            running = still_running(requests)
        batch.active -= len(running)
        self.counters.finished += len(running)
        (batch.group or self.parking).answer_all(running, values)

    def _not_awaited(self, values: Sequence[Any]) -> WrongResultType:
        """Returns the error for results that a plain handler could not await."""
        coroutines: list[Any] = [value for value in values if type(value) is CoroutineType]
        for each in coroutines:
            each.close()  # or Python warns that nothing has awaited it
        return WrongResultType(
            f"the handler of {self.name} gave back a coroutine, which it can't await in its "
            "thread; it gets the result of a batched function f by f.from_thread(item), and that "
            "of another async function by anyio.from_thread.run"
        )

    def _fail_places(self, requests: Sequence[Request], values: Sequence[Any]) -> None:
        paired = [*zip(requests, values, strict=True)]
        again = {r: v for r, v in paired if type(v) is RunsAgain}
        if again:
            self._queue_again([*again], next(iter(again.values())))
        for request, value in paired:
            if issubclass(type(value), BaseException) and request.state is RUNNING:
                self._fail(request, own_copy(value.death if type(value) is RunsAgain else value))


def kinds_of(values: Iterable[Any]) -> Iterable[type]:
    """Returns the types of some values, most of them once."""
    try:
        return set(map(type, values))
    except Exception:  # of a metaclass that can't be hashed
        return list(map(type, values))


def deaths_of(request: Request) -> int:
    """Returns how often a request was queued again because its replica had died."""
    return request.returned.deaths if hasattr(request, "returned") else 0


def still_running(requests: Sequence[Request]) -> list[Request]:
    return [request for request in requests if request.state is RUNNING]
