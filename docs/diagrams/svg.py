"""Parts of a picture. Pictures are 380 units wide, so their text is legible on a telephone too."""

from collections.abc import Iterable
from html import escape

WIDTH = 380
# A background of its own: a page may be dark where the reader's system is light.
STYLE = """
.back { fill: #fff }
text { font: 12px system-ui, sans-serif; fill: #1f2933 }
.head { font-weight: 600 }
.note { fill: #52606d; font-size: 11px }
.mid { text-anchor: middle }
.end { text-anchor: end }
.box { fill: #eef4fa; stroke: #4a7fa8 }
.plain { fill: #f5f7fa; stroke: #9aa5b1 }
.run { fill: #8fbbe0 }
.closed { fill: #f3c86b }
.idle { fill: #e4e7eb }
.bad { fill: #e8a0a0 }
.dot { fill: #1f5f99 }
.line { fill: none; stroke: #52606d; stroke-width: 1.2 }
.arrow { fill: none; stroke: #52606d; stroke-width: 1.2; marker-end: url(#head) }
.dashed { fill: none; stroke: #9aa5b1; stroke-dasharray: 4 3 }
"""
ARROW = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto"><path d="M0 0 8 4 0 8z" fill="#52606d"/></marker></defs>'
)


def svg(height: float, title: str, parts: Iterable[str]) -> str:
    """Returns a whole SVG document."""
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
                f'width="{WIDTH}" height="{height:g}" role="img">'
            ),
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            ARROW,
            f'<rect class="back" width="{WIDTH}" height="{height:g}" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="3"/>'
    )


def labelled(x: float, y: float, width: float, words: list[str], kind: str = "box") -> list[str]:
    """Returns a box with centred lines; the first is a heading."""
    lines = [
        text(x + width / 2, y + 17 + 15 * nth, line, "mid note" if nth else "mid head")
        for nth, line in enumerate(words)
    ]
    return [box(x, y, width, 11 + 15 * len(words), kind), *lines]


def line(*points: tuple[float, float], kind: str = "line") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{path}"/>'


def dot(x: float, y: float, radius: float = 3) -> str:
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'
