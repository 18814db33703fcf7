"""Keeps Shoal's log on while user code runs that configures logging."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def loggers_kept_on() -> Generator[None]:
    # `logging.config.dictConfig` and ``fileConfig`` disable each existing logger that they do not
    # name, by default. A module of the user does not mean Shoal's.
    on = [logger for logger in _own_loggers() if not logger.disabled]
    try:
        yield
    finally:
        for logger in on:
            logger.disabled = False


def _own_loggers() -> list[logging.Logger]:
    loggers = logging.getLogger().manager.loggerDict
    return [
        logger
        for name, logger in [*loggers.items()]
        if isinstance(logger, logging.Logger) and f"{name}.".startswith("shoal.")
    ]
