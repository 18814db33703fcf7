"""The rule for which modules can be imported through the admin API.

To import a module is to run its code. So the operator names the allowed modules when the server
starts; by default none are allowed. The same rule applies to other options with which the sender
chooses the code: another interpreter, the environment of a process, Ray's runtime environments.

`ImportRule` checks that the module of an import path is allowed. When the path is loaded, `OwnPath`
checks that the module's own package defines the object. The rule also covers import paths from a
state file, unless the program that restores them declares them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from shoal.errors import NotAllowed
from shoal.replicas.code.definition import OwnPath, split_import_path

ANY: Final = "*"

# Options by which the sender chooses what code runs, and not only how.
_CODE_OPTIONS: Final = ("python", "env")
_RAY_OPTIONS: Final = ("ray_options", "ray_actor_options")
_RAY_CODE_OPTION: Final = "runtime_env"
_OF_OWN_PLACEMENT: Final = "placement_options"


class ImportRule:
    """Allows the named modules with their submodules; ``"*"`` allows all, None allows none."""

    def __init__(self, allowed: Sequence[str] | None) -> None:
        if isinstance(allowed, str):
            raise TypeError(f"allowed_modules must be a list of names: [{allowed!r}]")
        names = tuple(allowed or ())
        for name in names:
            if name != ANY and not all(part.isidentifier() for part in name.split(".")):
                raise ValueError(f"{name!r} is not a module's name, such as 'package.module'")
        self.allows_all = ANY in names
        self._names = names

    def checked(self, path: str) -> str:
        """Returns the path to load; raises `NotAllowed`, or `ValueError` if it is no path."""
        module, name = split_import_path(path)
        if self.allows_all:
            return path
        if not any(f"{module}.".startswith(f"{allowed}.") for allowed in self._names):
            these = f"only {', '.join(self._names)} and submodules" if self._names else "none"
            raise NotAllowed(
                f"{path!r}: the operator did not allow imports from {module!r} here; "
                f"allowed: {these}"
            )
        if name.startswith("_"):
            raise NotAllowed(f"{path!r}: the name can't begin with an underscore here")
        if "." in name:
            # The attributes of a module include the modules that it has imported.
            raise NotAllowed(f"{path!r}: the name can't have dots here; use a name in the module")
        return OwnPath(path)

    def checked_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Checks import paths, and other options that choose what code runs."""
        if self.allows_all:
            return dict(config)
        return {name: self._checked_option(name, value) for name, value in config.items()}

    def _checked_option(self, name: str, value: Any) -> Any:
        if name == "user_config":
            return value  # only the user's code interprets it
        _refuse_code(name, value)
        if isinstance(value, str):
            return self.checked(value) if _is_import_path(value) else value
        for inner, one in _within(value):
            if name == _OF_OWN_PLACEMENT:
                _refuse_code(inner, one)  # it may pass them on to a placement of Shoal's
            if isinstance(one, str) and _is_import_path(one):
                self.checked(one)
        return value


def _refuse_code(name: str, value: Any) -> None:
    if name in _RAY_OPTIONS and isinstance(value, Mapping) and _RAY_CODE_OPTION in value:
        name = f"{name}[{_RAY_CODE_OPTION!r}]"
    elif name not in _CODE_OPTIONS or not value:
        return
    raise NotAllowed(
        f"{name} chooses what code runs, so it can be set only if the operator allowed all modules"
    )


def _within(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields all values in mappings and lists, with their keys; elements of lists have none."""
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, Any]", value).items()
    elif isinstance(value, list):
        inner = (("", one) for one in cast("Iterable[Any]", value))
    for name, one in inner:
        yield name, one
        yield from _within(one)


def _is_import_path(text: str) -> bool:
    try:
        split_import_path(text)
    except ValueError:
        return False
    return True
