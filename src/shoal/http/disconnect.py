"""Calls that end when their client leaves.

No ASGI server cancels an application whose client is gone; it only says so to whoever asks
``receive``. So while a call is under way a task beside it asks, and the answer cancels the call: a
request in line is dropped before the handler sees it, one in the handler loses its result, a stream
gives its slot back. The watcher has ended before anything is sent that completes the answer, since
servers free a connection in the task that completes it, and must not be cancelled there.

A client that closes its sending half only (``shutdown(SHUT_WR)``) counts as gone: servers can't tell
the two apart without writing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from shoal.http.asgi import ClientLeft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive

T = TypeVar("T")


async def unless_client_leaves(receive: Receive, call: Callable[[], Awaitable[T]]) -> T:
    """Makes a call while watching for the client to leave; the request's body has been read.

    Returns:
        What the call returned, if it came to its end, whether or not the client left meanwhile.

    Raises:
        ClientLeft: The client left; the call was cancelled.
        Exception: What the call raised, as it was raised.
    """
    outcome: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when_client_leaves, receive, tasks.cancel_scope)
        try:
            outcome.append(await call())
        except Exception as error:  # noqa: BLE001 - raised below, outside the group's wrapping
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:  # its traceback holds this frame
            failure = None
    if not outcome:
        raise ClientLeft("the client left before its call was answered")
    return outcome[0]


async def _cancel_when_client_leaves(receive: Receive, scope: anyio.CancelScope) -> None:
    message: Any = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
    scope.cancel()
