"""Draws the pictures of the README: batches.svg, which moves, cost.svg and decides.svg.

    python docs/pictures/draw.py

`tests/test_pictures.py` fails while a picture is not what this file draws.
"""

from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
# Colours that are legible on light and on dark backgrounds.
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2933 }
.small { font-size: 12px; fill: #52606d }
.request { fill: #2f7fc1 }
.box { fill: none; stroke: #7b8794; stroke-width: 1.5 }
.run { fill: #f0b429 }
.wait { stroke: #2f7fc1; stroke-width: 2 }
.single { fill: none; stroke: #d64545; stroke-width: 3 }
.batched { fill: none; stroke: #2f7fc1; stroke-width: 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb }
  .small { fill: #a3adb8 }
}
@media (prefers-reduced-motion: reduce) { .request { animation: none !important } }
"""
REQUESTS = 8
# The model of the README: milliseconds for a call, and for each item.
CALL_MS, ITEM_MS = 10, 0.2
CYCLE_S = 9.0


def svg(width: int, height: int, title: str, style: str, parts: list[str]) -> str:
    """Returns a whole SVG document."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-label="{title}">\n<title>{title}</title>\n'
        f"<style>{STYLE}{style}</style>\n{body}\n</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Returns a text, of a kind that the style knows."""
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{of_kind}>{words}</text>'


def moves(name: str, leaves: float, arrives: float) -> str:
    """Returns the animation of a request that runs from one time of the cycle to another."""

    def at(seconds: float) -> str:
        return f"{100 * seconds / CYCLE_S:.1f}%"

    return (
        f"@keyframes {name} {{ 0%, {at(leaves)} {{ transform: translateX(0) }}"
        f" {at(leaves + 0.2)}, {at(arrives - 0.2)} {{ transform: translateX(300px) }}"
        f" {at(arrives)}, 100% {{ transform: translateX(540px) }} }}\n"
        f".{name} {{ animation: {name} {CYCLE_S:g}s linear infinite }}\n"
    )


def batches() -> str:
    """The same requests one at a time, and in a batch: the picture that moves."""
    style, parts = "", []
    for name, y, label in (("one", 30, "One at a time"), ("all", 130, "In a batch")):
        parts.append(text(10, y, label))
        parts.append(f'<rect class="box" x="325" y="{y + 8}" width="130" height="52" rx="6"/>')
        parts.append(text(352, y + 76, "your function", "small"))
        for nth in range(REQUESTS):
            column, row = divmod(nth, 2)
            leaves = 0.3 + nth if name == "one" else 0.3
            style += moves(f"{name}{nth}", leaves, leaves + (1.0 if name == "one" else 1.4))
            # Batched requests stand side by side in the function; single ones use the same place.
            x = 40 + 24 * column
            parts.append(
                f'<circle class="request {name}{nth}" cx="{x}" cy="{y + 23 + 22 * row}" r="8"/>'
            )
    parts.append(text(490, 30, "8 calls: 8 times the fixed cost", "small"))
    parts.append(text(490, 130, "1 call: the fixed cost once", "small"))
    return svg(720, 215, "Eight requests, one at a time and in one batch", style, parts)


def cost() -> str:
    """What a number of items costs, with a call for each and with one call for all."""
    left, bottom, most = 60, 150, 60

    def point(items: int, milliseconds: float) -> str:
        return f"{left + 8 * items:g},{bottom - milliseconds / 5:g}"

    parts = [f'<path class="box" d="M{left},20 V{bottom} H{left + 8 * most + 10}"/>']
    parts += [text(10, bottom - ms / 5 + 4, f"{ms} ms", "small") for ms in (0, 300, 600)]
    parts += [text(left + 8 * n - 8, bottom + 18, f"{n}", "small") for n in (20, 40, 60)]
    parts.append(text(left + 8 * most + 28, bottom + 18, "items", "small"))
    for kind, first, last in (
        ("single", CALL_MS + ITEM_MS, most * (CALL_MS + ITEM_MS)),
        ("batched", CALL_MS + ITEM_MS, CALL_MS + most * ITEM_MS),
    ):
        parts.append(f'<polyline class="{kind}" points="{point(1, first)} {point(most, last)}"/>')
        parts.append(text(left + 8 * most + 15, bottom - last / 5 + 5, f"{last:.0f} ms"))
    parts.append(text(180, 70, "a call for each item"))
    parts.append(text(300, 138, "one call for all items"))
    return svg(720, 180, "Time for up to 60 items: single calls and one batch", "", parts)


def decides() -> str:
    """When batches leave the queue: a timeline of one worker slot."""
    arrivals = [160, 250, 270, 295, 325, 350, 382, 420, 460, 475]
    parts = [text(10, 20, "requests arrive"), text(10, 72, "your function")]
    parts += [f'<circle class="request" cx="{x}" cy="16" r="5"/>' for x in arrivals]
    previous = 0
    for start, end in ((160, 340), (340, 530), (530, 710)):
        size = sum(previous < x <= start for x in arrivals)
        parts.append(
            f'<rect class="run" x="{start}" y="52" width="{end - start - 2}" height="30"/>'
        )
        # Dark on the bar in both colour schemes.
        parts.append(f'<text x="{start + 12}" y="72" style="fill: #1f2933">batch of {size}</text>')
        parts.append(f'<line class="wait" x1="{start}" y1="26" x2="{start}" y2="50"/>')
        previous = start
    parts.append(text(160, 104, "idle: starts at once", "small"))
    parts.append(text(340, 104, "free again: takes all waiting requests", "small"))
    return svg(720, 120, "A free slot takes every waiting request", "", parts)


PICTURES: dict[str, Callable[[], str]] = {
    "batches.svg": batches,
    "cost.svg": cost,
    "decides.svg": decides,
}


def main() -> None:
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw(), encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
