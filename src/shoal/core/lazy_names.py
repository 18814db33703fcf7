"""Lazy imports: a package's modules are loaded when one of their names is first used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.core.extras import needing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(
    package: str, where: Mapping[str, str], extra: str = "serve"
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` of a package that imports names on first use."""
    namespace = vars(sys.modules[package])

    def load(name: str) -> Any:
        module = where.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needing(f"{package}.{name}", extra):
            found = namespace[name] = getattr(import_module(module), name)
        return found

    return load, lambda: sorted({*namespace, *where})
