"""Loads the application or object that a command line names: ``my_module:app``, ``app.toml``."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.batching.handlers.annotations import read_signature
from shoal.commands.support.output import CommandError, as_mistakes, failed_code, say
from shoal.core.extras import needing
from shoal.failures.exceptions import users_part
from shoal.replicas.code.definition import Definition, imported_unheld
from shoal.serving.app_file.flaws import AppFileRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import ASGIApp

    from shoal.http.app.app import App
    from shoal.serving.app_file.file import AppFile

# The argument's form, for help texts.
APPLICATION: Final = "MODULE:ATTRIBUTE|FILE.py|FILE.toml"


def application_of(spec: str) -> ASGIApp:
    # Modules in the current directory can be imported, as with ``python -m``, and modules beside
    # the file.
    if spec.endswith(".toml"):
        return _of_file(spec)
    found = _of_module_file(spec) if spec.endswith(".py") else named(spec, "my_module:app")
    if not _takes_scopes(found):
        raise CommandError(
            f"{spec} is not an ASGI application, but {found!r:.80}; to serve functions or classes, "
            "declare them in one: app = shoal.App(), and app.endpoint(...)"
        )
    return cast("ASGIApp", found)


def named(spec: str, example: str) -> Any:
    """Imports an attribute, after printing the traceback of a failed import."""
    if ":" not in spec:
        raise CommandError(f"{spec!r} is not an import path; write it like {example!r}")
    _add_directory(os.getcwd())
    module, _, attribute = spec.partition(":")
    if module.endswith(".py"):
        spec = f"{_module_of(module)}:{attribute}"
    try:
        return imported_unheld(spec)
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code:
            raise  # it says why
        # An error before any code ran, such as a SyntaxError, has no frames of user code.
        shown = users_part(error.__traceback__)
        if shown is None and isinstance(error, ValueError):
            raise CommandError(str(error)) from None
        traceback.print_exception(error.with_traceback(shown))
        given = spec.removesuffix(":__dict__")
        raise CommandError(f"importing {given} failed, see above", 1) from None


def instance_of(handler: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns an instance if the handler is a class, else the handler itself."""
    definition = Definition(handler, tuple(args), tuple(kwargs.items()))
    if not inspect.isclass(handler):
        if args or kwargs:
            raise CommandError(f"{definition.name} is not a class, so it takes no --arg or --kwarg")
        return handler
    definition.check_loaded(handler)
    try:
        definition.bind_init(handler)
    except TypeError as error:
        raise CommandError(
            f"{handler.__qualname__} can't be instantiated: {error}; give its arguments with --arg "
            "and --kwarg"
        ) from None
    try:
        return definition.instantiated(handler)
    except Exception as error:
        raise failed_code(f"{handler.__qualname__} could not be instantiated", error) from None


def empty_application() -> App:
    from shoal.http.app.app import App

    _add_directory(os.getcwd())
    return App()


def shoal_app_in(app: Any) -> App | None:
    """Returns the `shoal.App`, which middleware may wrap; None for another application."""
    from shoal.http.app.app import App
    from shoal.http.app.middleware import within

    return within(app, App)


def import_code(app: Any) -> None:
    # Of an application file, only the code that will run in this process.
    found = shoal_app_in(app)
    if found is None or found.file is None:
        return
    for code, config in found.file.backends.values():
        if config.placement in ("task", "thread"):
            named(str(code.target), "my_module:MyModel")


def server_settings(app: Any) -> Mapping[str, Any]:
    """Returns the settings in an application's file, or the hosts and origins of a program."""
    from shoal.http.app.app import App

    if not isinstance(app, App):
        return {}
    if app.file is not None:
        return app.file.server
    named = {name: getattr(app.settings, name) for name in ("allowed_hosts", "allowed_origins")}
    return {name: value for name, value in named.items() if value}


def file_settings(spec: str) -> Mapping[str, Any]:
    return _read_file(spec).server if spec.endswith(".toml") else {}


def need(package: str, feature: str = "serving") -> None:
    """Imports a package that only the extra ``serve`` installs."""
    with as_mistakes(), needing(feature, "serve"):
        importlib.import_module(package)


def say_flaws(flaws: Sequence[object]) -> CommandError:
    """Prints all flaws except the last, which is returned as an error."""
    *others, last = flaws
    for flaw in others:
        say(f"shoal: {flaw}")
    return CommandError(str(last))


def _read_file(spec: str) -> AppFile:
    from shoal.serving.app_file.file import read_app_file

    try:
        return read_app_file(spec)
    except AppFileRefused as refused:
        raise say_flaws(refused.flaws) from None


def _of_file(spec: str) -> ASGIApp:
    from shoal.http.app.app import App

    file = _read_file(spec)
    _add_directory(os.getcwd())
    _add_directory(str(Path(spec).resolve().parent))
    try:
        return App.of_file(file)
    except ModuleNotFoundError as error:  # an option needs an extra
        raise CommandError(f"{spec}: {error}", 1) from None


def _of_module_file(spec: str) -> object:
    from shoal.http.app.app import App

    names: dict[str, object] = named(f"{spec}:__dict__", "my_module:app")
    if "app" in names:
        return names["app"]
    found = {one: f"{spec}:{name}" for name, one in names.items() if isinstance(one, App)}
    if len(found) == 1:
        return next(iter(found))
    if not found:
        raise CommandError(f"{spec} has no shoal.App; name your application: {spec}:NAME")
    raise CommandError(f"{spec} has several applications; name one: {', '.join(found.values())}")


def _add_directory(directory: str) -> None:
    """Makes the modules in a directory importable, before all others."""
    if sys.path[:1] != [directory]:
        sys.path.insert(0, directory)


def _module_of(name: str) -> str:
    """Returns the dotted name of a file's module, and makes it importable."""
    file = Path(name).resolve()
    if not file.is_file():
        raise CommandError(f"there is no file {name}")
    if not file.stem.isidentifier():
        raise CommandError(
            f"{name} can't be imported, since {file.stem!r} is not a module's name: use letters, "
            "digits and underscores"
        )
    parts = [file.stem]
    directory = file.parent
    while (directory / "__init__.py").is_file():  # it is a package, which its modules may import
        parts.insert(0, directory.name)
        directory = directory.parent
    _add_directory(str(directory))
    return ".".join(parts)


def _takes_scopes(app: object) -> bool:
    if inspect.isclass(app) or not callable(app):
        return False
    try:
        read_signature(app).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:
        pass  # some callables have no signature; a mistake shows when it is served
    return True
