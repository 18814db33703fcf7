"""Rollouts: capacity is never reduced, bounds hold, and replicas end as they were asked to."""

import math
from collections import Counter
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.policies.homes import Homes
from shoal.core.replicas.life import Decision, Event, LifeState, ReplicaLife, Restarts, Seen, decide
from shoal.core.replicas.members import Member, Members
from shoal.testing import make_request

VERSION = 7
STATES = {
    "n": LifeState.NEW,
    "s": LifeState.STARTING,
    "r": LifeState.READY,
    "d": LifeState.DRAINING,
    "x": LifeState.STOPPING,
    "e": LifeState.ENDED,
    "f": LifeState.FAILED,
    "k": LifeState.DIED,
}
CAPACITY = {LifeState.NEW, LifeState.STARTING, LifeState.READY}


def scene(words: str) -> list[Seen]:
    """Parses a scene: ``"a:r a2:r3"`` is two ready replicas, the second one with three requests.

    Upper-case names are of the wanted version, lower-case ones of an older one.
    """
    seen = []
    for word in words.split():
        name, _, (state, *ongoing) = word.partition(":")
        version = VERSION if name.isupper() else VERSION - 1
        seen.append(Seen(name, version, STATES[state], int("".join(ongoing) or 0)))
    return seen


@pytest.mark.parametrize(
    ("replicas", "wanted", "start", "drain"),
    [
        # scaling up
        pytest.param("", 0, 0, "", id="none is wanted and there is none"),
        pytest.param("", 5, 5, "", id="all that are missing start at once"),
        pytest.param("A:r B:s", 5, 3, "", id="those that start are counted"),
        pytest.param("A:r B:n", 2, 0, "", id="those that wait to be started, too"),
        pytest.param("A:d B:x C:r", 2, 1, "", id="those that leave are not"),
        pytest.param("A:e B:f C:k", 2, 2, "", id="nor those that are over"),
        pytest.param("A:r B:r C:r", 3, 0, "", id="all is as it should be"),
        # scaling down
        pytest.param("A:r9 B:r1 C:r5", 2, 0, "B", id="the least busy one goes"),
        pytest.param("A:r1 B:r1 C:r1", 1, 0, "A B", id="of equals the oldest ones go"),
        pytest.param("A:r B:s C:n", 1, 0, "C B", id="before it those that are not ready"),
        pytest.param("A:r9 b:r9 C:r0", 2, 0, "b", id="before it those of an older version"),
        pytest.param("A:r b:r C:d d:x", 0, 0, "b A", id="all go when none is wanted"),
        pytest.param("A:s b:s C:n d:n", 0, 0, "b d C A", id="also those that are not ready"),
        pytest.param("A:s B:s C:r", 2, 0, "B", id="one that is ready is kept"),
        # replacing
        pytest.param("a:r b:r c:r", 3, 1, "", id="one starts beside the old ones"),
        pytest.param("a:r b:r c:r D:s", 3, 0, "", id="they stay until it is ready"),
        pytest.param("a:r2 b:r1 c:r3 D:r", 3, 1, "b", id="then one goes and the next starts"),
        pytest.param("a:r b:d D:r E:s", 2, 0, "", id="one that drains is not waited for"),
        pytest.param("a:r", 1, 1, "", id="one alone is replaced by a second"),
        pytest.param("a:r B:r", 1, 0, "a", id="which takes its place"),
        pytest.param("a:s b:n", 2, 2, "a b", id="old ones that are not ready are of no use"),
        pytest.param("a:r b:r", 4, 3, "", id="growing makes room for several"),
        pytest.param("a:r b:r c:r d:r", 2, 1, "a b", id="shrinking goes on at once"),
        pytest.param("a:r b:r C:s D:s E:s", 2, 0, "E D", id="shrinking gives up starts"),
        pytest.param("a:r", 3, 3, "", id="those that died are made up for at once"),
    ],
)
def test_a_scene_has_its_decision(replicas: str, wanted: int, start: int, drain: str) -> None:
    assert decide(scene(replicas), wanted, VERSION) == Decision(start, tuple(drain.split()))


def test_any_other_version_is_to_be_replaced() -> None:
    seen = [Seen(0, -1, LifeState.READY, 0), Seen(1, VERSION + 1, LifeState.READY, 0)]
    assert decide(seen, 2, VERSION) == Decision(1, ())


@pytest.mark.parametrize(
    ("replicas", "wanted", "places", "start", "drain"),
    [
        pytest.param("a:r b:r", 2, 1, 1, "", id="with a free place one starts beside the old ones"),
        pytest.param("a:r1 b:r", 2, 0, 0, "b", id="without one the least busy one makes room"),
        pytest.param("a:r b:d", 2, 0, 0, "", id="it is waited for"),
        pytest.param("a:r b:e", 2, 0, 0, "", id="until its place is free"),
        pytest.param("a:r", 2, 1, 1, "", id="which is then taken"),
        pytest.param("a:r B:s", 2, 0, 0, "", id="the others stay until that one is ready"),
        pytest.param("a:r B:r", 2, 0, 0, "a", id="then the next one makes room"),
        pytest.param("a:r", 1, 0, 0, "a", id="so does the only one"),
        pytest.param("A:r B:r", 4, 1, 2, "", id="a start that finds no place says so"),
        pytest.param("A:r B:k", 4, 0, 0, "", id="but not while one that died leaves its place"),
        pytest.param("A:r b:n", 2, 0, 0, "b", id="nor while one is to be drained anyway"),
        pytest.param("a:r b:r", 4, 2, 2, "", id="as many start as there are places"),
    ],
)
@pytest.mark.parametrize("keeps_ready", [False, True])
def test_places_bound_what_is_started(replicas, wanted, places, start, drain, keeps_ready):
    decision = decide(scene(replicas), wanted, VERSION, keeps_ready=keeps_ready, places=places)
    assert decision == Decision(start, tuple(drain.split()))


@pytest.mark.parametrize("keeps_ready", [False, True])
@pytest.mark.parametrize(("wanted", "devices"), [(1, 1), (4, 4), (4, 5), (3, 6)])
def test_an_update_ends_with_no_more_devices_than_there_are(wanted, devices, keeps_ready):
    replicas = [Seen(number, VERSION - 1, LifeState.READY, 0) for number in range(wanted)]
    fewest, steps = wanted, 0
    while {seen.version for seen in replicas} != {VERSION} or len(replicas) != wanted:
        steps += 1
        assert steps < 100
        places = devices - len(replicas)
        decision = decide(replicas, wanted, VERSION, keeps_ready=keeps_ready, places=places)
        is_done = decision == Decision(0, ()) and not any(
            seen.state is LifeState.STARTING for seen in replicas
        )
        if is_done and keeps_ready:
            keeps_ready = False  # the change has succeeded
            continue
        new = [Seen(100 * steps + n, VERSION, LifeState.STARTING, 0) for n in range(decision.start)]
        replicas = [seen for seen in replicas if seen.id not in decision.drain] + new
        assert len(replicas) <= devices
        fewest = min(fewest, ready_of(replicas))
        replicas = [Seen(seen.id, seen.version, LifeState.READY, 0) for seen in replicas]
    assert fewest == (wanted if devices > wanted else wanted - 1)


def ready_of(replicas: list[Seen]) -> int:
    return sum(seen.state is LifeState.READY for seen in replicas)


def capacity_of(replicas: list[Seen]) -> int:
    return sum(seen.state in CAPACITY for seen in replicas)


def test_every_small_scene_keeps_the_rules() -> None:
    """Checks all scenes of up to five replicas."""
    kinds = list(product((VERSION, VERSION - 1), ["s", "r", "d"]))
    for size in range(6):
        for kinds_of_all in combinations_with_replacement(kinds, size):
            replicas = [
                Seen(number, version, STATES[letter], number % 2)
                for number, (version, letter) in enumerate(kinds_of_all)
            ]
            for wanted in range(6):
                check(replicas, wanted)


def check(replicas: list[Seen], wanted: int) -> None:
    decision = decide(replicas, wanted, VERSION)
    gone = set(decision.drain)
    assert len(gone) == len(decision.drain)
    staying = [seen for seen in replicas if seen.id not in gone]
    assert all(replicas[number].state in CAPACITY for number in gone)
    assert decision.start >= 0
    assert ready_of(staying) == min(wanted, ready_of(replicas))
    # Ready ones of an older version may be as many as wanted, beside those that replace them.
    assert capacity_of(staying) + decision.start <= wanted + 1
    of_version = [seen for seen in staying if seen.version == VERSION]
    assert capacity_of(of_version) + decision.start <= wanted
    old = [seen for seen in staying if seen.version != VERSION]
    assert capacity_of(old) == ready_of(old)
    if not any(seen.version == VERSION for seen in replicas if seen.id in gone):
        assert capacity_of(of_version) + decision.start >= min(wanted, 1)
    # It is all done at once: once carried out, there is nothing more to do.
    started = [Seen(number + 100, VERSION, LifeState.NEW, 0) for number in range(decision.start)]
    assert decide([*staying, *started], wanted, VERSION) == Decision(0, ())


@pytest.mark.parametrize(
    ("told", "ends_as"),
    [
        (["ended"], LifeState.FAILED),
        (["start", "ended"], LifeState.FAILED),
        (["start", "ready", "ended"], LifeState.DIED),
        (["start", "ready", "unhealthy", "ended"], LifeState.DIED),
        (["start", "ready", "drain", "ended"], LifeState.DIED),
        (["start", "ready", "drain", "stop", "ended"], LifeState.ENDED),
        (["start", "drain", "ended"], LifeState.ENDED),
        (["drain"], LifeState.ENDED),
    ],
)
def test_how_a_life_ends_depends_on_what_was_asked(told: list[Event], ends_as: LifeState) -> None:
    life = ReplicaLife()
    for event in told:
        life.on(event)
    assert life.state is ends_as
    with pytest.raises(AssertionError, match=f"'ready' can't happen .* {ends_as.value}$"):
        life.on("ready")


# Restarts: the length of the waits, what resets them, and the circuit breaker


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


# Which replica a shard key prefers, and how far the loads of replicas may differ for it


KEYS = [f"user-{number}" for number in range(3000)]


def members_of(*names: str, slots: int = 1) -> Members[str]:
    members: Members[str] = Members()
    for name in names:
        members.add(Member(name, name, slots))
    return members


def homes(members: Members[str]) -> dict[str, str]:
    return {key: home.name for key in KEYS if (home := members.home(key)) is not None}


def named(members: Members[str], name: str) -> Member[str]:
    return next(member for member in members if member.name == name)


def test_each_replica_is_the_home_of_its_share_of_the_keys_and_a_new_one_moves_no_other():
    members = members_of("a", "b", "c")
    before = homes(members)
    assert all(900 < count < 1100 for count in Counter(before.values()).values())
    members.add(Member("d", "d", 1))
    after = homes(members)
    moved = {key for key in KEYS if before[key] != after[key]}
    assert {after[key] for key in moved} == {"d"}
    assert 650 < len(moved) < 850


def test_the_keys_of_a_replica_that_has_ended_spread_over_the_others() -> None:
    members = members_of("a", "b", "c")
    before = homes(members)
    members.discard(named(members, "b"))
    after = homes(members)
    assert all(after[key] == before[key] for key in KEYS if before[key] != "b")
    spread = Counter(after[key] for key in KEYS if before[key] == "b")
    assert min(spread["a"], spread["c"]) > 400


def test_the_order_of_replicas_and_their_use_do_not_matter() -> None:
    members = members_of("a", "b", "c")
    members.begin(named(members, "a"), 1)
    assert homes(members) == homes(members_of("c", "b", "a"))


def test_no_key_has_a_home_without_replicas() -> None:
    assert members_of().home("user-1") is None


def test_half_a_surrogate_pair_is_a_key() -> None:
    assert members_of("a", "b").home("\ud800") is not None


def test_a_batch_goes_to_its_home_and_then_always_to_the_same_other() -> None:
    members = members_of("a", "b", "c", "d")
    home = members.home("user-1")
    assert home is not None
    assert members.choose(1, home) is home
    members.begin(home, 1)
    second = members.choose(1, home)
    assert second is not None
    assert second is not home
    for other in [*members]:
        if other not in (home, second):
            members.begin(other, 1)
            members.end(other, 1)
    assert members.choose(1, home) is second


def test_without_a_home_the_least_busy_replica_is_chosen() -> None:
    members = members_of("a", "b", slots=2)
    members.begin(named(members, "a"), 1)
    chosen = members.choose(1)
    assert chosen is not None
    assert chosen.name == "b"


def is_held(members, home, waiting, factor):
    """Says whether a batch waits for its home while so many requests do."""
    homes = Homes(factor, 1, members)
    request = make_request()
    request.options.home = home
    homes.count(request, waiting)
    return homes.held_until(request, 0.0) == math.inf


@pytest.mark.parametrize(
    ("running", "waiting", "factor", "holds"),
    [
        (1, 2, 1.5, True),  # its load is 3, and the bound 1.5 * 3 / 2, rounded up to 3
        (1, 3, 1.5, False),  # its load is 4, and the bound 3
        (4, 4, 2, True),
        (4, 400, 2, True),  # half of all, which the other replica never has
        (4, 400, 1000, True),
        (4, 4, 1, False),
    ],
)
def test_a_batch_waits_for_its_home_up_to_the_load_factor(running, waiting, factor, holds):
    members = members_of("a", "b")
    home = named(members, "a")
    members.begin(home, running)
    assert is_held(members, home, waiting, factor) is holds


def test_the_load_of_the_others_allows_a_home_more() -> None:
    members = members_of("a", "b", slots=2)
    home, other = members
    members.begin(home, 3)
    members.begin(home, 3)
    assert not is_held(members, home, 2, 1.25)
    members.begin(other, 4)
    assert is_held(members, home, 2, 1.25)


def test_a_batch_does_not_wait_by_itself_where_no_replica_has_room() -> None:
    members = members_of("a", "b")
    home, other = members
    members.begin(home, 1)
    members.begin(other, 1)
    assert not is_held(members, home, 1, 1000)
