"""Logs errors and stops them from propagating."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager


_log = logging.getLogger("shoal.server")

_MOST_LINES: Final = 10
_IN_S: Final = 60.0


def log_error(error: BaseException, message: str) -> None:
    _log.error(message, exc_info=error)


@contextmanager
def contained(
    what: Any, log: Callable[[BaseException, Any], object] = log_error
) -> Generator[None]:
    """Logs an `Exception` and suppresses it; a `BaseException` propagates."""
    try:
        yield
    except Exception as error:
        log(error, what)
    except BaseExceptionGroup as group:
        failures, passing = group.split(Exception)
        if failures is not None:
            log(failures, what)
        if passing is not None:
            raise passing from None


class ClientFaults:
    """Logs the errors that end connections, at most ten a minute."""

    # A request may hold secrets, and a client could fill the log. Therefore a line names only the
    # client and the class of the error. The traceback is logged at level DEBUG.

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began_at = now()
        self._lines = 0
        self._left_out = 0

    def contained(self, client: str) -> AbstractContextManager[None]:
        """Logs an `Exception` and suppresses it; a `BaseException` propagates."""
        return contained(client, self._note)

    def _note(self, error: BaseException, client: str) -> None:
        _log.debug("the connection from %s failed", client, exc_info=error)
        now = self._now()
        if now >= self._began_at + _IN_S:
            if self._left_out:
                _log.warning("%d more connections ended by errors", self._left_out)
            self._began_at, self._lines, self._left_out = now, 0, 0
        if self._lines < _MOST_LINES:
            self._lines += 1
            _log.warning("an error ended the connection from %s: %s", client, kinds(error))
        else:
            self._left_out += 1


def kinds(error: Any) -> str:
    if isinstance(error, BaseExceptionGroup):
        inner: list[Any] = list(error.exceptions)  # pyright: ignore[reportUnknownMemberType,reportUnknownArgumentType]
        return ", ".join(dict.fromkeys(map(kinds, inner)))
    return type(error).__name__
