"""The pages to migrate: each peer has a section, with code of the peer before and after."""

import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "how-to"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^#{1,2} (.*)$", re.MULTILINE)
# The heading of each peer's section, and the page with it.
PEERS = {
    "LitServe": "move-from-other-servers",
    "mosec": "move-from-other-servers",
    "BentoML": "move-from-other-servers",
    "Triton's Python backend": "move-from-other-servers",
    "TorchServe": "move-from-other-servers",
    "TensorFlow Serving's batching": "move-from-other-servers",
    "caikit's Batcher": "move-from-other-servers",
    "Migrate from aiodataloader": "share-equal-calls",
    "Migrate from Ray Serve": "move-from-ray-serve",
}


def section_of(peer):
    """The text below a heading, up to the next peer's."""
    text = (FOLDER / f"{PEERS[peer]}.md").read_text("utf-8")
    start = text.index(f"# {peer}\n")
    ends = [heading.start() for heading in SECTION.finditer(text, start + 1) if heading[1] in PEERS]
    return text[start : min(ends, default=len(text))]


WITH_BEFORE = [peer for peer in PEERS if FENCE.findall(section_of(peer))[0][0] == "py"]


def test_most_peers_have_their_code_before():
    assert set(PEERS) - set(WITH_BEFORE) == {
        "TensorFlow Serving's batching",  # which is in C++
    }


@pytest.mark.parametrize("peer", PEERS)
def test_a_section_opens_with_code_and_says_what_its_peer_has(peer):
    text = section_of(peer)
    assert len(text[: text.index("```")].split()) <= 50
    assert re.search(r"^\| .* \| Shoal \|$", text, re.MULTILINE)
    assert re.search(r"Shoal\s+lacks|What Ray Serve lacks|differences.md#tensorflow", text)


@pytest.mark.parametrize("peer", WITH_BEFORE)
def test_the_code_before_is_code_of_the_peer(peer):
    """It is run where the peer is installed; the other peers need a GPU's image, Java or Rust."""
    before = FENCE.findall(section_of(peer))[0][1]
    code = compile(before, peer, "exec")
    named = re.search(r"^(?:import|from) (litserve|mosec|aiodataloader)\b", before, re.MULTILINE)
    if named is not None and importlib.util.find_spec(named[1]) is not None:
        exec(code, {"__name__": "before"})
