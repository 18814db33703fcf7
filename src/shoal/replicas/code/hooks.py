"""Hooks: the methods of a backend's code that Shoal itself calls."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.failures.held import held

if TYPE_CHECKING:
    from collections.abc import Callable

HOOKS: Final = ("reconfigure", "health", "warm_up", "close")
"""The names of the hooks."""

RAYS: Final = {"health": "check_health"}
"""Ray Serve's names of hooks, where they differ; they work as well."""

NOT_FOR_CALLERS: Final = frozenset({*HOOKS, *RAYS.values()})
"""The methods that callers can't call."""


@held
def is_async(function: Callable[..., Any]) -> bool:
    """Returns whether a hook must be awaited."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
