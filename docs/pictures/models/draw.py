"""Draws a picture for each model in results.json, which `examples/models/load.py` writes.

    python docs/pictures/models/draw.py

`tests/test_pictures.py` fails while a picture is not what this file draws.
"""

import json
import runpy
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
SHARED = runpy.run_path(str(HERE.parent / "draw.py"))
LEFT, WIDTH, ROW = 130, 400, 26


def draw(result: dict[str, Any]) -> str:
    """A bar for each `max_batch_size`."""
    rates: dict[str, float] = result["rates"]
    text, most = SHARED["text"], max(rates.values())
    parts = []
    for nth, (size, found) in enumerate(rates.items()):
        y = 10 + ROW * nth
        parts.append(text(10, y + 15, "one by one" if size == "1" else f"batches of {size}"))
        kind = "run" if size == "1" else "request"
        length = WIDTH * found / most
        parts.append(
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{ROW - 6}"/>'
        )
        parts.append(text(LEFT + round(length) + 8, y + 15, f"{found:,g} {result['unit']}/s"))
    title = f"{result['title']}: {result['unit']} a second by max_batch_size"
    document: str = SHARED["svg"](680, 14 + ROW * len(rates), title, "", parts)
    return document


PICTURES = {f"{name}.svg": draw(result) for name, result in RESULTS.items()}


def main() -> None:
    for name, picture in PICTURES.items():
        (HERE / name).write_text(picture, encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
