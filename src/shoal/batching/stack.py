"""The stack of a suspended coroutine, as text."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.handlers.own_context import in_own_context

if TYPE_CHECKING:
    from types import CodeType, FrameType

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
