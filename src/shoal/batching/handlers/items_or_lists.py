"""The one rule by which code that is served gets lists, or one item at a time.

1. What is marked (`shoal.accept_batch`), or declared to take open batches, gets what that says.
2. Code whose parameters are all annotated as lists gets lists.
3. Code whose parameters are annotated as something else gets one item at a time. A mixture is
   refused: it may be a handler of lists with a flag, or code of one item that holds a list.
4. Code without annotations gets one item at a time, as in Ray Serve; where options of batches were
   given for it that is refused, since it is unclear what was meant.

The code that `shoal.batch` and `shoal.Batcher` are given needs no rule: it is written for them, and
gets lists.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.handlers.binding import annotations_of
from shoal.batching.handlers.list_types import Holds, held_by

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature

MARK: Final = "__shoal_accept_batch__"
"""The attribute by which code says what it takes."""


def takes_lists(function: Callable[..., Any]) -> bool:
    """Says whether a function takes lists: by its mark, or by its annotations.

    Raises:
        TypeError: Some of its parameters are annotated as lists, and others are not.
    """
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
        f"parameters are annotated as lists and others are not, in {inspect.signature(function)}. "
        "Annotate all of them as lists, or fill in what is the same for all calls by "
        "functools.partial; if it takes one item at a time, mark it with "
        "@shoal.accept_batch(False)"
    )


def described(signature: Signature, size: int, *, batched: bool, fill: str = "closed") -> str:
    """Says in words what code is given.

    Args:
        signature: That of a call of one item.
        size: ``max_batch_size``.
        batched: Whether it takes lists.
        fill: When its batches are complete.
    """
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
