"""The latency target of a batcher: what it accepts, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.core.options.records import LatencyTarget


def test_a_target_plans_with_a_part_of_it() -> None:
    assert LatencyTarget(p99_s=0.2, headroom=0.5).planned_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (
            {"p99_s": "fast"},
            TypeError,
            "p99_s must be a number of seconds, such as 0.1, not 'fast'",
        ),
        ({"p99_s": None}, TypeError, "p99_s must be a number of seconds"),
        ({"p99_s": True}, TypeError, "p99_s must be a number of seconds"),
        ({"p99_s": 0}, ValueError, "p99_s must be above 0 seconds, and finite, not 0.0"),
        ({"p99_s": -1}, ValueError, "p99_s must be above 0"),
        ({"p99_s": math.inf}, ValueError, "p99_s must be above 0 seconds, and finite, not inf"),
        ({"p99_s": math.nan}, ValueError, "p99_s must be above 0"),
        (
            {"p99_s": 1, "headroom": 0},
            ValueError,
            "headroom must be above 0 and at most 1, not 0.0",
        ),
        ({"p99_s": 1, "headroom": 1.1}, ValueError, "headroom must be above 0 and at most 1"),
        ({"p99_s": 1, "headroom": math.nan}, ValueError, "headroom must be above 0"),
        ({"p99_s": 1, "headroom": "most"}, TypeError, "headroom must be a number, such as 0.9"),
        ({"p99_s": 1, "growth": 1}, ValueError, "growth must be above 1, and finite, not 1.0"),
        ({"p99_s": 1, "growth": math.inf}, ValueError, "growth must be above 1"),
        ({"p99_s": 1, "growth": [2]}, TypeError, "growth must be a number, such as 4, not [2]"),
    ],
)
def test_what_is_no_target_is_refused_with_what_was_passed(
    given: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind) as refused:
        LatencyTarget(**given)
    assert says in str(refused.value)
