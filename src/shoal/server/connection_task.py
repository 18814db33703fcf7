"""The task of a connection, in which the application is called."""

from __future__ import annotations

import logging
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, Protocol

from shoal.failures.exceptions import goes_on

if TYPE_CHECKING:
    from shoal.loops.parking import Parking
    from shoal.server.shared import Shared

_log = logging.getLogger("shoal.server")

_LEFT_OPEN: Final = "the application has left a cancel scope open"


class ServedConnection(Protocol):
    """What the task serves."""

    shared: Shared

    async def run(self) -> bool:
        """Serves the client, or some of its requests.

        Returns:
            Whether the task is as it was before. If the application has changed it, another one
            must go on.
        """
        ...

    def ended(self, *, is_reusable: bool) -> None:
        """Handles that the task has ended; with False, another one must go on."""
        ...


class TaskState:
    """What the application can change of the task that it is called in, as it was at the start.

    Args:
        parking: The event loop's way to wait.
    """

    __slots__ = ("_context", "_innermost_scope", "_scope")

    def __init__(self, parking: Parking) -> None:
        self._innermost_scope = parking.innermost_scope()
        self._context, self._scope = copy_context(), self._innermost_scope()

    def is_unchanged(self) -> bool:
        """Returns whether the next request may be answered in this task."""
        try:
            return copy_context() == self._context and self._innermost_scope() is self._scope
        except Exception:  # a value of a variable can't be compared with another
            return False


async def run_contained(connection: ServedConnection) -> None:
    """Serves a connection, as a task.

    Whatever the application raises, whatever cancels its call, and whatever scope it leaves open
    ends no other connection, but for what ends the program or the server.
    """
    parking = connection.shared.parking
    failure: BaseException | None = None
    is_reusable = True
    scope = parking.new_scope()
    try:
        with scope:
            try:
                is_reusable = await connection.run()
            except BaseException as error:
                failure = error
                raise
            finally:
                if parking.leave_scopes_in(scope):
                    _log.warning(_LEFT_OPEN)
    except BaseException as error:
        if failure is None:
            _log.warning(_LEFT_OPEN, exc_info=error)
        elif goes_on(failure, parking):
            raise failure from failure.__cause__
        else:  # such as a cancellation that nobody has requested
            _log.error("the application has ended a connection", exc_info=failure)
    finally:
        del failure  # its traceback holds this frame
        connection.ended(is_reusable=is_reusable)
