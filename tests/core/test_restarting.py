"""Restarts: the length of the waits, what resets them, and the circuit breaker."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.replicas.life import Restarts

ALL = 1.0  # the upper end of the random range: the longest wait
EXAMPLES = settings(max_examples=200)


def fail(restarts: Restarts, times: int, now: float = 0.0) -> list[float]:
    """Records failed starts, each at the end of the last wait; returns the waits."""
    waits = []
    for _ in range(times):
        again_at = restarts.failed(now, ALL)
        waits.append(again_at - now)
        now = again_at
    return waits


def test_waits_double_up_to_the_longest() -> None:
    waits = fail(Restarts(), 12)
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert waits[8:] == pytest.approx([25.6, 30.0, 30.0, 30.0])


def test_the_longest_wait_can_be_set() -> None:
    restarts, now = Restarts(), 0.0
    restarts.longest_s = 2.0
    now = sum(fail(restarts, 12))
    assert restarts.failed(now, ALL) == pytest.approx(now + 2.0)
    now += 2.0
    restarts.started(now)
    assert restarts.died(now + 1.0, ALL) == pytest.approx(now + 3.0)


def test_replicas_that_are_started_together_fail_once() -> None:
    together, alone = Restarts(), Restarts()
    for number in range(10):
        together.failed(5.0 + number, ALL, began_at=0.0)
    alone.failed(5.0, ALL, began_at=0.0)
    assert together.next_at == alone.next_at
    assert not together.is_open


def test_a_failure_during_a_wait_does_not_make_it_longer() -> None:
    restarts = Restarts()
    again_at = sum(fail(restarts, 3))
    assert restarts.next_at == pytest.approx(again_at)
    assert restarts.failed(again_at - 0.01, ALL) == pytest.approx(again_at)
    assert restarts.died(again_at - 0.01, ALL, ready_at=again_at - 1) == pytest.approx(again_at)


def test_a_replica_that_dies_soon_waits_longer_from_time_to_time() -> None:
    restarts = Restarts()
    waits, now = [], 0.0
    for _ in range(4):
        restarts.started(now)
        now += 1.0
        again_at = restarts.died(now, ALL)
        waits.append(again_at - now)
        now = again_at
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8])


def test_replicas_that_die_soon_and_in_turn_wait_longer_as_well() -> None:
    """Each has become ready before the other's death, so the deaths are separate failures."""
    restarts = Restarts()
    for number in range(40):
        restarts.died(number * 0.5, ALL, ready_at=number * 0.5 - 5)
    assert restarts.next_at - 40 * 0.5 > 5


@pytest.mark.parametrize("known", [True, False])
def test_the_death_of_a_replica_that_lived_well_is_a_first_failure(known: bool) -> None:
    restarts = Restarts()
    now = sum(fail(restarts, 8))
    restarts.started(now)
    again_at = restarts.died(now + 10.0, ALL, ready_at=now if known else None)
    assert again_at - (now + 10.0) == pytest.approx(0.1)
    restarts.started(again_at)
    assert restarts.died(again_at + 9.9, ALL) - (again_at + 9.9) == pytest.approx(0.2)


def test_a_replica_that_lives_well_shortens_the_wait_of_the_others() -> None:
    restarts = Restarts()
    now = sum(fail(restarts, 8)[:-1])
    assert restarts.next_at > now + 10
    restarts.lived_well(now)
    assert restarts.next_at == pytest.approx(now + 0.1)
    assert restarts.failed(now + 1, ALL) == pytest.approx(now + 1.1)


# Whatever happens

EVENT = st.tuples(
    st.sampled_from(["failed", "died", "started", "lived_well"]),
    st.floats(0, 40),
    st.floats(0, 1, exclude_max=True),
)


@EXAMPLES
@given(events=st.lists(EVENT, max_size=40))
def test_a_wait_ends_and_the_circuit_counts_what_is_in_a_row(events):
    restarts, now, in_a_row = Restarts(), 0.0, 0
    for what, later_s, point in events:
        now += later_s
        if what == "failed":
            in_a_row += now >= restarts.next_at
            assert restarts.failed(now, point) == restarts.next_at
        elif what == "died":
            assert restarts.died(now, point) == restarts.next_at
        elif what == "started":
            restarts.started(now)
            in_a_row = 0
        else:
            restarts.lived_well(now)
        assert restarts.next_at <= now + 30.0
        assert restarts.is_open == (in_a_row >= 3)


@EXAMPLES
@given(failures=st.integers(1, 40), point=st.floats(0, 1, exclude_max=True))
def test_a_wait_is_its_share_of_what_it_could_be(failures: int, point: float) -> None:
    longest, some = Restarts(), Restarts()
    now = sum(fail(longest, failures - 1)) + 100
    fail(some, failures - 1)
    whole = longest.failed(now, ALL) - now
    assert some.failed(now, point) - now == pytest.approx(point * whole, abs=1e-9)
