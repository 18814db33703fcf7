"""The pages to migrate: the code before is code of the peer, and each page has the same parts."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "how-to"
PAGES = sorted(FOLDER.glob("move-from-*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_BEFORE = [page for page in PAGES if FENCE.findall(page.read_text("utf-8"))[0][0] == "py"]


def name_of(page):
    return page.stem.removeprefix("move-from-")


def test_each_peer_has_its_page():
    wanted = "aiodataloader bentoml caikit litserve mosec ray-serve tensorflow-serving torchserve"
    assert [name_of(page) for page in PAGES] == [*wanted.split(), "triton"]
    assert len(WITH_BEFORE) == 6


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_opens_with_code_and_says_what_its_peer_has(page):
    text = page.read_text("utf-8")
    assert len(text[: text.index("```")].split()) <= 50
    assert re.search(r"^\| .* \| Shoal \|$", text, re.MULTILINE)
    assert "Shoal lacks" in text or "What Ray Serve lacks" in text or "TensorFlow" in text


@pytest.mark.parametrize("page", WITH_BEFORE, ids=name_of)
def test_the_code_before_is_code_of_the_peer(page):
    """It is run where the peer is installed; the other peers need a GPU's image, Java or Rust."""
    before = FENCE.findall(page.read_text("utf-8"))[0][1]
    code = compile(before, str(page), "exec")
    peer = re.search(r"^(?:import|from) (litserve|mosec|aiodataloader)\b", before, re.MULTILINE)
    if peer is not None and importlib.util.find_spec(peer[1]) is not None:
        exec(code, {"__name__": "before"})
