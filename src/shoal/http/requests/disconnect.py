"""Calls that are cancelled when their client disconnects.

No ASGI server cancels an application whose client is gone; it only reports the disconnect from
``receive``. So during a call a task must await ``receive``. A disconnect ends the call: a queued
request is removed before the handler gets it, the result of a request in the handler is discarded,
and a stream frees its slot.

For a call with one result the request's own task awaits ``receive``, in a cancel scope. The
request's waiter cancels that scope when the result is there. The alternative, a second task that
watches while the first one waits, was measured at 63 microseconds a request on trio, against 18 for
this and some 400 for all the rest. A stream waits many times for each time that it is set up, so it
has a watching task.

Watching ends before an answer is completed: servers free the connection in the task that completes
the answer, and it must not be cancelled there.

A client that closes only its sending side (``shutdown(SHUT_WR)``) counts as disconnected: servers
can't tell the two cases apart without writing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from shoal.core.request import State
from shoal.http.requests.exchange import ClientLeft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive

    from shoal.batching.calls.entry import Entry
    from shoal.core.forming.call_options import CallOptions


class _ScopeWaiter:
    """A request's waiter that cancels a scope, to wake a task which awaits something else."""

    __slots__ = ("_scope",)

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope

    def wake(self) -> None:
        """Wakes the caller, once the request has ended."""
        self._scope.cancel()

    def departed(self) -> bool:
        """Returns False: a caller that leaves abandons its request itself."""
        return False


async def call_unless_client_leaves(
    receive: Receive, entry: Entry, item: Any, call_options: CallOptions
) -> Any:
    """Makes a call with one result, and cancels it if the client disconnects first.

    Args:
        receive: The ASGI callable; the request's body has been read from it.
        entry: The entry that the call is made through.
        item: The handler's item.
        call_options: The call's time limit, metadata and priority.

    Returns:
        The result.

    Raises:
        ClientLeft: The client disconnected.
        Exception: As for any call.

    Cancellation: The call is cancelled.
    """
    intake = entry.intake
    scope = anyio.CancelScope()
    request = intake.enter(item, entry.options_of(item, call_options))
    request.waiter = _ScopeWaiter(scope)
    try:
        with scope:
            await client_leaving(receive)
    except BaseException:
        intake.abandon(request)
        raise
    finally:
        intake.former.overdue.forget(request)
    if request.state is State.FINISHED:
        return request.value
    if request.error is None:
        intake.abandon(request)
        raise ClientLeft("the client left before its call was answered")
    try:
        raise request.error
    finally:  # the error's traceback refers to this frame; this breaks the cycle
        request.error = None


async def call_of_parts(
    receive: Receive, entry: Entry, item: Any, call_options: CallOptions
) -> Any:
    """Does the same for an item that may have to be divided, and so has no single request.

    Raises:
        ClientLeft: The client disconnected.
        Exception: As for any call.
    """
    call = entry.begin_item(item, call_options)
    result: Any = None

    async def run() -> None:
        nonlocal result
        result = await call

    await run_unless_client_leaves(receive, run)
    return result


async def run_unless_client_leaves(receive: Receive, run: Callable[[], Awaitable[None]]) -> None:
    """Runs a function, and cancels it if the client disconnects first.

    Args:
        receive: The ASGI callable; the request's body has been read from it.
        run: The function.

    Raises:
        ClientLeft: The client disconnected, and `run` was cancelled.
        Exception: What `run` raised, not in a group.
    """
    ended = False
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when_client_leaves, receive, tasks.cancel_scope)
        try:
            await run()
            ended = True
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:  # as above
            failure = None
    if not ended:
        raise ClientLeft("the client left before its stream had ended")


async def client_leaving(receive: Receive) -> None:
    """Waits until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel_when_client_leaves(receive: Receive, scope: anyio.CancelScope) -> None:
    await client_leaving(receive)
    scope.cancel()
