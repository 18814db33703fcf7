"""Loads the application that a command line names: ``my_module:app`` or ``app.toml``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from shoal.commands.support.code_names import show_failed_import
from shoal.commands.support.messages import say
from shoal.http.app.loading import NotAnApplication, load_application
from shoal.planning.mistake import CommandError
from shoal.serving.app_file.file import read_app_file
from shoal.serving.app_file.flaws import AppFileRefused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from starlette.types import ASGIApp

    from shoal.http.app.app import App

APPLICATION: Final = "MODULE:ATTRIBUTE|FILE.toml"
"""The argument's form, for help texts."""


def application_of(spec: str) -> ASGIApp:
    """Imports an application, or creates the one that a file declares.

    Modules in the current directory can be imported, as with ``python -m``.

    Raises:
        CommandError: It does not exist or is invalid. The other mistakes of a file, or the
            traceback of a failed import, have been printed.
    """
    if spec.endswith(".toml"):
        return _of_file(spec)
    try:
        return load_application(spec)
    except NotAnApplication as error:
        raise CommandError(str(error)) from None
    except Exception as error:
        show_failed_import(error)
        raise CommandError(f"importing {spec} failed, see above", 1) from None


def empty_application() -> App:
    """Returns an application without backends and endpoints."""
    from shoal.http.app.app import App

    _add_current_directory()
    return App()


def shoals_in(app: Any) -> App | None:
    """Returns the application if it is a `shoal.App`, or the one its middleware wraps, or None."""
    from shoal.http.app.app import App
    from shoal.http.app.middleware import within

    return within(app, App)


def server_settings(app: Any) -> Mapping[str, Any]:
    """Returns the server settings of an application's file; empty if it has no file."""
    from shoal.http.app.app import App

    return app.file.server if isinstance(app, App) and app.file is not None else {}


def need(package: str) -> ModuleType:
    """Imports a package that only an extra installs.

    Raises:
        CommandError: It is not installed.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"serving needs {error.name}, which is not installed: pip install 'shoal[serve]'", 1
        ) from None


def say_flaws(refused: AppFileRefused) -> CommandError:
    """Prints all flaws of a file except the last, which is returned as an error."""
    *others, last = refused.flaws
    for flaw in others:
        say(f"shoal: {flaw}")
    return CommandError(str(last))


def _of_file(spec: str) -> ASGIApp:
    from shoal.http.app.app import App

    try:
        file = read_app_file(spec)
    except AppFileRefused as refused:
        raise say_flaws(refused) from None
    _add_current_directory()
    return App.of_file(file)


def _add_current_directory() -> None:
    sys.path.insert(0, os.getcwd())
