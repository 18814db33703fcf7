"""Requests: the table of states, and what a handler may read."""

from collections import deque

import pytest

from shoal.core.request import TRANSITIONS, Request, RequestOptions, State

ENDS = {State.FINISHED, State.FAILED, State.DECLINED, State.CANCELLED}


def test_the_ends_are_final_and_nothing_else_is() -> None:
    assert {state for state in State if not TRANSITIONS[state]} == ENDS


def test_every_state_can_be_reached_and_leads_to_an_end() -> None:
    reached: set[State] = set()
    to_do = deque[State | None]([None])
    while to_do:
        new = TRANSITIONS[to_do.popleft()] - reached
        reached |= new
        to_do += new
    assert reached == set(State)


def request(options: RequestOptions | None = None, state: State = State.QUEUED) -> Request:
    made = Request()
    made.item = "an item"
    made.options = options
    made.state = state
    return made


def test_a_request_shows_the_options_of_its_call_if_it_has_any() -> None:
    assert (request().deadline, request().metadata) == (None, {})
    shown = request(RequestOptions(12.5, {"user": 7}))
    assert shown.deadline == 12.5
    assert shown.metadata == {"user": 7}
    assert request(RequestOptions()).metadata == {}
    told = request(RequestOptions(priority=3, cost=2.5, key=("a", 1)))
    assert (told.priority, told.cost, told.key) == (3, 2.5, ("a", 1))


@pytest.mark.parametrize("state", State)
def test_a_request_is_cancelled_when_nobody_waits_for_more(state: State) -> None:
    assert request(state=state).cancelled == (state in ENDS - {State.FINISHED})


def test_its_text_shows_the_state_and_the_start_of_the_item() -> None:
    assert repr(request()) == "<Request queued item='an item'>"
    long = request()
    long.item = "x" * 1000
    assert len(repr(long)) < 100
