"""Print ``name==floor`` for each direct dependency of the library and of its tests.

pip takes it as constraints: what is installed under them is the oldest that pyproject.toml allows.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
_OWN_EXTRAS = re.compile(r"shoal\[([\w,]+)\]")
_FLOOR_AND_CAP = re.compile(
    r"(?P<name>[\w.-]+)(?:\[[\w,]+\])?>=(?P<floor>[\w.]+)(?:,<[\w.]+)?(?: *;.*)?"
)


def floors(project: dict[str, list[str]], extras: dict[str, list[str]], extra: str) -> list[str]:
    """Return the pins of what the project and one extra require, directly or by own extras.

    Args:
        project: pyproject.toml's table of the project, as far as its dependencies go.
        extras: Its optional dependencies.
        extra: Which of them count.

    Returns:
        The pins, in the order in which they are written.

    Raises:
        ValueError: A requirement has no floor, or more than a floor and a cap.
    """
    pins: list[str] = []
    waiting = [*project["dependencies"], *extras[extra]]
    while waiting:
        requirement = waiting.pop(0)
        if own := _OWN_EXTRAS.fullmatch(requirement):
            waiting += [inner for name in own[1].split(",") for inner in extras[name]]
        elif pinned := _FLOOR_AND_CAP.fullmatch(requirement):
            pins.append(f"{pinned['name']}=={pinned['floor']}")
        else:
            raise ValueError(
                f"pyproject.toml requires {requirement!r}; wanted name>=floor, or name>=floor,<cap"
            )
    return pins


if __name__ == "__main__":
    table = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]
    print("\n".join(floors(table, table["optional-dependencies"], "test")))
