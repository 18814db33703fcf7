"""Calls that wait for one result: the hot path. Each allocates its request and its waiter.

These are closures: to look up their parts at each call costs 4 % of a call on asyncio. A function
that is an attribute of an object, as ``former.append``, is put into a variable first: CPython 3.11
remembers how it found the attribute, but not for ``former.append(...)``. Where the code repeats
another method, a comment has what that saves in `benchmarks/inproc.py`.

A call that is awaited in another event loop than the batcher's is made by the batcher of that loop.
A loop nearly always stays in its thread, so usually the threads are compared.
"""

from __future__ import annotations

from contextvars import copy_context
from threading import get_ident
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from shoal.batching.current import running_batch
from shoal.core.forming.call_options import NO_CALL_OPTIONS
from shoal.core.request import SHARED, Request, State
from shoal.errors import NotOpen, WouldDeadlock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from shoal.batching.calls.intake import Intake
    from shoal.core.forming.call_options import CallOptions
    from shoal.core.request import RequestOptions

    Call = Callable[[Any, RequestOptions | None], Coroutine[Any, Any, Any]]
    """Makes a call of an item with its options, and returns its result."""
    CallOfOne = Callable[[Any], Coroutine[Any, Any, Any]]
    """Makes a call of an item, and returns its result."""

QUEUED = State.QUEUED


def bare_call(intake: Intake, otherwise: Call, elsewhere: CallOfOne) -> CallOfOne:
    """Returns the function that makes a call without options.

    Args:
        intake: The intake.
        otherwise: Makes the call if the queue is full or closed, or if its options are about to
            change; see `call_with_options`.
        elsewhere: Makes the call in another event loop.
    """
    former, batches, ring = intake.former, intake.former.batches, intake.ring
    parking, home, thread = intake.parking, intake.home.loop, intake.home.thread
    now, park, future, loop = parking.now, parking.park, parking.future, parking.loop

    async def call(item: Any) -> Any:
        if get_ident() != thread and not home.is_here:
            return await elsewhere(item)
        if batches and running_batch.get(None) is not None:
            await _refuse_blocked(intake)
        live = former.live
        if live >= former.free_room:
            return await otherwise(item, None)
        request = Request()  # Intake.new_request and add, inlined: 4 % of a call
        request.item = item
        request.arrived_at = now()
        request.context = copy_context()
        request.options = request.error = request.batch = None
        request.state = QUEUED
        append = former.append
        append(request)
        former.live = live = live + 1
        if live == former.wake_at:
            ring()
        try:
            if future is None:
                await park(request)
            else:  # AsyncioParking.park, inlined as well
                request.waiter = waiter = future(loop=loop)
                await waiter
        except BaseException as error:
            _interrupted(intake, request, error)
            if request.error is None:
                raise
        if request.error is not None:
            return await _failed(intake, request)
        return request.value

    call.__qualname__ = intake.name
    return call


def call_with_options(intake: Intake) -> Call:
    """Returns the function that adds one request to an intake's queue and waits for its result.

    Returns:
        A function of an item and its `RequestOptions`. It returns what the handler returned for the
        item. It raises:

        - `Overloaded`: The queue is full.
        - `DeadlineExceeded`: The call ran out of time.
        - `BatcherClosed`: The batcher stopped before it could answer.
        - `NotOpen`: It is awaited in another event loop, in which the function is not open.
        - `WouldDeadlock`: The handler that makes the call would wait for itself.
        - any `Exception` that the handler raised, or returned as this request's result.

        Cancellation: the request is dropped from the queue or its batch; others are not affected.
    """
    former, batches, ring = intake.former, intake.former.batches, intake.ring
    parking, home, thread = intake.parking, intake.home.loop, intake.home.thread
    timers = former.overdue.timers
    now, park, future, loop = parking.now, parking.park, parking.future, parking.loop

    async def call(item: Any, options: RequestOptions | None) -> Any:
        if get_ident() != thread and not home.is_here:
            return await intake.call_elsewhere(item, options)
        if batches and running_batch.get(None) is not None:
            await _refuse_blocked(intake)
        request = Request()  # Intake.new_request, inlined: 4 % of a call
        request.item = item
        request.arrived_at = now()
        request.context = copy_context()
        request.options = options
        request.error = request.batch = None
        live = former.live
        if live < former.free_room and options is not None and options.options_factory is SHARED:
            # Former.arrive, inlined: 2 % of a call
            request.state = QUEUED
            append = former.append
            append(request)
            former.live = live = live + 1
            if live == former.wake_at:
                ring()
        else:
            try:
                intake.add(request)
            except Exception:
                if not home.is_here:
                    return await intake.call_elsewhere(item, options)
                await anyio.lowlevel.checkpoint()  # or a caller that retries blocks the loop
                raise
        try:
            if future is None:
                await park(request)
            else:  # AsyncioParking.park, inlined
                request.waiter = waiter = future(loop=loop)
                await waiter
        except BaseException as error:
            _interrupted(intake, request, error)
            if request.error is None:
                raise
        finally:
            if (asked := request.options) is not None:
                if asked.queue_timer is not None:
                    former.overdue.forget(request)
                elif asked.timer is not None:  # Overdue.forget, inlined: 2 % of a call
                    if asked.timer[2] is not None:
                        asked.timer[2] = None
                        timers.forgotten += 1
                    asked.timer = None
        if request.error is not None:
            return await _failed(intake, request)
        return request.value

    call.__qualname__ = intake.name
    return call


def single_call(
    intake: Intake,
    call: Call,
    options_of: Callable[[Any, CallOptions, float], RequestOptions],
    elsewhere: CallOfOne,
) -> CallOfOne:
    """Returns the function that makes a call which has no options of its own, but needs some.

    Args:
        intake: The intake.
        call: Makes the call; see `call_with_options`.
        options_of: Makes the options of an item, from the call's and the time.
        elsewhere: Makes the call in another event loop.
    """
    now, home, thread = intake.parking.now, intake.home.loop, intake.home.thread

    def begin(item: Any) -> Coroutine[Any, Any, Any]:
        if get_ident() != thread and not home.is_here:
            return elsewhere(item)
        try:
            options = options_of(item, NO_CALL_OPTIONS, now())
        except Exception as error:
            return raised(error)
        return call(item, options)

    return begin


async def raised(error: Exception) -> Any:
    """Raises an error when it is awaited."""
    await anyio.lowlevel.checkpoint()
    try:
        raise error
    finally:
        del error  # its traceback holds this frame


async def _refuse_blocked(intake: Intake) -> None:
    """Refuses a call of a running handler that would wait for itself, at a checkpoint.

    Raises:
        WouldDeadlock: The call would.
    """
    try:
        intake.refusals.refuse_blocked()
    except WouldDeadlock:
        await anyio.lowlevel.checkpoint()
        raise


def _interrupted(intake: Intake, request: Request, error: BaseException) -> None:
    """Drops the request of a call whose wait has raised an error.

    If its caller runs in another event loop, the request has an error then.
    """
    intake.abandon(request)
    # Another event loop raises these for a waiter of this one.
    if isinstance(error, (TypeError, RuntimeError)) and not intake.home.loop.is_here:
        request.error = intake.refusals.elsewhere()


async def _failed(intake: Intake, request: Request) -> Any:
    """Raises the error of a request; makes its call again if it was awaited in another loop."""
    if type(request.error) is NotOpen and not intake.home.loop.is_here:
        return await intake.call_elsewhere(request.item, request.options)
    try:
        raise request.error
    finally:
        # The error's traceback holds this frame, so the frame drops the error.
        request.error = None
