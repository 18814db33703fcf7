"""Loads what a command line names: ``my_module:app``, ``app.toml``, ``my_module:function``."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.commands.support.mistake import CommandError, say
from shoal.core.extras import needing
from shoal.replicas.code.definition import imported_unheld
from shoal.serving.app_file.flaws import AppFileRefused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from starlette.types import ASGIApp

    from shoal.http.app.app import App

APPLICATION: Final = "MODULE:ATTRIBUTE|FILE.toml"
"""The argument's form, for help texts."""

_IMPORTERS: Final = frozenset({"shoal", "importlib", "_frozen_importlib"})


def application_of(spec: str) -> ASGIApp:
    """Imports an application, or creates the one that a file declares.

    Modules in the current directory can be imported, as with ``python -m``.

    Raises:
        CommandError: It does not exist or is invalid. The other mistakes of a file, or the
            traceback of a failed import, have been printed.
    """
    if spec.endswith(".toml"):
        return _of_file(spec)
    found = named(spec, "my_module:app")
    if (flaw := _flaw(found)) is not None:
        raise CommandError(f"{spec} is not an ASGI application: {flaw}")
    return cast("ASGIApp", found)


def named(spec: str, example: str) -> Any:
    """Imports a module and returns one of its attributes.

    Modules in the current directory can be imported, as with ``python -m``.

    Args:
        spec: A module's dotted name, a colon, and an attribute's name, which may be dotted as well.
        example: A correct one, for messages.

    Raises:
        CommandError: The name is malformed, the module or attribute does not exist, or the import
            failed; the traceback of a failed import has been printed.
    """
    if ":" not in spec:
        raise CommandError(f"{spec!r} is not an import path; write it like {example!r}")
    _add_current_directory()
    try:
        return imported_unheld(spec)
    except Exception as error:
        # The frames before those of the imported code are the same twenty lines every time. An
        # error before any code ran, such as a SyntaxError, has no others.
        shown = error.__traceback__
        while shown is not None and _package(shown.tb_frame.f_globals) in _IMPORTERS:
            shown = shown.tb_next
        if shown is None and isinstance(error, ValueError):
            where = f" in {os.getcwd()} or installed" if error.__cause__ is not None else ""
            raise CommandError(f"{error}{where}") from None
        traceback.print_exception(error.with_traceback(shown))
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
    """Returns the settings of a server that an application has: those of its file, if it has one.

    Else they are the hosts and the origins that a program has set.
    """
    from shoal.http.app.app import App

    if not isinstance(app, App):
        return {}
    if app.file is not None:
        return app.file.server
    named = {name: getattr(app.settings, name) for name in ("allowed_hosts", "allowed_origins")}
    return {name: value for name, value in named.items() if value}


def file_settings(spec: str) -> Mapping[str, Any]:
    """Returns the server settings of an application's file, without loading the application.

    Args:
        spec: As for `application_of`; what is no file has no settings.

    Raises:
        CommandError: The file is invalid; its other mistakes have been printed.
    """
    if not spec.endswith(".toml"):
        return {}
    from shoal.serving.app_file.file import read_app_file

    try:
        return read_app_file(spec).server
    except AppFileRefused as refused:
        raise say_flaws(refused) from None


def need(package: str) -> ModuleType:
    """Imports a package that only an extra installs.

    Raises:
        CommandError: It is not installed.
    """
    try:
        with needing("serving", "serve"):
            return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise CommandError(str(error), 1) from None


def say_flaws(refused: AppFileRefused) -> CommandError:
    """Prints all flaws of a file except the last, which is returned as an error."""
    *others, last = refused.flaws
    for flaw in others:
        say(f"shoal: {flaw}")
    return CommandError(str(last))


def _of_file(spec: str) -> ASGIApp:
    from shoal.http.app.app import App
    from shoal.serving.app_file.file import read_app_file

    try:
        file = read_app_file(spec)
    except AppFileRefused as refused:
        raise say_flaws(refused) from None
    _add_current_directory()
    try:
        return App.of_file(file)
    except ModuleNotFoundError as error:  # an option needs an extra
        raise CommandError(f"{spec}: {error}", 1) from None


def _add_current_directory() -> None:
    sys.path.insert(0, os.getcwd())


def _flaw(app: object) -> str | None:
    if inspect.isclass(app):
        return (
            f"it is the class {app.__qualname__}; name an instance of it. To serve a model, "
            "declare it in an application: app = shoal.App(), and app.endpoint(...) on the class"
        )
    if not callable(app):
        return f"{type(app).__qualname__} objects can't be called"
    try:
        inspect.signature(app).bind(None, None, None)
    except TypeError:
        return (
            "it does not take (scope, receive, send). To serve a function, declare it in an "
            "application: app = shoal.App(), and app.endpoint(...) on the function"
        )
    except ValueError:
        pass  # some callables have no signature; a mistake shows when it is served
    return None


def _package(module: dict[str, Any]) -> str:
    return str(module.get("__name__", "")).partition(".")[0]
