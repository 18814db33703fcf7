"""Async user code in a context of its own: a log line if it holds up the event loop, and its stack.

A worker slot runs one batch after the other in one task. Without this, a context variable that a
handler sets would stay set for the next batch, which has other callers. A task for each batch would
cost more than the rest of the slot's work.
"""

from __future__ import annotations

import logging
import math
import traceback
from contextvars import copy_context
from time import perf_counter
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from types import CodeType, FrameType


T = TypeVar("T")

logger: Final = logging.getLogger("shoal")

HELD_LONG_S: Final = 1.0
"""From how long a hold of the event loop on is logged, in seconds."""

LOGGED_EACH_S: Final = 60.0
"""The shortest time between two such log lines about the same code, in seconds."""


class HoldLog:
    """Logs that some code held up its event loop, at most once a minute."""

    # The time is measured when the code returns control, so nothing wakes up while no code runs.

    def __init__(
        self, code: str, advice: str = "declare it with def, or await the slow part"
    ) -> None:
        self._code = code
        self._advice = advice
        self._logged_at = -math.inf

    def held(self, since: float, until: float) -> None:
        """The times are of `perf_counter`, in seconds."""
        if until - self._logged_at < LOGGED_EACH_S:
            return
        self._logged_at = until
        logger.warning(
            "%s held the event loop for %.1f s; %s: await anyio.to_thread.run_sync(function)",
            self._code,
            until - since,
            self._advice,
        )


class HoldLogs(dict[str, HoldLog]):
    """The `HoldLog` of each code, by its description; made on first use."""

    def __missing__(self, code: str) -> HoldLog:
        self[code] = log = HoldLog(code)
        return log


@coroutine
def in_own_context(user_code: Coroutine[Any, Any, T], log: HoldLog) -> Generator[Any, Any, T]:
    """Awaits a coroutine in a copy of the current context, in the same task."""
    run, send = copy_context().run, user_code.send
    resume: Callable[[Any], Any] = send
    value: Any = None
    while True:
        since = perf_counter()
        try:
            awaited = run(resume, value)
        except BaseException as end:
            value = None  # the traceback of an error would hold this frame
            if (until := perf_counter()) - since > HELD_LONG_S:
                log.held(since, until)
            if isinstance(end, StopIteration):
                result: T = end.value
                return result
            raise
        value = None
        if (until := perf_counter()) - since > HELD_LONG_S:
            log.held(since, until)
        try:
            value = yield awaited
            resume = send
        except BaseException as error:
            value, resume = error, user_code.throw


_OWN_CONTEXT: Final[CodeType] = in_own_context.__code__


def stack_of(coroutine: object) -> str:
    """Formats the frames of a suspended coroutine like a traceback, outermost first."""
    frames: list[tuple[FrameType, int]] = []
    awaited: Any = coroutine
    while awaited is not None:
        frame = _attribute(awaited, "frame")
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        if frame is not None and frame.f_code is _OWN_CONTEXT:
            awaited = frame.f_locals["user_code"]
        else:
            awaited = _attribute(awaited, "await") or _attribute(awaited, "yieldfrom")
    return "".join(traceback.StackSummary.extract(iter(frames)).format())


def _attribute(awaited: Any, name: str) -> Any:
    """Reads an attribute with a prefix that depends on the kind of coroutine or generator."""
    for prefix in ("cr_", "gi_", "ag_"):
        value = getattr(awaited, prefix + name, None)
        if value is not None:
            return value
    return None
