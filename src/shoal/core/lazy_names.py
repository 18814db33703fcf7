"""Lazy imports: a package's modules are loaded when one of their names is first used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(
    package: str, where: Mapping[str, str], extra: str = "serve"
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the ``__getattr__`` and the ``__dir__`` of a package with lazy names.

    Args:
        package: The package's name.
        where: The module that defines each name.
        extra: The extra that has what they need.
    """
    namespace = vars(sys.modules[package])

    def load(name: str) -> Any:
        """Loads a public name when it is first used."""
        module = where.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            found = namespace[name] = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "shoal":
                raise
            raise ImportError(
                f"{package}.{name} needs {error.name!r}: pip install 'shoal[{extra}]'",
                name=error.name,
            ) from error
        return found

    return load, lambda: sorted({*namespace, *where})
