"""Determines whether served code gets lists or one item at a time.

1. A mark (`shoal.accept_batch`), or a declaration to take open batches, decides.
2. Code whose parameters are all annotated as lists gets lists.
3. Code whose parameters are annotated as something else gets one item at a time. A mixture is
   refused: it may be a handler of lists with a flag, or code of one item that contains a list.
4. Code without annotations gets one item at a time, as in Ray Serve. If batch options were given
   for it, it is refused, since the intention is unclear.

Functions passed to `shoal.batch` and `shoal.Batcher` need no rule: they always get lists.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.handlers.annotations import read_signature
from shoal.batching.handlers.binding import annotations_of
from shoal.batching.handlers.list_types import Holds, held_by

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature

MARK: Final = "__shoal_accept_batch__"
"""The attribute that marks whether code takes lists."""


def takes_lists(function: Callable[..., Any]) -> bool:
    """Returns whether a function takes lists, by its mark or by its annotations."""
    marked: Any = function
    while isinstance(marked, functools.partial):
        marked = marked.func
    mark = getattr(marked, MARK, getattr(type(marked).__call__, MARK, None))
    if mark is not None:
        return bool(mark)
    held = [held_by(annotation) for annotation in annotations_of(function)]
    if Holds.LIST not in held:
        return False
    if {*held} == {Holds.LIST}:
        return True
    raise TypeError(
        f"it is unclear whether {function!r} takes lists or one item at a time: some of its "
        f"parameters are annotated as lists and others are not, in {read_signature(function)}. "
        "Annotate all of them as lists, or set what is the same for all calls with "
        "functools.partial; if it takes one item at a time, mark it with "
        "@shoal.accept_batch(False)"
    )


def described(signature: Signature, size: int, *, batched: bool, fill: str = "closed") -> str:
    """Describes the arguments of user code, for messages."""
    parameters = list(signature.parameters.values())
    if len(parameters) == 1:
        annotation = parameters[0].annotation
        item = "item" if annotation is inspect.Parameter.empty else _named(annotation)
    else:
        item = f"({', '.join(str(parameter) for parameter in parameters)})"
    if fill != "closed":
        return f"open batches of up to {size} {_plural(item)}"
    if batched:
        return f"lists of up to {size} {_plural(item)}"
    return f"one {item} at a time"


def _named(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _plural(item: str) -> str:
    return "items" if item == "item" else item
