"""Draws the folders of the package and what they import: discussion/architecture.svg.

    python docs/architecture.py

`tests/test_pictures.py` fails while the picture is not that of the code.
"""

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "shoal"
PICTURE = ROOT / "docs" / "discussion" / "architecture.svg"

Graph = dict[str, set[str]]

WIDTH, MARGIN, TITLE, LEVEL, CHIP, GAP, LETTER = 800, 40, 28, 42, 24, 18, 6.6
STYLE = """
svg { background: #fff }
text { font: 12px system-ui, sans-serif; fill: #1f2933 }
.package { fill: #f5f7fa; stroke: #9aa5b1 }
.folder { fill: #d6e8f7; stroke: #4a7fa8 }
.file { fill: #fff; stroke: #9aa5b1 }
.name { font-weight: 600; font-size: 14px }
.says { fill: #616e7c }
path { fill: none; stroke: #9aa5b1; stroke-width: 1.2 }
.down { stroke: #4a7fa8; stroke-width: 1.6; marker-end: url(#head) }
"""


def main() -> None:
    PICTURE.write_text(picture(), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")


def picture() -> str:
    """The picture as SVG."""
    graphs = {depth: imports(depth) for depth in (1, 2)}
    packages = reduced(graphs[1])
    parts: list[str] = []
    tops: dict[str, tuple[float, float]] = {}
    y = 12.0
    for package in sorted(packages, key=lambda one: (-height_of(packages)[one], one)):
        within = {
            room: {other for other in others if other.startswith(f"{package}.")}
            for room, others in graphs[2].items()
            if room.startswith(f"{package}.")
        }
        boxes, tall = package_boxes(package, within, y)
        tops[package] = (y, y + tall)
        parts += boxes
        y += tall + 18
    for lane, (upper, lower) in enumerate(
        (one, other) for one, others in sorted(packages.items()) for other in sorted(others)
    ):
        parts.append(rail(tops[upper], tops[lower], lane))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" role="img">\n'
        "<title>The packages of Shoal, from those that import most to those that import least"
        f"</title>\n<style>{STYLE}</style>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" style="fill:#4a7fa8;stroke:none"/>'
        "</marker></defs>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def package_boxes(package: str, within: Graph, top: float) -> tuple[list[str], float]:
    """Draws one package and what is in it, and says how tall that is."""
    drawn = reduced(within)
    heights = height_of(drawn)
    rows: list[list[str]] = []
    for level in range(max(heights.values(), default=-1), -1, -1):
        names = sorted(one for one in drawn if heights[one] == level)
        rows += wrapped(names, WIDTH - 4 * MARGIN)
    tall = TITLE + LEVEL * len(rows)
    left = 2.5 * MARGIN
    says = escape(summary(PACKAGE / package))
    parts = [
        (
            f'<rect class="package" x="{left}" y="{top}" width="{WIDTH - left - 8}" '
            f'height="{tall}" rx="8"/>'
        ),
        (
            f'<text x="{left + 12}" y="{top + 19}"><tspan class="name">{package}</tspan>'
            f'<tspan class="says" dx="10">{says}</tspan></text>'
        ),
    ]
    places: dict[str, tuple[float, float, float]] = {}
    for number, row in enumerate(rows):
        free = WIDTH - left - 8 - sum(width_of(name) + GAP for name in row) + GAP
        x, y = left + free / 2, top + TITLE + LEVEL * number + 6
        for name in row:
            places[name] = (x, y, width_of(name))
            x += width_of(name) + GAP
    for name, others in sorted(drawn.items()):
        parts += [line(places[name], places[other]) for other in sorted(others)]
    for name, (x, y, wide) in places.items():
        kind = "folder" if (PACKAGE / name.replace(".", "/") / "__init__.py").exists() else "file"
        parts.append(
            f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{CHIP}" '
            f'rx="4"/><text x="{x + wide / 2:.0f}" y="{y + 16:.0f}" text-anchor="middle">'
            f"{name.partition('.')[2]}</text>"
        )
    return parts, tall


def line(upper: tuple[float, float, float], lower: tuple[float, float, float]) -> str:
    """Draws what a room imports of its package."""
    x1, y1 = upper[0] + upper[2] / 2, upper[1] + CHIP
    x2, y2 = lower[0] + lower[2] / 2, lower[1]
    bend = (y2 - y1) / 2
    return (
        f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} '
        f'{x2:.0f} {y2:.0f}"/>'
    )


def rail(upper: tuple[float, float], lower: tuple[float, float], lane: int) -> str:
    """Draws what a package imports, at the left edge."""
    edge = 2.5 * MARGIN
    x = edge - 12 - 6 * (lane % 13)
    y1, y2 = upper[1] - 8, lower[0] + 8 + 3 * (lane % 4)
    return f'<path class="down" d="M{edge} {y1}H{x}V{y2}H{edge}"/>'


def wrapped(names: Iterable[str], room: float) -> list[list[str]]:
    """Divides names into rows that fit."""
    rows: list[list[str]] = []
    used = room + 1.0
    for name in names:
        if used + width_of(name) > room:
            rows.append([])
            used = 0.0
        rows[-1].append(name)
        used += width_of(name) + GAP
    return rows


def width_of(name: str) -> float:
    return 18 + LETTER * len(name.partition(".")[2])


def height_of(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """How many imports one after the other lead from each to the last."""
    heights: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        heights[name] = 1 + max((heights[other] for other in graph[name]), default=-1)
    return heights


def reduced(graph: Mapping[str, set[str]]) -> Graph:
    """Leaves out what is imported by way of another as well."""
    reached: Graph = {}
    for name in TopologicalSorter(graph).static_order():
        reached[name] = graph[name].union(*(reached[other] for other in graph[name]))
    return {
        name: {one for one in others if not any(one in reached[other] for other in others)}
        for name, others in graph.items()
    }


def imports(depth: int) -> Graph:
    """What imports what, by the first names below ``shoal``, to a depth."""
    graph: Graph = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__" or len(parts) < depth or (depth == 1 and len(parts) == 1):
            continue
        importer = ".".join(parts[:depth])
        found = graph.setdefault(importer, set())
        for module in imported(path):
            target = module.split(".")[1 : depth + 1]
            is_ours = (PACKAGE.joinpath(*target)).is_dir() or (
                depth > 1 and PACKAGE.joinpath(*target).with_suffix(".py").is_file()
            )
            if len(target) == depth and is_ours and ".".join(target) != importer:
                found.add(".".join(target))
    return {name: others & graph.keys() for name, others in graph.items()}


@cache
def imported(path: Path) -> list[str]:
    """The modules of Shoal that a file imports; of `from package import module` the module."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal."):
            found.append(node.module or "")
            found += (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found += (alias.name for alias in node.names if alias.name.startswith("shoal."))
    return found


def summary(folder: Path) -> str:
    """The first line of a package's docstring."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    return (docstring or "").split("\n")[0].replace("`", "")


if __name__ == "__main__":
    main()
