"""From what a command line names to an application: ``my_module:app``, or ``app.toml``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from shoal.commands.support.code_names import show_failed_import
from shoal.commands.support.saying import say
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
"""How it is written, for help."""


def application_of(spec: str) -> ASGIApp:
    """Imports an application, or makes the one that a file declares.

    What lies in the current directory can be imported, as for ``python -m``.

    Raises:
        Mistake: There is none, or it is wrong; all that is wrong has been said.
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
    """Makes an application that declares nothing."""
    from shoal.http.app.app import App

    _look_here()
    return App()


def shoals_in(app: Any) -> App | None:
    """Returns the `shoal.App` that an application is, or is middleware around; None if neither."""
    from shoal.http.app.app import App
    from shoal.http.app.middleware import within

    return within(app, App)


def server_settings(app: Any) -> Mapping[str, Any]:
    """Returns what an application's file says of the server; nothing for others."""
    from shoal.http.app.app import App

    return app.file.server if isinstance(app, App) and app.file is not None else {}


def need(package: str) -> ModuleType:
    """Imports what only an extra installs.

    Raises:
        Mistake: It is not installed.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"serving needs {error.name}, which is not here: pip install 'shoal[serve]'", 1
        ) from None


def say_flaws(refused: AppFileRefused) -> CommandError:
    """Says all that is wrong with a file but the last, which is returned."""
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
    _look_here()
    return App.of_file(file)


def _look_here() -> None:
    sys.path.insert(0, os.getcwd())
