"""Values as JSON, for the clients of a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def json_bytes(value: Any, plain: Callable[[Any], Any]) -> bytes:
    """Writes a value as JSON; `plain` converts objects that JSON can't represent."""
    # A value that JSON can't represent raises a TypeError or a ValueError.
    try:
        text = json.dumps(
            value, default=plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
        return text.encode()
    except RecursionError:
        raise ValueError("this can't be sent as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"this can't be sent as JSON: {error}") from None


def check_keys(what: str, value: Any) -> None:
    """Checks that the keys of dicts are text, since JSON silently turns other keys into text."""
    try:
        for key in _keys(value):
            if not isinstance(key, str):
                raise TypeError(
                    f"{what} can't be sent as JSON: the key {key!r} of a dict would arrive as "
                    "text; write text for keys"
                )
    except RecursionError:
        raise ValueError(
            f"{what} can't be sent as JSON: it is nested too deeply, or contains itself"
        ) from None


def _keys(value: Any) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from cast("Mapping[object, Any]", value)
        value = cast("Mapping[object, Any]", value).values()
    elif not isinstance(value, (list, tuple)):
        return
    for one in cast("Iterable[Any]", value):
        if isinstance(one, (Mapping, list, tuple)):
            yield from _keys(one)
