"""Floods: small forms of those of `make fuzz`."""

from __future__ import annotations

import pytest
from floods import FLOODS

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

COUNTS = {"connections": 250, "resets": 1_000, "chunks": 20_000}


@pytest.mark.parametrize("kind", FLOODS)
def test_in_a_flood_others_are_served_and_nothing_is_left(server, kind):
    assert FLOODS[kind](server, COUNTS[kind]).flaws() == []
    assert server.is_up()
