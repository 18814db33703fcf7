"""The packages that only extras install: the one way to ask for them, which names the extra."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator


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
