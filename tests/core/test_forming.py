"""The queue and its rules, compared with a simple model, without an event loop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from core.queue_machine import QUICK, QueueMachine
from core.queue_options import FAMILIES

pytestmark = pytest.mark.slow

MEASURED = st.fixed_dictionaries(
    {}, optional={1: st.just(1.0), 2: st.just(1.0), 3: st.just(4.0), 4: st.sampled_from([1.5, 8.0])}
)


def machine(name: str) -> Any:
    made = type(f"{name}Machine", (QueueMachine,), {"some_options": FAMILIES[name], "taken": 0})
    if name == "AllowedSizes":
        made.measured = MEASURED

    class Test(made.TestCase):
        settings = QUICK

        def runTest(self) -> None:
            super().runTest()
            assert made.taken  # otherwise nothing was tested

    return Test


TestSizeOrWait = machine("SizeOrWait")
TestCosts = machine("Costs")
TestUntilIdle = machine("UntilIdle")
TestLevels = machine("Levels")
TestWindowsByLevel = machine("WindowsByLevel")
TestDelays = machine("Delays")
TestEarliestDeadline = machine("EarliestDeadline")
TestAllowedSizes = machine("AllowedSizes")
TestPreferredSizes = machine("PreferredSizes")
TestBuckets = machine("Buckets")
TestBucketsUntilIdle = machine("BucketsUntilIdle")
TestBucketsByRank = machine("BucketsByRank")
TestBucketsOfSizes = machine("BucketsOfSizes")
TestLevelsApart = machine("LevelsApart")
TestAnything = machine("Anything")
