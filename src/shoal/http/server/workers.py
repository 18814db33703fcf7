"""The tasks that call the application, for all connections of an address.

A call that ends without waiting, since its body is there and the kernel takes the answer at once,
needs no task of its own: one task makes many such calls one after the other. A task for each
connection would cost a switch of tasks for each of them.

Before a worker awaits a call while more are ready, it wakes another worker. If the call waits, that
one goes on in the next pass of the event loop, and from then on each call that is ready gets a
worker at once, until a call ends without waiting. If many calls do not wait, it hands over to that
one after some of them, so that a client that pipelines requests does not hold the event loop.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import anyio.lowlevel

from shoal.batching.failures.exceptions import goes_on
from shoal.http.server.log_errors import log_failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextvars import Context

    from anyio.abc import TaskGroup

    from shoal.batching.loops.parking import Parking

_log = logging.getLogger("shoal.server")

_LEFT_OPEN: Final = "the application has left a cancel scope open"
_MOST_IDLE: Final = 64
_CALLS_WITHOUT_CHECKPOINT: Final = 64


class Served(Protocol):
    """How many calls of an address's application have begun and ended."""

    started: int
    finished: int


class CallToMake(Protocol):
    """What a worker needs of a call.

    Attributes:
        was_left: Whether the client left before the end of the answer.
    """

    was_left: bool

    @property
    def raw_path(self) -> bytes:
        """The path of the request, as sent."""
        ...

    def begin(self) -> Awaitable[None]:
        """Calls the application; returns what must be awaited."""
        ...

    def end(self) -> None:
        """Handles that the application has returned."""
        ...

    def abort(self) -> None:
        """Closes the connection by force."""
        ...


class _Surroundings(NamedTuple):
    """What a worker has begun in, and must still be in after each call."""

    context: Context
    innermost_scope: Callable[[], object]
    outermost: object


class Workers:
    """Calls the application, in tasks that are parked while there is nothing to do.

    A worker that the application has changed ends after that call: one that has context variables
    which the next call must not see, or is in a cancel scope that the application has not left.
    Whatever the application raises, and whatever cancels its call, ends no other call, but for what
    ends the program or the server.

    Args:
        served: The counts of the address.
        parking: The event loop's way to wait.
        tasks: The tasks of the connections.
    """

    def __init__(self, served: Served, parking: Parking, tasks: TaskGroup) -> None:
        self._served = served
        self._parking = parking
        self._tasks = tasks
        self._context = copy_context()  # what each worker starts with
        self._ready: deque[CallToMake] = deque()
        self._idle: list[Any] = []  # the waiters of the parked workers
        self._coming = 0  # workers that were woken, and have not run since
        # The call that was begun last, until it ends.
        self._current: CallToMake | None = None
        # Whether the last call did not wait, so that one worker is enough.
        self._is_one_enough = True
        self._is_closed = False

    def start(self, call: CallToMake) -> None:
        """Calls the application soon."""
        if self._is_closed:
            return
        self._ready.append(call)
        if not self._coming or not (self._is_one_enough or self._coming >= len(self._ready)):
            self._wake_one()

    def close(self) -> None:
        """Ends the workers, those that are in a call after it."""
        self._is_closed = True
        while self._idle:
            self._wake_one()

    def _wake_one(self) -> None:
        self._coming += 1
        if self._idle:
            self._parking.wake(self._idle.pop())
        else:
            # Not in the context of the application, which may have called this.
            with suppress(RuntimeError):  # the server was cancelled, and its tasks have ended
                self._context.run(self._tasks.start_soon, self._work)

    async def _work(self) -> None:
        """Makes calls, as a task; see `Workers` for when it ends."""
        failure: BaseException | None = None
        scope = self._parking.new_scope()
        try:
            with scope:
                try:
                    await self._make_calls()
                except BaseException as error:
                    failure = error
                    raise
                finally:
                    if self._parking.leave_scopes_in(scope):
                        _log.warning(_LEFT_OPEN)
        except BaseException as error:
            if failure is None:
                _log.warning(_LEFT_OPEN, exc_info=error)
            elif goes_on(failure, self._parking):
                raise failure from failure.__cause__
            else:  # such as a cancellation that nobody has requested
                _log.error("the application has ended a task", exc_info=failure)
        finally:
            del failure  # its traceback holds this frame
        if self._ready and not self._coming:
            self._wake_one()

    async def _make_calls(self) -> None:
        """Makes calls, and waits for others, until it has been changed or is not needed."""
        innermost_scope = self._parking.innermost_scope()
        begun_in = _Surroundings(copy_context(), innermost_scope, innermost_scope())
        while True:
            self._coming -= 1
            if self._current is not None:  # it waits, or this worker would not run
                self._current = None
                self._is_one_enough = False
                for _ in range(len(self._ready) - self._coming - 1):
                    self._wake_one()
            # In a coroutine of its own, so that nothing refers to a request while this one waits.
            if not await self._make_ready_calls(begun_in):
                return
            if self._is_closed or len(self._idle) >= _MOST_IDLE:
                return
            waiter: Any = self._parking.new_waiter()
            self._idle.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in self._idle:
                    self._idle.remove(waiter)
                else:
                    self._coming -= 1
                raise

    async def _make_ready_calls(self, begun_in: _Surroundings) -> bool:
        """Makes the calls that are ready; returns whether the worker is as it was before."""
        served = self._served
        ready = self._ready
        context, innermost_scope, outermost = begun_in
        while ready:
            for _ in range(_CALLS_WITHOUT_CHECKPOINT):
                call = ready.popleft()
                left = len(ready)
                served.started += 1
                try:
                    rest = call.begin()
                    if ready and not self._coming:
                        self._wake_one()
                    self._current = call
                    await rest
                except Exception as error:
                    # The raw path is printable ASCII, so it can't forge a line of the log.
                    path, has_left = call.raw_path, call.was_left
                    log_failure(error, "the application failed on %r", path, has_left=has_left)
                except BaseException:
                    call.abort()
                    raise
                finally:
                    if self._current is call:  # it has not waited
                        self._current = None
                        if not self._is_one_enough and len(ready) == left:  # it has begun none
                            self._is_one_enough = True
                    served.finished += 1
                    call.end()
                try:
                    if copy_context() != context or innermost_scope() is not outermost:
                        return False
                except Exception:  # a value of a variable can't be compared with another
                    return False
                if not ready:
                    return True
            if self._coming:  # or each pass of the event loop would have one worker more
                return True
            await anyio.lowlevel.checkpoint()
        return True
