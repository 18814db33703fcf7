"""Loading an application by its name on the command line, such as ``my_module:app``."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class NotAnApplication(ValueError):
    """The named object does not exist, or can't be served; the message is one line."""


def load_application(spec: str) -> ASGIApp:
    """Imports an application.

    Modules in the current directory can be imported, as with ``python -m``.

    Args:
        spec: A module's dotted name, a colon, and an attribute of it, which may be dotted as well.

    Returns:
        The object, which has the signature of an ASGI application.

    Raises:
        NotAnApplication: The name is malformed, does not exist, or is not an ASGI application.
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
            raise  # the module exists; a module that it imports does not
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
