"""The controller that the calling code runs in."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

running_controller: Final[ContextVar[Any]] = ContextVar("shoal.running_controller")
"""The controller to which the running code belongs."""
