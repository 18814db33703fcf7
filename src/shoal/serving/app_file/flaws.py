"""What is wrong with an application's file: all of it, each with its line and key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from shoal.core.options.names import suggested

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from shoal.serving.app_file.positions import Path


_MOST_LISTED: Final = 20
"""More keys than these are a backend's options."""


class Flaw(NamedTuple):
    """One thing that is wrong.

    Attributes:
        file: The file.
        line: The line, from 1 on; 0 where the file could not be read.
        key: The key, as it would be written in a header; empty for the file as a whole.
        text: What is wrong, and what would be right.
    """

    file: str
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: "
        return f"{where}{self.key}: {self.text}" if self.key else f"{where}{self.text}"


class AppFileRefused(ValueError):
    """An application's file is wrong; the message has a line for each flaw.

    Attributes:
        flaws: What is wrong, in the order of the lines.
    """

    def __init__(self, flaws: Iterable[Flaw]) -> None:
        self.flaws = tuple(sorted(flaws, key=lambda flaw: flaw.line))
        super().__init__("\n".join(map(str, self.flaws)))


class Flaws:
    """Collects what is wrong with one file.

    Args:
        file: What to call it.
        lines: Where its keys are; see `lines_of_keys`.

    Attributes:
        found: What was found so far.
    """

    def __init__(self, file: str, lines: Mapping[Path, int]) -> None:
        self.file = file
        self.found: list[Flaw] = []
        self._lines = lines

    def add(self, path: Path, text: str) -> None:
        """Notes a flaw of what stands at a path; of what is missing, at the path of what lacks it.

        What the path ends with need not be there: the flaw is told of what is.
        """
        while path and path not in self._lines:
            path = path[:-1]
        self.found.append(Flaw(self.file, self.line(path), written(path), text))

    def line(self, path: Path) -> int:
        """Returns the line of a key that is there; 1 for the whole file."""
        return self._lines.get(path, 1)

    def table(self, path: Path, value: Any, known: Collection[str] | None = None) -> dict[str, Any]:
        """Checks a table, and that it has known keys alone.

        Returns:
            Those of its values whose keys are known; nothing if it is no table.
        """
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
        """Raises what was found, if there is anything.

        Raises:
            AppFileRefused: There is.
        """
        if self.found:
            raise AppFileRefused(self.found)


def unknown(known: Collection[str], name: str) -> str:
    """Says that there is no such key, and which could be meant."""
    there_are = (
        f"there are {', '.join(known)}"
        if len(known) <= _MOST_LISTED
        else "shoal.BackendConfig says which there are"
    )
    return f"there is no such key; {suggested(name, known) or there_are}"


def written(path: Path) -> str:
    """Writes a path as in a header, with places in brackets: ``endpoints.rank.shadows[0]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            is_bare = step.replace("-", "_").isidentifier() or step.isdigit()
            name = step if is_bare and step.isascii() else f'"{step}"'
            text += f".{name}" if text else name
    return text
