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
    shared: Shared

    async def run(self) -> bool:
        """Serves some requests; returns False if another task must continue."""
        ...

    def ended(self, *, is_reusable: bool) -> None:
        """Handles the end of the task; with False, another task must continue."""
        ...


class TaskState:
    """The state of a task that the application it calls can change."""

    __slots__ = ("_context", "_innermost_scope", "_scope")

    def __init__(self, parking: Parking) -> None:
        self._innermost_scope = parking.innermost_scope()
        self._context, self._scope = copy_context(), self._innermost_scope()

    def is_unchanged(self) -> bool:
        try:
            return copy_context() == self._context and self._innermost_scope() is self._scope
        except Exception:  # two values of a context variable can't be compared
            return False


async def run_contained(connection: ServedConnection) -> None:
    # An error of the application, a cancellation of its call, or a scope that it leaves open ends
    # no other connection. Errors that end the program or the server propagate.
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
        else:  # for example a cancellation that nobody has requested
            _log.error("the application has ended a connection", exc_info=failure)
    finally:
        del failure  # its traceback holds this frame
        connection.ended(is_reusable=is_reusable)
