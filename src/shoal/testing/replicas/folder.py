"""A folder through which test code and its check communicate, in one process or in two."""

from __future__ import annotations

import time
from pathlib import Path

import anyio

_LOOK_EVERY_S = 0.005


class Folder:
    def __init__(self, path: str) -> None:
        self.path = path
        self._diary = Path(path, "diary")

    def note(self, line: str) -> None:
        with self._diary.open("a", encoding="utf-8") as diary:
            diary.write(f"{line}\n")

    def notes(self) -> list[str]:
        if not self._diary.exists():
            return []
        return self._diary.read_text(encoding="utf-8").splitlines()

    def let_go(self, name: str) -> None:
        """Releases a wait; ``"all"`` releases all."""
        Path(self.path, f"go {name}").touch()

    def may_go(self, name: str) -> bool:
        """Returns whether a wait is released, or the folder has been deleted."""
        return (
            any(Path(self.path, f"go {one}").exists() for one in (name, "all"))
            or not Path(self.path).exists()
        )

    def wait(self, name: str) -> None:
        while not self.may_go(name):
            time.sleep(_LOOK_EVERY_S)

    async def wait_async(self, name: str) -> None:
        while not self.may_go(name):  # noqa: ASYNC110 - it may be in another process
            await anyio.sleep(_LOOK_EVERY_S)
