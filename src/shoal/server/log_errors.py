"""Logs errors and stops them from propagating."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
