"""Finds the user's own frames in tracebacks."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from types import TracebackType

_OWN: Final = f"{Path(__file__).parents[2]}{os.sep}"
# They call the user's code, or are between Shoal's frames.
_CALLERS: Final = frozenset(
    {
        *("anyio", "asyncio", "concurrent", "contextlib", "importlib", "_frozen_importlib"),
        *("outcome", "threading", "trio"),
    }
)


def users_part(whole: TracebackType | None) -> TracebackType | None:
    """Returns a traceback from the first frame of the user's code on; None without such frames."""
    while whole is not None:
        frame = whole.tb_frame
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if not (frame.f_code.co_filename.startswith(_OWN) or package in _CALLERS):
            return whole
        whole = whole.tb_next
    return None


def failure_text(error: BaseException) -> str:
    """Returns an exception as text: the user's frames, the exception, and its notes."""
    error = alone(error)
    part = users_part(error.__traceback__)
    lines = "".join(traceback.format_exception(type(error), error, part)).splitlines()
    # The line of the exception is left out where the last note quotes it. The notes of a group come
    # last.
    last = lines[-1]
    quoted = {line for line in lines[:-1] if line and last.endswith(f": {line}")}
    if _members(error):
        lines.append(getattr(error, "__notes__", [in_one_line(error)])[-1])
    return "\n".join(line for line in lines if line not in quoted)


def alone(error: BaseException) -> BaseException:
    """Returns the exception in a group of one, as a task group raises it; others unchanged."""
    members = _members(error)
    return alone(members[0]) if len(members) == 1 else error


def _members(error: object) -> tuple[BaseException, ...]:
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).exceptions
    return ()


def in_one_line(error: BaseException) -> str:
    """Returns the class and the message of an exception."""
    return " ".join("".join(traceback.format_exception_only(type(error), error)[:1]).split())
