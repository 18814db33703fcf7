"""Checksums: no answer is wrong, none is lost, and the memory is flat."""

from __future__ import annotations

import pytest
from checksum_run import CLIENTS, run_checksums
from hostile_server import serving

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

OTHERS = tuple(kind for kind in CLIENTS if kind != "pipelined")


def test_each_answer_is_that_to_its_own_request(server):
    assert run_checksums(server, 1_200, kinds=OTHERS).flaws() == []


def test_each_of_many_pipelined_requests_is_answered(server):
    assert run_checksums(server, 200, kinds=("pipelined",), answer_s=3.0).flaws() == []


@pytest.mark.parametrize(
    ("plant", "count", "flaw"),
    [("leak", 1_200, "the memory grew"), ("mix-up", 300, "answers were wrong")],
)
def test_a_planted_defect_is_found(tmp_path, plant, count, flaw):
    with serving(tmp_path, plant=plant) as defective:
        found = run_checksums(defective, count, kinds=("kept", "websocket")).flaws()
    assert [one for one in found if flaw in one]
