"""Overload: each request that the kernel has accepted gets an answer, and the memory stays flat."""

from __future__ import annotations

import pytest
from hostile_server import SHORT_S
from overload_run import REFUSED, ask_while_blocked, run_overload

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

REQUESTS = 160
CLIENTS = 10


@pytest.mark.parametrize("path", ["/slow", "/busy"])
def test_at_three_times_its_capacity_it_answers_or_refuses_each_request(server, path):
    found = run_overload(server, REQUESTS, path=path)
    assert found.flaws() == []
    assert found.statuses[200] > 0
    assert sum(found.statuses[status] for status in REFUSED) > 0
    after = run_overload(server, REQUESTS // 10, path=path, times_capacity=0.25)
    assert after.flaws() == []
    assert after.statuses.keys() == {200}


def test_what_was_sent_while_the_loop_was_held_is_answered(short_server):
    assert ask_while_blocked(short_server, CLIENTS, 2 * SHORT_S) == []
