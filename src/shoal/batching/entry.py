"""From what a caller writes to a request in line: binding, options, and the wait for the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import anyio.lowlevel

from shoal.batching.stream import ResultStream
from shoal.core.request import CallOptions, Request
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from shoal.batching.intake import Intake
    from shoal.batching.signature import Binding
    from shoal.core.options import BatchOptions

Extras: TypeAlias = "tuple[float | None, Mapping[str, Any] | None]"
"""What one call asks for beside its item: its deadline in seconds from its start, its metadata."""


class Entry:
    """Where calls enter an open batcher.

    Attributes:
        takes_bare_items: Whether a call of one positional argument needs neither binding nor a
            deadline, and so can go straight to `call`.
        intake: The line that they enter.
        call: `Intake.call`.
    """

    def __init__(
        self,
        intake: Intake,
        binding: Binding,
        options: BatchOptions,
        now: Callable[[], float],
    ) -> None:
        self.call = intake.call
        self.intake = intake
        self._binding = binding
        self._now = now
        self.configure(options)

    def configure(self, options: BatchOptions) -> None:
        """Takes in new options, for the calls that are made from now on."""
        self._timeout_s = options.request_timeout_s
        self.takes_bare_items = self._binding.single and self._timeout_s is None

    def begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], extras: Extras | None
    ) -> Coroutine[Any, Any, Any]:
        """Binds a call and returns the coroutine that makes it.

        Raises:
            TypeError: The arguments don't fit the handler's parameters.
        """
        item = self._binding.item(args, kwargs)
        options = self._call_options(extras)
        if options is None or options.deadline is None:
            return self.call(item, options)
        return self._call_until(item, options)

    def begin_map(
        self, columns: tuple[Iterable[Any], ...], extras: Extras | None, *, return_exceptions: bool
    ) -> Coroutine[Any, Any, list[Any]]:
        """Binds many calls, one for each element of the columns, and returns their coroutine.

        Raises:
            TypeError: The columns don't fit the handler's parameters.
            ValueError: The columns have different lengths.
        """
        if self._binding.single and len(columns) == 1:
            items = list(columns[0])
        else:
            items = [self._binding.item(args, {}) for args in zip(*columns, strict=True)]
        return self._map(items, self._call_options(extras), return_exceptions=return_exceptions)

    def begin_stream(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], extras: Extras | None
    ) -> ResultStream[Any]:
        """Binds a call and returns the stream that makes it when it is entered.

        Raises:
            TypeError: The arguments don't fit the handler's parameters.
        """
        item = self._binding.item(args, kwargs)
        return ResultStream(self.intake, item, self._call_options(extras))

    def _call_options(self, extras: Extras | None) -> CallOptions | None:
        limit_s = self._timeout_s
        if extras is None and limit_s is None:
            return None
        deadline_s, metadata = (None, None) if extras is None else extras
        if deadline_s is None or (limit_s is not None and limit_s < deadline_s):
            deadline_s = limit_s
        return CallOptions(None if deadline_s is None else self._now() + deadline_s, metadata)

    async def _call_until(self, item: Any, options: CallOptions) -> Any:
        try:
            request = self.intake.enter(item, options)
        except ShoalError:
            await anyio.lowlevel.checkpoint()
            raise
        await self._wait(request.cell, (request,), options)
        return _outcomes((request,))[0]

    async def _map(
        self, items: list[Any], options: CallOptions | None, *, return_exceptions: bool
    ) -> list[Any]:
        if not items:
            await anyio.lowlevel.checkpoint()
            return []
        try:
            requests = self.intake.enter_group(items, options)
        except ShoalError:
            await anyio.lowlevel.checkpoint()
            raise
        await self._wait(requests[0].cell, requests, options)
        if not return_exceptions:
            return _outcomes(requests)
        results = [r.value if r.error is None else r.error for r in requests]
        _let_go_of_errors(requests)
        return results

    async def _wait(
        self, cell: Awaitable[None], requests: Sequence[Request], options: CallOptions | None
    ) -> None:
        """Waits for requests to end, or to run out of time; drops them if the wait is cancelled."""
        try:
            if options is None or options.deadline is None:
                await cell
                return
            if options.deadline <= requests[0].arrived_at:
                # asyncio would let a result overtake the cancellation.
                for request in requests:
                    self.intake.expire(request)
                await anyio.lowlevel.checkpoint()
                return
            with anyio.CancelScope(deadline=options.deadline) as scope:
                await cell
        except BaseException:
            for request in requests:
                self.intake.abandon(request)
            raise
        if scope.cancelled_caught:
            for request in requests:
                self.intake.expire(request)


def _let_go_of_errors(requests: Sequence[Request]) -> None:
    """Breaks the cycle from a request by its error and the traceback's frames to the request."""
    for request in requests:
        request.error = None


def _outcomes(requests: Sequence[Request]) -> list[Any]:
    """Returns the results of requests, or raises the first error."""
    for request in requests:
        if request.error is not None:
            try:
                raise request.error
            finally:
                _let_go_of_errors(requests)
    return [request.value for request in requests]
