"""Draws which time-out applies at which stage of a request: reference/timeouts.svg.

    python docs/timeouts.py

`tests/test_pictures.py` fails while the picture is not what this draws.
"""

from html import escape
from pathlib import Path

PICTURE = Path(__file__).parent / "reference" / "timeouts.svg"

STAGES = ("connect", "head", "body", "queue", "run", "response")

# The name of each time-out, its default, and the first and the last stage that it limits.
SPANS = (
    ("client or proxy in front", "its own", "connect", "response"),
    ("keep_alive_timeout_s", "5 s", "connect", "connect"),
    ("head_timeout_s", "10 s", "head", "head"),
    ("body_timeout_s", "10 s per 16 KiB", "body", "body"),
    ("answer_timeout_s, request_timeout_s", "60 s, none", "queue", "run"),
    ("QueuePolicy.timeout_s", "none", "queue", "queue"),
    ("batch_wait_timeout_s", "0", "queue", "queue"),
    ("handler_timeout_s", "none", "run", "run"),
    ("slow_reader_timeout_s (streams)", "10 s", "run", "response"),
    ("send_timeout_s", "10 s per 256 KiB", "response", "response"),
)

# As wide as a telephone, so that the text is legible there.
WIDTH, LEFT, TOP, ROW, BAR = 380, 10, 40, 36, 12
STYLE = """
.back { fill: #fff }
text { font: 12px system-ui, sans-serif; fill: #1f2933 }
.stage { font-weight: 600; text-anchor: middle; font-size: 11px }
.default { fill: #52606d; font-size: 11px; text-anchor: end }
.bar { fill: #8fbbe0 }
line { stroke: #d0d7de }
"""


def main() -> None:
    PICTURE.write_text(picture(), encoding="utf-8")
    print(f"wrote {PICTURE}")


def picture() -> str:
    """The picture as SVG."""
    step = (WIDTH - 2 * LEFT) / len(STAGES)
    height = TOP + ROW * len(SPANS) + 6
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">'
        ),
        "<title>The stages of a request, and the time-outs that limit them</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}" rx="6"/>',
    ]
    for number, stage in enumerate(STAGES):
        x = LEFT + step * number
        parts.append(f'<text class="stage" x="{x + step / 2:.0f}" y="22">{stage}</text>')
        if number:
            parts.append(f'<line x1="{x:.0f}" y1="30" x2="{x:.0f}" y2="{height - 8}"/>')
    for number, (name, default, first, last) in enumerate(SPANS):
        y = TOP + ROW * number
        x = LEFT + step * STAGES.index(first)
        end = LEFT + step * (STAGES.index(last) + 1)
        parts += [
            f'<text x="{LEFT}" y="{y + 12}">{escape(name)}</text>',
            f'<text class="default" x="{WIDTH - LEFT}" y="{y + 12}">{escape(default)}</text>',
            (
                f'<rect class="bar" x="{x + 2:.0f}" y="{y + 17}" width="{end - x - 4:.0f}" '
                f'height="{BAR}" rx="3"/>'
            ),
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    main()
