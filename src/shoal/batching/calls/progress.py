"""Shows how far a `map` has come: by a bar, by lines in a log, or by a function of the user."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shoal.core.extras import is_installed

if TYPE_CHECKING:
    from collections.abc import Callable

    Progress: TypeAlias = "bool | Callable[[int, int | None], object]"
    """True for a bar or lines on stderr; or a function of the number done and the total."""

_BETWEEN_LINES_S: Final = 10.0


def checked_progress(value: Any) -> Progress:
    if not isinstance(value, bool) and not callable(value):
        raise TypeError(
            "progress must be True, or a function of the number of items that are done and of all "
            f"of them (None if that is not known), not {value!r:.80}"
        )
    progress: Progress = value
    return progress


def reporter(progress: Progress, total: int | None, name: str) -> Callable[[int, bool], object]:
    """Returns the function to call with the number of items done, and whether it is the last."""
    if progress is False:
        return lambda _, __: None
    if progress is not True:
        return lambda done, _: progress(done, total)
    if sys.stderr.isatty() and is_installed("tqdm"):
        return _bar(total, name)
    return _lines(total, name)


def _bar(total: int | None, name: str) -> Callable[[int, bool], None]:
    make: Any = import_module("tqdm").tqdm  # an extra
    bar = make(total=total, desc=name, unit=" items", dynamic_ncols=True)

    def report(done: int, is_last: bool) -> None:
        bar.update(done - bar.n)
        if is_last:
            bar.close()

    return report


def _lines(total: int | None, name: str) -> Callable[[int, bool], None]:
    began_at = shown_at = time.monotonic()

    def report(done: int, is_last: bool) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if is_last or now >= shown_at + _BETWEEN_LINES_S:
            shown_at = now
            sys.stderr.write(f"{progress_line(name, done, total, now - began_at)}\n")

    return report


def progress_line(name: str, done: int, total: int | None, took_s: float) -> str:
    rate = done / took_s if took_s > 0 else 0.0
    if total is None:
        return f"{name}: {done:,} items, {rate:,.0f} a second"
    share = done / total if total else 1.0
    left_s = (total - done) / rate if rate else 0.0
    return (
        f"{name}: {done:,} of {total:,} items ({share:.0%}), {rate:,.0f} a second, "
        f"{left_s:,.0f} s left"
    )
