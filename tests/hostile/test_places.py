"""Places: no client keeps its connection for ever, whatever it does."""

from __future__ import annotations

from functools import cache

import pytest
from held_places import HOLDERS, MOST_MEMORY, hold_places
from hostile_server import LOOPS, SHORT_OPTIONS, SHORT_S

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

EACH = 3
# The longest that any state may last: a stream is given up after one time, its connection after
# another, and the socket lingers for one more. Beyond that a busy machine may be late.
WITHIN_S = 12 * SHORT_S


@pytest.fixture(scope="module")
def held(servers):
    """What became of the places on a server, by its loop: all kinds of clients at once."""

    @cache
    def on(loop):
        server = servers.get(loop, *SHORT_OPTIONS)
        return hold_places(server, list(HOLDERS), EACH, within_s=WITHIN_S, trickle_s=SHORT_S / 6)

    return on


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", list(HOLDERS))
def test_a_place_is_given_back(held, kind, loop):
    assert held(loop).kept[kind] == 0


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_came_when_all_places_were_held_is_served(held, loop):
    assert held(loop).first_s is not None


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_has_a_place_is_served_meanwhile(held, loop):
    assert held(loop).failure == ""
    assert len(held(loop).good_s) > 10


@pytest.mark.parametrize("loop", LOOPS)
def test_held_places_take_little_memory(held, loop):
    assert held(loop).grown < MOST_MEMORY
