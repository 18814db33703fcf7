"""Turns a caller's arguments into queued requests: binding, options, and the wait for results."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.lowlevel import checkpoint

from shoal.batching.calls.groups import all_results, any_failed, outcome_of, parts_of
from shoal.batching.calls.intake import raise_error_of
from shoal.batching.calls.leaving import CallerLeft, leave, run_unless_left
from shoal.batching.calls.separate import call_apart
from shoal.batching.calls.sharing import Sharing
from shoal.batching.calls.stream import ResultStream
from shoal.batching.calls.window import MapPlan
from shoal.core.forming.call_options import NO_CALL_OPTIONS, CallOptions
from shoal.core.request import UNDER_WAY, State
from shoal.failures.exceptions import own_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from shoal.batching.calls.groups import GroupWaiter, Part
    from shoal.batching.calls.intake import Intake
    from shoal.batching.calls.leaving import WhenLeft
    from shoal.batching.handlers.binding import Binding
    from shoal.core.counters import Counters
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Request, RequestOptions


FINISHED = State.FINISHED
_LARGEST_CHUNK: Final = 256
_MOST_SLOTS: Final = 8
"""For how many slots a `map` has items under way by default."""


class Entry:
    def __init__(
        self,
        intake: Intake,
        binding: Binding,
        options: BatchOptions,
        counters: Counters,
    ) -> None:
        self.intake = intake
        self._binding = binding
        self.item = binding.item
        self._counters = counters
        self._sharing: Sharing | None = None
        self.configure(options)

    def configure(self, options: BatchOptions) -> None:
        self.options = options
        self.options_factory = self.intake.options_factory
        if options.dedupe is False and options.cache is None:
            self._sharing = None
        else:
            self._sharing = self._sharing or Sharing(self.intake)
            self._sharing.configure(options)
        self._diverts = options.split is not None or self._sharing is not None
        # Whether calls are all alike, and no code of the user runs when one is made.
        self.is_plain = self.intake.former.takes_anyone and not (
            options.use_scope_deadline or self._diverts
        )
        self.needs_options = options.request_timeout_s is not None or not self.is_plain
        self._request_options_of: Callable[[Any, CallOptions, float], RequestOptions] = (
            self._request_options_in_scope
            if options.use_scope_deadline
            else self.options_factory.of
        )

    async def call(
        self, item: Any, call_options: CallOptions | None, when_left: WhenLeft | None = None
    ) -> Any:
        """Makes a call with bound arguments; raises `CallerLeft` if `when_left` reports it."""
        intake, request = self.intake, None
        try:
            opener: Intake | Sharing = intake
            if self._diverts:
                if self.options.split is not None:
                    one = [call_options or NO_CALL_OPTIONS]
                    run = partial(self._map, [item], one, return_exceptions=False)
                    made = run() if when_left is None else run_unless_left(when_left, run)
                    [value] = await made
                    return value
                opener = self._shared_for(call_options) or intake
            now, options = intake.now(), None
            if call_options is not None or self.needs_options:
                options = self._request_options_of(item, call_options or NO_CALL_OPTIONS, now)
            request = opener.enter(item, options, now)
            if when_left is not None:
                when_left(partial(leave, intake, request))
            if request.state in UNDER_WAY:
                await intake.park(request)
            elif when_left is None:  # else its server decides when to let others run
                await checkpoint()
        except BaseException as error:
            if when_left is not None:
                when_left(None)
            if not await intake.end_failed_call(request, error):
                raise
        else:
            if request.options is not None:
                intake.overdue.forget(request.options)
            if request.state is FINISHED:
                return request.value
            if request.error is not None:
                raise_error_of(request)
            raise CallerLeft("the caller left before its call was answered")
        raise intake.elsewhere()

    def map_plan(self, call_options: CallOptions | None, *, as_completed: bool) -> MapPlan:
        async def call_all(*columns: Sequence[Any]) -> list[Any]:
            return await self._map_columns(columns, call_options, return_exceptions=True)

        options = self.options
        bound = options.max_queued_requests
        most = math.inf if bound is None or options.overload == "wait" else max(bound, 1)
        # Items of a chunk end together if they are of one batch, as consecutive ones usually are.
        is_apart = as_completed and (options.bucket_by or options.batch_size_fn) is not None
        return MapPlan(
            self.intake.name,
            call_all,
            chunk=1 if is_apart else int(min(options.max_batch_size, most, _LARGEST_CHUNK)),
            window=3 * options.max_batch_size * int(min(options.slots, _MOST_SLOTS)),
            most=most,
        )

    def map_at_once(
        self,
        columns: tuple[Any, ...],
        call_options: CallOptions | None,
        *,
        return_exceptions: bool,
    ) -> Coroutine[Any, Any, list[Any]] | None:
        """Makes the calls of lists at once; returns None if queue and slots can't hold them."""
        options = self.options
        at_once: float = 0
        if options.batch_size_fn is None:  # else slots may take fewer
            at_once = options.slots * options.batch_limit.requests
        most, bound = math.inf, options.max_queued_requests
        if bound is not None and options.overload != "wait":
            most = bound + at_once
        priority = None if call_options is None else call_options.priority
        level = options.queue_policy(options.usual_priority if priority is None else priority)
        if level is not None and level.max_queued_requests is not None:
            most = min(most, max(level.max_queued_requests, at_once))
        if columns and len(columns[0]) > most:
            return None
        return self._map_columns(columns, call_options, return_exceptions=return_exceptions)

    async def _map_columns(
        self,
        columns: tuple[Iterable[Any], ...],
        call_options: CallOptions | None,
        *,
        return_exceptions: bool,
    ) -> list[Any]:
        try:
            if self._binding.single and len(columns) == 1:
                items = list(columns[0])
            else:
                items = [self._binding.item(args, {}) for args in zip(*columns, strict=True)]
        except Exception:
            await checkpoint()
            raise
        return await self.call_all(items, call_options, return_exceptions=return_exceptions)

    async def call_all(
        self, items: list[Any], call_options: CallOptions | None, *, return_exceptions: bool
    ) -> list[Any]:
        self.intake.check_loop()
        self.intake.adopt()
        if call_options is None and not self.needs_options:
            return await self._map_alike(items, return_exceptions=return_exceptions)
        if self._shared_for(call_options) is not None:
            same = repeat(call_options)
            return await self._call_apart(items, same, return_exceptions=return_exceptions)
        given = repeat(call_options or NO_CALL_OPTIONS)
        return await self._map(items, given, return_exceptions=return_exceptions)

    async def outcomes_of(
        self,
        items: list[Any],
        call_options: Sequence[CallOptions | None],
        begun: Callable[[Callable[[int], None]], object],
    ) -> list[Any]:
        """Makes a call for each item, with its own options; returns results and exceptions."""
        # `begun` gets a function that makes the caller of one leave.
        if self.options.split is not None:
            given = [one or NO_CALL_OPTIONS for one in call_options]
            return await self._map(items, given, return_exceptions=True)
        return await self._call_apart(items, call_options, begun, return_exceptions=True)

    async def _call_apart(
        self,
        items: list[Any],
        call_options: Iterable[CallOptions | None],
        begun: Callable[[Callable[[int], None]], object] = lambda _: None,
        *,
        return_exceptions: bool,
    ) -> list[Any]:
        opener = self._sharing or self.intake

        def make(item: Any, given: CallOptions | None, waiter: GroupWaiter) -> Request:
            now = self.intake.now()
            return opener.enter(item, self.options_of(item, given, now), now, waiter)

        pairs = zip(items, call_options, strict=False)
        makers = [partial(make, item, given) for item, given in pairs]
        return await call_apart(self.intake, makers, begun, return_exceptions=return_exceptions)

    def begin_stream_of(self, item: Any, call_options: CallOptions | None) -> ResultStream[Any]:
        return ResultStream(partial(self.enter_stream, item, call_options))

    def enter_stream(self, item: Any, call_options: CallOptions | None) -> tuple[Intake, Request]:
        """Makes the request of a stream at once; raises the errors of doing so."""
        opener = self._shared_for(call_options) or self.intake
        now = self.intake.now()
        return opener.enter_stream(item, self.options_of(item, call_options, now), now)

    def options_of(
        self, item: Any, call_options: CallOptions | None, now: float
    ) -> RequestOptions | None:
        """Returns None if the call needs no options; raises what functions of an item raise."""
        if call_options is None and not self.needs_options:
            return None
        return self._request_options_of(item, call_options or NO_CALL_OPTIONS, now)

    def forget_results(self) -> None:
        if self._sharing is not None:
            self._sharing.clear()

    def _shared_for(self, call_options: CallOptions | None) -> Sharing | None:
        return self._sharing if call_options is None or call_options.share else None

    def _request_options_in_scope(
        self, item: Any, call_options: CallOptions, now: float
    ) -> RequestOptions:
        options = self.options_factory.of(item, call_options, now)
        due = anyio.current_effective_deadline()
        if due < math.inf and (options.due is None or due < options.due):
            options.due = due
        return options

    async def _wait_for(self, requests: Sequence[Request]) -> None:
        """Waits until all have ended, or one part has failed; drops them if it is cancelled."""
        try:
            await requests[0].waiter
        except BaseException:
            for request in requests:
                self.intake.abandon(request)
            raise
        finally:
            requests[0].waiter.has_failed = None  # it has the requests, and they have the waiter
            if requests[0].options is not None:  # all have options, or none has
                for request in requests:
                    self.intake.overdue.forget(request.options)

    async def _map_alike(self, items: list[Any], *, return_exceptions: bool) -> list[Any]:
        if not items:
            await checkpoint()
            return []
        try:
            requests = self.intake.enter_group(items, None)
        except Exception as error:
            await checkpoint()
            if return_exceptions:
                return [own_copy(error) for _ in items]
            raise
        await self._wait_for(requests)
        waiter: GroupWaiter = requests[0].waiter
        if waiter.answered < len(requests) and any_failed(requests):
            outcomes = [outcome_of([request], None) for request in requests]
            return all_results(outcomes, return_exceptions=return_exceptions)
        return [request.value for request in requests]

    async def _map(
        self, items: list[Any], call_options: Iterable[CallOptions], *, return_exceptions: bool
    ) -> list[Any]:
        self.intake.check_loop()
        self.intake.adopt()
        divided = self._divided_or_error if return_exceptions else self._divided
        join = self.options.join  # it may change while this waits
        now, entering = self.intake.now(), dict[Hashable, float]()
        # A call that can't be made has its error in place of its parts.
        calls: list[list[Part] | Exception] = []
        try:
            try:
                pairs = zip(items, call_options, strict=False)
                calls += [divided(item, given, now, entering) for item, given in pairs]
                parts = [part for one in calls if isinstance(one, list) for part in one]
                requests = self.intake.enter_parts(parts) if parts else []
            except Exception as error:
                await checkpoint()
                if return_exceptions:
                    return [own_copy(error) if isinstance(one, list) else one for one in calls]
                raise
            if not requests:
                await checkpoint()
                return calls.copy()
            if len(items) == 1:  # the first part that fails ends it
                requests[0].waiter.has_failed = partial(any_failed, requests)
            await self._wait_for(requests)
            if len(items) == 1:
                for request in requests:
                    if request.error is None:
                        self.intake.abandon(request)
            rest = iter(requests)
            outcomes = [
                outcome_of(list(islice(rest, len(one))), join)
                if isinstance(one, list)
                else (None, one)
                for one in calls
            ]
        finally:
            calls.clear()  # the tracebacks of its errors hold this frame
        return all_results(outcomes, return_exceptions=return_exceptions)

    def _divided_or_error(self, *args: Any) -> list[Part] | Exception:
        try:
            return self._divided(*args)
        except Exception as error:
            return error

    def _divided(
        self, item: Any, call_options: CallOptions, now: float, entering: dict[Hashable, float]
    ) -> list[Part]:
        """Splits an item; adds its cost to `entering`, the cost queued in front of it by bucket."""
        options = self._request_options_of(item, call_options, now)
        queued = entering.get(options.key)
        if queued is None:
            queued = self.intake.former.cost_beside(options)
        parts = parts_of(item, options, call_options, self.options_factory, now, queued)
        if len(parts) > 1:
            self._counters.split_calls += 1
            self._counters.split_requests += len(parts)
        entering[options.key] = queued + options.cost
        return parts
