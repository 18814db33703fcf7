"""For how long a slot waits at most for the callers of the last batch."""

from __future__ import annotations

import pytest

from core.returning_callers import Rounds


def test_it_waits_for_a_quarter_more_than_the_second_slowest_round():
    rounds = Rounds()
    for nth in range(24):
        slow_s = {0: 0.05, 1: 0.03}.get(nth % 8, 0.02)
        rounds.ended(4, slow_s / 4, slow_s / 3, slow_s / 2, slow_s)
    assert rounds.missing() == 4
    assert rounds.wait_s() == pytest.approx(1.25 * 0.03, rel=0.01)


def test_the_last_few_of_a_round_are_not_waited_for():
    rounds = Rounds()
    for _ in range(24):
        rounds.ended(40, *[0.02] * 38, 0.3, 0.3)
    assert rounds.wait_s() == pytest.approx(1.25 * 0.02, rel=0.01)


@pytest.mark.parametrize(("back_s", "waits_s"), [(0.3, 0.375), (0.39, 0.4), (0.41, 0)])
def test_it_waits_for_no_longer_than_the_fixed_part_of_a_run(back_s, waits_s):
    rounds = Rounds()
    assert rounds.model.fixed_s() == pytest.approx(0.4)
    for _ in range(24):
        rounds.ended(8, *[back_s - 0.001 * nth for nth in range(8)])
    assert rounds.missing() == (8 if waits_s else 0)
    if waits_s:
        assert rounds.wait_s() == pytest.approx(waits_s, rel=0.01)
