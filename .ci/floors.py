"""Print ``name==floor`` for each package that pyproject.toml requires anywhere.

With these constraints, pip installs the lowest version that pyproject.toml allows of each package.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
_FLOOR_AND_CAP = re.compile(
    r"(?P<name>[\w.-]+)(?:\[[\w,]+\])?>=(?P<floor>[\w.]+)(?:,<[\w.]+)?(?: *;.*)?"
)


def floors(requirements: Iterable[str]) -> list[str]:
    """Return a pin to its lowest version for each requirement, sorted.

    Raises:
        ValueError: A requirement is not a floor with an optional cap, or two floors of a package
            differ.
    """
    pins: dict[str, str] = {}
    for requirement in requirements:
        found = _FLOOR_AND_CAP.fullmatch(requirement)
        if found is None:
            raise ValueError(
                f"pyproject.toml requires {requirement!r}; wanted name>=floor, or name>=floor,<cap"
            )
        if pins.setdefault(found["name"], found["floor"]) != found["floor"]:
            raise ValueError(f"pyproject.toml has two floors for {found['name']}")
    return sorted(f"{name}=={floor}" for name, floor in pins.items())


if __name__ == "__main__":
    table = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))
    lists = [
        table["project"]["dependencies"],
        *table["project"]["optional-dependencies"].values(),
        *table["dependency-groups"].values(),
    ]
    print("\n".join(floors(one for each in lists for one in each if isinstance(one, str))))
