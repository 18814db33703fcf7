"""The errors of an application file, each with its key and its line, which `tomllib` omits.

The scanner for lines reads only files that `tomllib` has accepted, so it only has to tell keys,
values and headers apart. It skips values, except for those that can contain keys.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from shoal.core.options.names import suggested
from shoal.errors import NotDurable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping


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
        """Adds an error at a path, or at its nearest parent that the file has."""
        while path and path not in self._lines:
            path = path[:-1]
        self.found.append(Flaw(self.file, self.line(path), written(path), text))

    def checked(self, path: Path, check: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of a check; if that raises, adds a flaw and returns None."""
        try:
            return check(*arguments)
        except (TypeError, ValueError, NotDurable) as error:
            self.add(path, str(error))
            return None

    def line(self, path: Path) -> int:
        """Returns 1 for the file as a whole."""
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

_SPACE: Final = re.compile(r"[ \t]*")
_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}\r\n#]*")
_STRING: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'",
    re.DOTALL,
)


def lines_of_keys(text: str) -> Mapping[Path, int]:
    # A key that occurs several times, such as ``a`` in ``[a.b]`` and ``[a.c]``, has its first line.
    return _Scanner(text).scanned()


class _Scanner:
    """One pass over a file; `_at` is the current position in the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[Path, int] = {}
        self._counted = (0, 1)  # a position in the text, and its line
        self._arrays: dict[Path, int] = {}  # arrays of tables, and their last indices

    def scanned(self) -> Mapping[Path, int]:
        table: Path = ()
        while not self._skipped_to_end():
            if self._next_is("["):
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    def _skipped_to_end(self) -> bool:
        self._skip(_BLANK)
        return self._at >= len(self._text)

    def _header(self) -> Path:
        """Reads ``[a.b]``, or ``[[a.b]]``, which appends a table to the array ``a.b``."""
        line = self._line()
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        *upper, last = self._key()
        self._at += 2 if is_array else 1
        path: Path = ()
        for name in upper:
            path = self._within((*path, name), line)
        path = (*path, last)
        if not is_array:
            return self._within(path, line)
        self._note(path, line)
        self._arrays[path] = self._arrays.get(path, -1) + 1
        path = (*path, self._arrays[path])
        self._note(path, line)
        return path

    def _within(self, path: Path, line: int) -> Path:
        """Records a table, and returns its path, or that of the last table of an array."""
        self._note(path, line)
        return (*path, self._arrays[path]) if path in self._arrays else path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self._note(path, line)
        self._at += 1  # the "="
        self._skip(_SPACE)
        self._value(path)

    def _key(self) -> list[str]:
        names: list[str] = []
        while True:
            self._skip(_SPACE)
            names.append(self._key_part())
            self._skip(_SPACE)
            if not self._next_is("."):
                return names
            self._at += 1

    def _key_part(self) -> str:
        if self._next_is('"') or self._next_is("'"):
            import tomllib  # `shoal serve` loads this module for applications of code, too

            written = self._skip(_STRING)
            return str(tomllib.loads(f"it = {written}")["it"])
        return self._skip(_BARE_KEY)

    def _value(self, path: Path) -> None:
        if self._next_is("["):
            self._array(path)
        elif self._next_is("{"):
            self._inline_table(path)
        elif self._next_is('"') or self._next_is("'"):
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _array(self, path: Path) -> None:
        self._at += 1
        place = 0
        while not self._ends("]"):
            self._note((*path, place), self._line())
            self._value((*path, place))
            place += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while not self._ends("}"):
            self._pair(path)

    def _ends(self, bracket: str) -> bool:
        """Skips to the next element; returns whether the closing bracket is there instead."""
        self._skip(_BLANK)
        if self._next_is(","):
            self._at += 1
            self._skip(_BLANK)
        if self._next_is(bracket):
            self._at += 1
            return True
        return False

    def _next_is(self, character: str) -> bool:
        return self._text.startswith(character, self._at)

    def _skip(self, what: re.Pattern[str]) -> str:
        found = what.match(self._text, self._at)
        assert found is not None, "tomllib has accepted this"
        self._at = found.end()
        return found[0]

    def _note(self, path: Path, line: int) -> None:
        self._lines.setdefault(path, line)

    def _line(self) -> int:
        before, line = self._counted
        self._counted = (self._at, line + self._text.count("\n", before, self._at))
        return self._counted[1]
