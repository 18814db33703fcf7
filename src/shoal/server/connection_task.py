"""The task of a connection, in which the application is called."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from shoal.failures.exceptions import goes_on

if TYPE_CHECKING:
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
