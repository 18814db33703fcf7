"""The methods of a backend's code that Shoal calls by itself."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.failures.held import held

if TYPE_CHECKING:
    from collections.abc import Callable

HOOKS: Final = ("reconfigure", "health", "warm_up", "close")
"""Their names."""

RAYS: Final = {"health": "check_health"}
"""What Ray Serve calls them, where that is something else; it will do as well."""

NOT_FOR_CALLERS: Final = frozenset({*HOOKS, *RAYS.values()})
"""What no call can name, by whatever way it comes."""


@held
def is_async(function: Callable[..., Any]) -> bool:
    """Says whether a hook is to be awaited."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
