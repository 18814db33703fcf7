"""Packages that only extras install, and names that a package imports when they are first used."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence


def is_installed(module: str) -> bool:
    """Returns whether a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # not even the package that it is in
        return False


def need(feature: str, module: str, extra: str) -> None:
    """Raises a `ModuleNotFoundError` that names the extra if a module is not installed."""
    if not is_installed(module):
        raise _missing(feature, module, extra)


@contextmanager
def needing(feature: str, extra: str) -> Generator[None]:
    """Names the extra in the `ModuleNotFoundError` of this block."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        # A missing module of our own is a mistake of ours; an inner block has named its extra.
        if package in ("", "shoal") or _INSTALL in str(error):
            raise
        raise _missing(feature, package, extra) from error


def advice(extra: str) -> str:
    return f"{_INSTALL} 'shoal[{extra}]'"


def _missing(feature: str, module: str, extra: str) -> ModuleNotFoundError:
    text = f"{feature} needs {module}, which is not installed: {advice(extra)}"
    return ModuleNotFoundError(text, name=module)


_INSTALL: Final = "pip install"


def lazy_names(
    package: str, where: Mapping[str, Sequence[str]], extra: str = "serve"
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` of a package that imports names on first use."""
    # `where` has the names by their modules; those of `package` itself are its submodules.
    namespace = vars(sys.modules[package])
    modules = {name: module for module, names in where.items() for name in names}

    def load(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needing(f"{package}.{name}", extra):
            found: Any
            if module == package:
                found = import_module(f"{package}.{name}")
            else:
                found = getattr(import_module(module), name)
        namespace[name] = found
        return found

    return load, lambda: sorted({*namespace, *modules})
