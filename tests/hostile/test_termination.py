"""The end: every request that the server took is answered, or its client is told otherwise."""

from __future__ import annotations

import pytest
from hostile_server import serving
from termination_run import run_termination

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


@pytest.mark.parametrize(("loop", "seed"), [("trio", 2), ("asyncio", 3)])
def test_a_signal_under_load_loses_no_request(tmp_path, loop, seed):
    with serving(tmp_path, loop=loop) as server:
        found = run_termination(server, seed=seed)
    assert found.flaws() == []
    assert len(found.began) > 10
