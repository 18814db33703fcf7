"""Objects that have a length but do not hold one result for each item of a batch.

A table has as many elements as columns, a named tuple as many as fields, a text as many as
characters. If that number happens to be the batch's, each caller would get a piece of another kind
of thing. So they are refused, with the way to make a list of them. Libraries of tables are
recognised by what their classes have, since importing them takes a second.
"""

from __future__ import annotations

from collections import UserString
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

from shoal.errors import WrongResultType

_TEXTS: Final = (str, bytes, bytearray, memoryview, UserString)


def check_results(name: str, items: int, results: Any, *, is_step: bool = False) -> None:
    """Raises `WrongResultType` if a handler's return value, or step, does not hold results."""
    if results.__class__ is list or results.__class__ is tuple:
        return
    advice = advice_on(results)
    if advice is not None:
        raise not_results(name, items, results, advice, is_step=is_step)


def not_results(
    name: str, items: int, results: Any, advice: str = "", *, is_step: bool = False
) -> WrongResultType:
    wanted = f"yield a list of {items} slots" if is_step else f"give back a list of {items} results"
    return WrongResultType(
        f"the handler {name} was given {items} items and must {wanted}, "
        f"not {type(results).__name__}{advice and '; '}{advice}"
    )


def advice_on(results: Any) -> str | None:
    """Returns how to make a list of an object that does not hold results; None for others."""
    kind = cast("Any", type(results))
    if results is None:
        return ""
    if isinstance(results, _TEXTS):
        return "put it into a list: its elements are its characters or bytes"
    if isinstance(results, Mapping):
        return (
            "a mapping has keys, not rows: use [results[item] for item in items], or for columns "
            "[dict(zip(results, row)) for row in zip(*results.values())]"
        )
    if isinstance(results, AbstractSet):
        return "a set has no order: use a list in the order of the items"
    if isinstance(results, Iterator):
        return "use list(...) of it"
    if isinstance(results, tuple):
        if hasattr(kind, "_fields") or hasattr(kind, "n_sequence_fields"):
            return "a named tuple has fields, not rows: use one of them, or list(zip(*results))"
        return None
    if _is_table(kind):
        return f"a table has columns: use `{_rows_of(kind)}` or a list of rows"
    return None


def _is_table(kind: Any) -> bool:
    if hasattr(kind, "__dataframe__"):
        return True
    if hasattr(kind, "columns"):
        return any(hasattr(kind, name) for name in ("to_dict", "to_dicts", "to_pydict"))
    return hasattr(kind, "column_names") and hasattr(kind, "to_pylist")  # of Arrow


def _rows_of(kind: Any) -> str:
    for name in ("to_dicts", "to_pylist"):  # of Polars, and of Arrow
        if hasattr(kind, name):
            return f".{name}()"
    return ".to_dict('records')"
