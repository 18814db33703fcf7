"""Draws the pictures of the pages, into this folder.

    python -m docs.diagrams.draw

`tests/test_pictures.py` fails while a picture is not what these files draw.
"""

from collections.abc import Callable
from pathlib import Path

from docs.diagrams import batches, plots, servers

HERE = Path(__file__).parent
PICTURES: dict[str, Callable[[], str]] = {
    "rules.svg": batches.rules,
    "continuous.svg": batches.continuous,
    "path.svg": servers.path_of_a_request,
    "placements.svg": servers.placements,
    "releases.svg": servers.releases,
    "drain.svg": servers.drain,
    "latency.svg": plots.latency,
    "tuned.svg": plots.tuned,
}


def main() -> None:
    for name, picture in PICTURES.items():
        (HERE / name).write_text(picture(), encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
