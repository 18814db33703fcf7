"""The methods of a backend's code that Shoal calls by itself."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

HOOKS: Final = ("reconfigure", "health", "warm_up", "close")
"""Their names; callers can't call them."""


def is_async(function: Callable[..., Any]) -> bool:
    """Says whether a hook is to be awaited."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
