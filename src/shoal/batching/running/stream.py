"""One run of a generator handler, which yields one value for each request in every step.

The handler is blocked between its steps while some reader's buffer is full. A reader that blocks it
for longer than ``slow_reader_timeout_s`` in total, without having caught up once, fails alone.

Forwarding the items of a step may take longer than making them, so the next step of a plain
generator runs at the same time (`Stepping`). If the event loop would ask for that step anyway, its
thread goes on by itself while the loop hands out the last step. A step that computes in Python
would delay each of the items, since Python runs one thread at a time. So both happen only beside
steps that wait for a device or another program.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.calls.stream import END, SKIP, Mark
from shoal.batching.running.run import RUNNING, Run, ScopesMixedUp, kinds_of, still_running
from shoal.batching.stream_buffer import offer_all, wait_for_readers
from shoal.core.request import State
from shoal.failures.exceptions import ends_the_program, must_propagate, own_copy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from shoal.batching.stream_buffer import StreamBuffer
    from shoal.core.request import Batch, Request


@dataclass(slots=True, eq=False)
class Stepping:
    # Called in the event loop once the next step was given to its thread, or has begun.
    began: Callable[[], object] = lambda: None
    wants_more: Callable[[list[Any]], bool] = lambda _: False
    # Whether the last step waited for more than half of its time, for a device or a program.
    waits: bool = False
    # Whether each reader has room for two more steps. The event loop sets it after each step; it
    # permits one step to begin before the one in front of it was handed out.
    has_room: bool = False

    def take(self, step: Callable[[], Any]) -> tuple[Any, bool]:
        """Runs a step in its thread; returns its value, and whether the next may begin early."""
        # Nothing here keeps that, since a thread of a killed replica may still run a step while the
        # batch runs again on another replica.
        since, used = time.perf_counter(), time.thread_time()
        try:
            values = step()
        finally:
            self.waits = 2 * (time.thread_time() - used) < time.perf_counter() - since
        may_go_on = False
        if self.waits and self.has_room:
            self.has_room = False
            if type(values) in (list, tuple):
                values = list(values)  # the generator may change its own in the next step
                may_go_on = self.wants_more(values)
        return values, may_go_on


running_steps: Final[ContextVar[Stepping]] = ContextVar("shoal.running_steps")
"""What takes the steps of the run in this context, if a replica in this process runs them."""


_WRONG_SIZE: Final = (
    "yielded {got} values; each step must have one for each, shoal.END for a stream that is over"
)
_MAY_END: Final = (Mark, type, BaseException)
"""The kinds of values that may end a stream; the others are items."""


class StreamRun(Run):
    __slots__ = ()

    async def _attempt(self, batch: Batch, requests: Sequence[Request]) -> None:
        items = self._items(requests)
        width = len(items)  # the handler may change the list
        to_offer: list[StreamBuffer] = []
        steps = self.handler.steps(items)
        stepping = Stepping(
            partial(offer_all, to_offer), partial(self._wants_more, batch, requests, width)
        )
        interruption: BaseException | None = None
        failure: BaseException | None = None
        has_ended = False
        try:
            # A generator that yields in its own cancel scope leaves it only when it is closed. So
            # Shoal's scopes are left before it continues, or were entered before it began.
            with self.parking.new_scope() as around:
                token = running_steps.set(stepping)
                try:
                    interruption = await self._pump(
                        batch, requests, steps, width, stepping, to_offer
                    )
                except BaseException as error:
                    failure = error
                finally:
                    running_steps.reset(token)
                # A generator that is stopped between steps may have to clean up, and gets as much
                # time for it as closing a batcher.
                around.deadline = self.parking.now() + self.options.graceful_shutdown_timeout_s
                around.shield = True
                try:
                    await steps.aclose()
                except BaseException as error:
                    if not around.cancel_called or ends_the_program(error):
                        failure = error
                has_ended = True
                if self.parking.leave_scopes_in(around):
                    raise RuntimeError("the generator was closed in a cancel scope of its own")
        except RuntimeError as error:
            if not has_ended:
                raise
            raise ScopesMixedUp from error
        try:
            if interruption is not None and not must_propagate(interruption, self.parking):
                raise self._yields_in_scope(failure or interruption)
            if failure is not None:
                raise failure
            if interruption is not None:
                raise interruption
        finally:
            del failure, interruption  # their tracebacks hold this frame
        self._finish_all(still_running(requests))

    async def _pump(
        self,
        batch: Batch,
        requests: Sequence[Request],
        steps: AsyncGenerator[Any, None],
        width: int,
        stepping: Stepping,
        to_offer: list[StreamBuffer],
    ) -> BaseException | None:
        """Distributes steps until the generator ends or has no readers."""
        # Returns what interrupted a wait of Shoal's own between two steps; raises what the
        # generator raised, or an error for a wrong step.
        async for step in steps:
            offer_all(to_offer)
            offers = to_offer if stepping.waits else None
            full, has_room = self._hand_out(requests, step, width, offers)
            active = _active(batch, requests)
            try:
                if full:
                    offer_all(to_offer)  # the next step begins only after the wait
                    limit_s = self.options.slow_reader_timeout_s
                    await wait_for_readers(full, limit_s, self.parking, self._fail_slow_reader)
                elif not (self.handler.threaded or stepping.waits) and (
                    active or self._goes_on_alone(requests)
                ):
                    # An async generator may reach its next step without a checkpoint, and then the
                    # readers could not run. While a step runs in a thread they can.
                    await self.parking.checkpoint()
            except BaseException as error:
                return error
            active = _active(batch, requests)
            if active == 0 and not self._goes_on_alone(requests):
                break
            stepping.has_room = has_room
        return None

    def _wants_more(
        self, batch: Batch, requests: Sequence[Request], width: int, values: list[Any]
    ) -> bool:
        """Returns whether the run goes on after a step, as far as the step's thread can tell."""
        if len(values) != width:
            return False
        may_end = 0
        if any(issubclass(kind, _MAY_END) for kind in kinds_of(values)):
            may_end = sum(
                [value is not SKIP and issubclass(type(value), _MAY_END) for value in values]
            )
        return may_end < _active(batch, requests)

    def _may_run_again(self, request: Request) -> bool:
        buffer: StreamBuffer = request.waiter
        return not buffer.has_sent

    def _hand_out(
        self,
        requests: Sequence[Request],
        step: Any,
        width: int,
        to_offer: list[StreamBuffer] | None,
    ) -> tuple[list[Request], bool]:
        # `width` counts the requests and padding. `to_offer` gets the buffers with an item to pass
        # on while the next step runs; None to do so before it. Returns the requests with full
        # buffers, and whether none will be full after another step.
        values = self._listed(step, width, _WRONG_SIZE, is_step=True)
        if any(issubclass(kind, _MAY_END) for kind in kinds_of(values)):
            self._end_some(requests, values)
        full: list[Request] = []
        has_room = True
        woken: list[StreamBuffer] = []
        for request, value in zip(requests, values, strict=False):
            if request.state is not RUNNING:
                continue
            buffer: StreamBuffer = request.waiter
            items = buffer.items
            if value is not SKIP:
                items.append(value)
                buffer.has_sent = True
                if buffer.passes_on is not None:
                    if to_offer is not None and len(items) < buffer.capacity:
                        to_offer.append(buffer)
                    else:
                        buffer.offer()
                elif buffer.waiter is not None:
                    woken.append(buffer)
            room = buffer.capacity - len(items)
            if room < 2:
                has_room = False
                # One that got nothing may be full as well, once another reader has joined it.
                if room < 1 and value is not SKIP:
                    full.append(request)
        self.parking.wake_all(woken)
        return full, has_room

    def _end_some(self, requests: Sequence[Request], values: Sequence[Any]) -> None:
        for request, value in zip(requests, values, strict=False):
            if request.state is not RUNNING:
                continue
            if value is END or value is StopIteration or value is StopAsyncIteration:
                self._finish_all([request])
            elif issubclass(type(value), BaseException):  # __class__ may be overridden
                self._fail(request, own_copy(value))

    def _goes_on_alone(self, requests: Sequence[Request]) -> bool:
        return not self.options.cancel_abandoned and any(
            request.state is State.CANCELLED for request in requests
        )


def _active(batch: Batch, requests: Sequence[Request]) -> int:
    return batch.active if len(requests) == batch.size else len(still_running(requests))
