"""The errors of an application file, each with its key and its line, which `tomllib` omits.

Lines are found for the keys that stand at the beginnings of lines. A value in an array or an inline
table has the line of the nearest key above it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from shoal.core.options.names import suggested
from shoal.errors import NoSuchName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence


_MOST_LISTED: Final = 20
"""The most keys that a message lists; only a backend's options are more."""


class Flaw(NamedTuple):
    file: str
    line: int  # from 1 on; 0 if the file could not be read
    key: str  # as in a header; empty for the file as a whole
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: "
        return f"{where}{self.key}: {self.text}" if self.key else f"{where}{self.text}"


class AppFileRefused(ValueError):
    """An application file has errors; the message has one line for each."""

    def __init__(self, flaws: Iterable[Flaw]) -> None:
        self.flaws = tuple(sorted(flaws, key=lambda flaw: flaw.line))
        super().__init__("\n".join(map(str, self.flaws)))


class Flaws:
    def __init__(self, file: str, lines: Mapping[Path, int]) -> None:
        self.file = file
        self.found: list[Flaw] = []
        self._lines = lines

    def add(self, path: Path, text: str) -> None:
        self.found.append(Flaw(self.file, self.line(path), written(path), text))

    def checked(self, path: Path, check: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of a check; if that raises, adds a flaw and returns None."""
        try:
            return check(*arguments)
        except (TypeError, ValueError, NoSuchName) as error:
            self.add(path, str(error))
            return None

    def line(self, path: Path) -> int:
        """Returns the line of a path, or of its nearest parent; 1 for the file as a whole."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def table(self, path: Path, value: Any, known: Collection[str] | None = None) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.add(path, f"must be a table, as [{written(path)}], not {value!r}")
            return {}
        given = cast("dict[str, Any]", value)
        if known is None:
            return given
        for name in given.keys() - known:
            self.add((*path, name), unknown(known, name))
        return {name: one for name, one in given.items() if name in known}

    def fields(
        self, path: Path, value: Any, checks: Mapping[str, Callable[[Any], Any]]
    ) -> dict[str, Any]:
        """Checks the values of a table, each by the check of its key; refused ones become None."""
        given = self.table(path, value, checks)
        return {name: self.checked((*path, name), checks[name], one) for name, one in given.items()}

    def refuse(self) -> None:
        if self.found:
            raise AppFileRefused(self.found)


def unknown(known: Collection[str], name: str) -> str:
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


Path: TypeAlias = "tuple[str | int, ...]"
"""The position of a value: keys, and indices in arrays."""

_LONG_TEXT: Final = re.compile(r"(\"\"\"|''').*?\1", re.DOTALL)
_PART: Final = r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|[^"'=\[\]{])+?"""
_KEYS: Final = re.compile(
    rf"\s*(?:(?P<bracket>\[\[?)\s*(?P<header>{_PART})\s*\]|(?P<key>{_PART})\s*=)"
)


def lines_of_keys(text: str) -> Mapping[Path, int]:
    """Returns the lines of keys at the beginnings of lines, of headers, and of arrays' tables."""
    # A key that occurs several times, such as ``a`` in ``[a.b]`` and ``[a.c]``, has its first line.
    lines: dict[Path, int] = {}
    arrays: dict[Path, int] = {}  # arrays of tables, and their last indices
    table: Path = ()
    flat = _LONG_TEXT.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(flat.split("\n"), 1):
        found = _KEYS.match(line)
        names = () if found is None else _parts_of(found["header"] or found["key"])
        if found is None or not names:
            continue
        is_array = found["bracket"] == "[["
        path = () if found["bracket"] else table
        for place, name in enumerate(names, 1):
            path = (*path, name)
            lines.setdefault(path, number)
            if is_array and place == len(names):
                arrays[path] = arrays.get(path, -1) + 1
            if path in arrays:
                path = (*path, arrays[path])
                lines.setdefault(path, number)
        table = path if found["bracket"] else table
    return lines


def _parts_of(key: str) -> Sequence[str]:
    """Returns the parts of a dotted key; none if it is no key."""
    import tomllib  # `shoal serve` loads this module for applications of code, too

    parts: list[str] = []
    try:
        within: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    while within:
        [(part, within)] = within.items()
        parts.append(part)
    return parts
