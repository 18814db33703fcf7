"""The queue and its rules, compared with a simple model, without an event loop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from core.queue_machine import QUICK, QueueMachine
from core.queue_options import FAMILIES

pytestmark = pytest.mark.slow

MEASURED = st.fixed_dictionaries(
    {}, optional={1: st.just(1.0), 2: st.just(1.0), 3: st.just(4.0), 4: st.sampled_from([1.5, 8.0])}
)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_queue_does_what_the_model_says(family: str) -> None:
    made: Any = type(f"{family}Machine", (QueueMachine,), {"some_options": FAMILIES[family]})
    if family == "AllowedSizes":
        made.measured = MEASURED
    run_state_machine_as_test(made, settings=QUICK)
    assert made.taken  # otherwise nothing was tested
