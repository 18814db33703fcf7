"""Imports the object that ``my_module:function`` names on a command line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any, Final

from shoal.planning.mistake import CommandError

_IMPORTERS: Final = frozenset({"shoal", "importlib", "_frozen_importlib"})


def named(spec: str) -> Any:
    """Imports a module and returns one of its attributes.

    Modules in the current directory can be imported, as with ``python -m``.

    Args:
        spec: A module's dotted name, a colon, and an attribute's name, which may be dotted as well.

    Raises:
        CommandError: The name is malformed, the module or attribute does not exist, or the import
            failed; the traceback of a failed import has been printed.
    """
    module_name, colon, attribute = spec.partition(":")
    if not colon or not all(
        part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]
    ):
        raise CommandError(f"{spec!r} is not MODULE:FUNCTION; write it like my_module:embed")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        absent = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if absent is not None and f"{module_name}.".startswith(f"{absent}."):
            raise CommandError(f"no module {absent!r} in {os.getcwd()} or installed") from None
        show_failed_import(error)
        raise CommandError(f"importing {spec} failed, see above", 1) from None
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise CommandError(f"{module_name} has no attribute {attribute!r}") from None
    return found


def show_failed_import(error: Exception) -> None:
    """Prints the traceback of a failed import, from the first frame of the imported code.

    The frames before it belong to the import machinery, twenty lines that are always the same. An
    error that occurred before any code ran, such as a `SyntaxError`, has no frames to print.
    """
    shown = error.__traceback__
    while shown is not None and _package(shown.tb_frame.f_globals) in _IMPORTERS:
        shown = shown.tb_next
    traceback.print_exception(error.with_traceback(shown))


def _package(module: dict[str, Any]) -> str:
    return str(module.get("__name__", "")).partition(".")[0]
