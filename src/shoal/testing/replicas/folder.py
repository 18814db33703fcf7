"""The folder by which code and its check know of each other, in one process or in two."""

from __future__ import annotations

import time
from pathlib import Path

import anyio

_LOOK_EVERY_S = 0.005


class Folder:
    """How the code and its check know of each other.

    Args:
        path: An empty folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._diary = Path(path, "diary")

    def note(self, line: str) -> None:
        """Says that something has happened."""
        with self._diary.open("a", encoding="utf-8") as diary:
            diary.write(f"{line}\n")

    def notes(self) -> list[str]:
        """Returns what has happened."""
        if not self._diary.exists():
            return []
        return self._diary.read_text(encoding="utf-8").splitlines()

    def let_go(self, name: str) -> None:
        """Ends a wait; ``"all"`` ends all."""
        Path(self.path, f"go {name}").touch()

    def may_go(self, name: str) -> bool:
        """Says whether a wait is over; it is when the folder is gone."""
        return (
            any(Path(self.path, f"go {one}").exists() for one in (name, "all"))
            or not Path(self.path).exists()
        )

    def wait(self, name: str) -> None:
        """Waits until it is let go."""
        while not self.may_go(name):
            time.sleep(_LOOK_EVERY_S)

    async def wait_async(self, name: str) -> None:
        """Waits until it is let go, as async code."""
        while not self.may_go(name):  # noqa: ASYNC110 - it may be in another process
            await anyio.sleep(_LOOK_EVERY_S)
