"""Items for load tests of these models, and for `shoal tune --item-from`."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

FILES = [path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
TEXT = "Batches share the fixed cost of a run among all requests that wait for it. " * 3
CHANCE = np.random.default_rng(0)


def source_file() -> bytes:
    return FILES[CHANCE.integers(len(FILES))]


def digit() -> list[float]:
    return [float(ink) for ink in CHANCE.integers(0, 17, 64)]


def patient() -> list[float]:
    return [float(value) for value in CHANCE.normal(0, 0.05, 10)]


def sentence() -> str:
    return TEXT[: CHANCE.integers(20, 200)]


def prompt() -> Any:
    from examples.models.chat import Prompt

    return Prompt(sentence(), max_tokens=int(CHANCE.integers(8, 64)))


def line() -> np.ndarray[Any, Any]:
    return np.asarray(drawn([f"Total {CHANCE.integers(1000, 9999)} EUR"]))


def page() -> bytes:
    """A receipt of eight lines, as a PNG."""
    content = io.BytesIO()
    lines = [f"{nth} coffee, {CHANCE.integers(2, 9)}.50 EUR" for nth in range(8)]
    drawn(lines).save(content, "PNG")
    return content.getvalue()


def drawn(lines: list[str]) -> "Image":
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (320, 48 * len(lines)), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(28)
    for nth, text in enumerate(lines):
        pen.text((8, 8 + 48 * nth), text, fill="black", font=font)
    return picture
