"""Logs errors and stops them from propagating."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

_log = logging.getLogger("shoal.server")


@contextmanager
def contained(message: str, *args: object) -> Generator[None]:
    """Logs an `Exception` with this message and suppresses it; a `BaseException` propagates."""
    try:
        yield
    except Exception as error:
        _log.error(message, *args, exc_info=error)
    except BaseExceptionGroup as group:
        failures, passing = group.split(Exception)
        if failures is not None:
            _log.error(message, *args, exc_info=failures)
        if passing is not None:
            raise passing from None
