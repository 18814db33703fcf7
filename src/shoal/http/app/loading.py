"""From ``my_module:app``, as written on a command line, to the application it names."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class NotAnApplication(ValueError):
    """What the user named is not there, or can't be served; the message says so in one line."""


def load_application(spec: str) -> ASGIApp:
    """Import an application.

    What lies in the current directory can be imported, as for ``python -m``.

    Args:
        spec: A module's dotted name, a colon, and an attribute of it, which may be dotted as well.

    Returns:
        The object, which looks like an ASGI application.

    Raises:
        NotAnApplication: The name is malformed, or nothing is there, or something else is.
        Exception: Whatever the module raises when it is imported.
    """
    module_name, colon, attribute = spec.partition(":")
    names = [*module_name.split("."), *attribute.split(".")]
    if not colon or not all(name.isidentifier() for name in names):
        raise NotAnApplication(f"{spec!r} is not MODULE:ATTRIBUTE; write it like my_module:app")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; one that it imports is not
        message = f"no module {error.name!r} in {os.getcwd()} or installed"
        raise NotAnApplication(message) from None
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise NotAnApplication(f"{module_name} has no attribute {attribute!r}") from None
    if (flaw := _flaw(found)) is not None:
        raise NotAnApplication(f"{spec} is not an ASGI application: {flaw}")
    return cast("ASGIApp", found)


def _flaw(app: object) -> str | None:
    if inspect.isclass(app):
        return (
            f"it is the class {app.__qualname__}; an instance of it is wanted. A model is served "
            "by an application: app = shoal.App(), and app.endpoint(...) on the class"
        )
    if not callable(app):
        return f"{type(app).__qualname__} objects can't be called"
    try:
        inspect.signature(app).bind(None, None, None)
    except TypeError:
        return (
            "it does not take (scope, receive, send). A function is served by an application: "
            "app = shoal.App(), and app.endpoint(...) on the function"
        )
    except ValueError:
        pass  # a callable that does not tell its signature: the server will find out
    return None
