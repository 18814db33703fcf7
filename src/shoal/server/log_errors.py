"""Logs errors and stops them from propagating."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


_log = logging.getLogger("shoal.server")


def log_failure(error: BaseException, message: str, *args: object, has_left: bool = False) -> None:
    """Logs an error; in one line if the client had disconnected before."""
    # Middleware such as Starlette's raises if an application does not answer, but an application
    # need not answer a client that has disconnected.
    if has_left:
        name = type(error).__name__
        _log.info(f"{message} after its client left: %s", *args, name)
    else:
        _log.error(message, *args, exc_info=error)


@contextmanager
def contained(message: str, *args: object, has_left: Callable[[], bool] = bool) -> Generator[None]:
    """Logs an `Exception` and suppresses it; a `BaseException` propagates."""
    try:
        yield
    except Exception as error:
        log_failure(error, message, *args, has_left=has_left())
    except BaseExceptionGroup as group:
        failures, passing = group.split(Exception)
        if failures is not None:
            log_failure(failures, message, *args, has_left=has_left())
        if passing is not None:
            raise passing from None


_MOST_LINES: Final = 10
_IN_S: Final = 60.0


class ClientFaults:
    """Logs the errors that end connections, at most ten a minute."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began_at = now()
        self._lines = 0
        self._left_out = 0

    @contextmanager
    def contained(self, client: str) -> Generator[None]:
        """Logs an `Exception` and suppresses it; a `BaseException` propagates."""
        try:
            yield
        except Exception as error:
            self._note(client, error)
        except BaseExceptionGroup as group:
            failures, passing = group.split(Exception)
            if failures is not None:
                self._note(client, failures)
            if passing is not None:
                raise passing from None

    def _note(self, client: str, error: BaseException) -> None:
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
    """Returns the names of the classes of an error, or of the errors in a group."""
    if isinstance(error, BaseExceptionGroup):
        inner: list[Any] = list(error.exceptions)  # pyright: ignore[reportUnknownMemberType,reportUnknownArgumentType]
        return ", ".join(dict.fromkeys(map(kinds, inner)))
    return type(error).__name__
