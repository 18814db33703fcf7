"""The life cycle of a replica: its table is complete, and other events are refused."""

from __future__ import annotations

from collections import deque
from itertools import product
from typing import get_args

import pytest

from shoal.core.replicas.life import TRANSITIONS, Event, LifeState, ReplicaLife

EVENTS: tuple[Event, ...] = get_args(Event)
OVER = {LifeState.ENDED, LifeState.FAILED, LifeState.DIED}


def life_in(state: LifeState) -> ReplicaLife:
    life = ReplicaLife()
    life.state = state
    return life


def reachable(start: LifeState) -> set[LifeState]:
    reached, to_do = {start}, deque([start])
    while to_do:
        new = set(TRANSITIONS[to_do.popleft()].values()) - reached
        reached |= new
        to_do += new
    return reached


def test_the_table_has_every_state_and_event() -> None:
    assert set(TRANSITIONS) == set(LifeState)
    assert {event for row in TRANSITIONS.values() for event in row} == set(EVENTS)


def test_every_state_can_be_reached() -> None:
    assert reachable(LifeState.NEW) == set(LifeState)


@pytest.mark.parametrize("state", LifeState)
def test_every_life_can_end_and_does_not_come_back(state: LifeState) -> None:
    assert reachable(state) & OVER
    if state in OVER:
        assert reachable(state) == {state}


@pytest.mark.parametrize(("state", "event"), list(product(LifeState, EVENTS)))
def test_an_event_moves_on_or_is_refused(state: LifeState, event: Event) -> None:
    life = life_in(state)
    if event in TRANSITIONS[state]:
        assert life.on(event) is life.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(AssertionError, match=f"'{event}' can't happen .* {state.value}$"):
            life.on(event)
        assert life.state is state


@pytest.mark.parametrize("state", LifeState)
def test_only_a_ready_replica_takes_work(state: LifeState) -> None:
    assert life_in(state).takes_work == (state is LifeState.READY)


@pytest.mark.parametrize("state", LifeState)
def test_a_life_is_over_when_it_ended_failed_or_died(state: LifeState) -> None:
    assert life_in(state).is_over == (state in OVER)


@pytest.mark.parametrize(
    ("told", "ends_as"),
    [
        (["ended"], LifeState.FAILED),
        (["start", "ended"], LifeState.FAILED),
        (["start", "ready", "ended"], LifeState.DIED),
        (["start", "ready", "unhealthy", "ended"], LifeState.DIED),
        (["start", "ready", "drain", "ended"], LifeState.DIED),
        (["start", "ready", "drain", "idle", "ended"], LifeState.ENDED),
        (["start", "ready", "stop", "ended"], LifeState.ENDED),
        (["start", "drain", "ended"], LifeState.ENDED),
        (["start", "drain", "ready", "ended"], LifeState.ENDED),
        (["drain"], LifeState.ENDED),
    ],
)
def test_how_a_life_ends_depends_on_what_was_asked(told: list[Event], ends_as: LifeState) -> None:
    life = ReplicaLife()
    for event in told:
        life.on(event)
    assert life.state is ends_as
