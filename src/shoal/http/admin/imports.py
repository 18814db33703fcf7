"""Which modules the admin API may have imported.

A name of a module that came over a socket is the right to run what is in it. So the operator says
at the start which modules these are; by default there are none. What else would run code of the
sender's choice goes by the same rule: another interpreter, the environment of a process, Ray's
runtime environments.

Two things are checked of each name, by `ImportRule` for all alike: that its module is allowed, and,
when it is loaded, that what it leads to is that module's own (`OwnPath`). The same holds for names
that a state file gives back, unless the program that restores them declares them itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.errors import NotAllowed
from shoal.replicas.code.definition import OwnPath, split_import_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ANY: Final = "*"

# Options by which the sender chooses what runs, and not only how.
_POWERS: Final = ("python", "env")
_RAY_OPTIONS: Final = ("ray_options", "ray_actor_options")
_RAY_POWER: Final = "runtime_env"


class ImportRule:
    """What may be imported.

    Args:
        allowed: Names of modules; each stands for what is below it as well. ``"*"`` is for all.
            None for none.

    Raises:
        TypeError: It is no sequence of names.
        ValueError: A name is none of a module.
    """

    def __init__(self, allowed: Sequence[str] | None) -> None:
        if isinstance(allowed, str):
            raise TypeError(f"allowed_modules is a list of names: [{allowed!r}]")
        names = tuple(allowed or ())
        for name in names:
            if name != ANY and not all(part.isidentifier() for part in name.split(".")):
                raise ValueError(f"{name!r} is no name of a module, such as 'package.module'")
        self.allows_all = ANY in names
        self._names = names

    def checked(self, path: str) -> str:
        """Checks an import path, and returns it as what is to be loaded in its place.

        Raises:
            ValueError: It is none.
            NotAllowed: It leads to a module that was not allowed.
        """
        module, name = split_import_path(path)
        if self.allows_all:
            return path
        if not any(f"{module}.".startswith(f"{allowed}.") for allowed in self._names):
            these = f"only {', '.join(self._names)} and below" if self._names else "none so far"
            raise NotAllowed(
                f"{path!r}: the operator did not allow imports from {module!r} here; "
                f"allowed: {these}"
            )
        if name.startswith("_"):
            raise NotAllowed(f"{path!r}: here a name does not begin with an underscore")
        if "." in name:
            # Through an attribute of a module one gets to whatever that module has imported.
            raise NotAllowed(f"{path!r}: here a name has no dots; give it a name in its module")
        return OwnPath(path)

    def checked_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Checks all import paths in a backend's config, and what else chooses the code that runs.

        Returns:
            The config with the paths as `checked` returns them.

        Raises:
            NotAllowed: It has something that was not allowed.
        """
        if self.allows_all:
            return dict(config)
        return {name: self._checked_option(name, value) for name, value in config.items()}

    def _checked_option(self, name: str, value: Any) -> Any:
        if name == "user_config":
            return value  # that is the code's own business
        if name in _POWERS and value:
            raise _too_mighty(name)
        if name in _RAY_OPTIONS and isinstance(value, Mapping) and _RAY_POWER in value:
            raise _too_mighty(f"{name}[{_RAY_POWER!r}]")
        if isinstance(value, str):
            return self.checked(value) if _is_import_path(value) else value
        for text in _texts(value):  # no option has one deeper down; if one ever has, it is checked
            if _is_import_path(text):
                self.checked(text)
        return value  # pyright: ignore[reportUnknownVariableType] (the option's own to check)


def _too_mighty(name: str) -> NotAllowed:
    return NotAllowed(
        f"{name} chooses what code runs, so it can be set only where the operator allowed all "
        "modules"
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in cast("Mapping[str, Any]", value).values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in cast("Iterable[Any]", value):
            yield from _texts(one)


def _is_import_path(text: str) -> bool:
    try:
        split_import_path(text)
    except ValueError:
        return False
    return True
