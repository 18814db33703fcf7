"""The errors of an application file, each with its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from shoal.core.options.names import suggested
from shoal.errors import NotDurable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

Path: TypeAlias = "tuple[str | int, ...]"
"""The position of a value: keys, and indices in arrays."""

_MOST_LISTED: Final = 20
"""The most keys that a message lists; only a backend's options are more."""


class AppFileRefused(ValueError):
    """An application file has errors; the message has one line for each."""

    def __init__(self, flaws: Iterable[str]) -> None:
        self.flaws = tuple(flaws)
        super().__init__("\n".join(self.flaws))


class Flaws:
    def __init__(self, file: str) -> None:
        self.found: list[str] = []
        self._file = file

    def add(self, path: Path, text: str) -> None:
        where = f"{written(path)}: " if path else ""
        self.found.append(f"{self._file}: {where}{text}")

    def checked(self, path: Path, check: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of a check; if that raises, adds a flaw and returns None."""
        try:
            return check(*arguments)
        except (TypeError, ValueError, NotDurable) as error:
            self.add(path, str(error))
            return None

    def table(self, path: Path, value: Any, known: Collection[str] | None = None) -> dict[str, Any]:
        """Checks that a value is a table; returns its values with known keys."""
        if not isinstance(value, dict):
            self.add(path, f"must be a table, as [{written(path)}], not {value!r}")
            return {}
        given = cast("dict[str, Any]", value)
        if known is None:
            return given
        for name in given:
            if name not in known:
                self.add((*path, name), unknown(known, name))
        return {name: one for name, one in given.items() if name in known}

    def refuse(self) -> None:
        if self.found:
            raise AppFileRefused(self.found)


def unknown(known: Collection[str], name: str) -> str:
    """Returns the message for an unknown key, with a suggestion or the known keys."""
    there_are = (
        f"there are {', '.join(known)}"
        if len(known) <= _MOST_LISTED
        else "shoal.BackendConfig lists the options"
    )
    return f"there is no such key; {suggested(name, known) or there_are}"


def written(path: Path) -> str:
    """Writes a path as in a header, with indices in brackets: ``endpoints.rank.shadows[0]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            is_bare = step.replace("-", "_").isidentifier() or step.isdigit()
            name = step if is_bare and step.isascii() else f'"{step}"'
            text += f".{name}" if text else name
    return text
