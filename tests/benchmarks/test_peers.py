"""The comparison with peers is fair: it sees what each library does, and pins what it compares."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.http_peers import model
from benchmarks.peers_in_process import LEAVES, POISON, outcomes

ITEMS = list(range(8))
POISONED = [POISON if item == LEAVES else item for item in ITEMS]


def test_it_sees_that_shoal_does_not_run_what_a_caller_has_left():
    seen = asyncio.run(outcomes("Shoal", ITEMS, LEAVES))
    assert seen == {"outcomes": {"result": 7, "left": 1}, "hanging": 0, "leaver_ran": False}


def test_it_sees_that_a_loader_does():
    pytest.importorskip("aiodataloader")
    seen = asyncio.run(outcomes("aiodataloader", ITEMS, LEAVES))
    assert seen == {"outcomes": {"result": 7, "left": 1}, "hanging": 0, "leaver_ran": True}


def test_it_counts_what_a_poison_item_costs():
    seen = asyncio.run(outcomes("Shoal", POISONED, None))
    assert seen["outcomes"] == {"ValueError": 8}
    assert peers.shown({"200": 4, "500": 3}, hanging=1) == "4 200, 3 500, 1 hang"


def test_each_peer_is_pinned():
    pinned = Path(peers.__file__).with_name("http_peers") / "requirements.txt"
    names = {
        line.partition("==")[0].partition("[")[0]
        for line in pinned.read_text().splitlines()
        if "==" in line
    }
    assert {peer.package for peer in peers.SERVERS if peer.package} <= names
    assert {"aiodataloader", "async-batcher", "batched", "caikit"} <= names


def test_the_model_is_the_same_for_all():
    assert model.predict([1, 2]) == [2, 4]
    assert list(model.generate([1, 2])) == [[f"token {n}"] * 2 for n in range(model.TOKENS)]
    with pytest.raises(ValueError, match="poison"):
        model.predict([1, model.POISON])


def test_the_comparison_starts_by_its_file():
    """The file http.py beside it must not hide Python's own package."""
    script = Path(peers.__file__)
    command = [sys.executable, script, "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout[:6]) == (0, "usage:"), ended.stderr
