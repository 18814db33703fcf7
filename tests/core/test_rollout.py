"""Rollouts: capacity is never reduced, bounds hold, and replicas end as they were asked to."""

from itertools import combinations_with_replacement, product

import pytest

from shoal.core.replicas.life import Decision, Event, LifeState, ReplicaLife, Seen, decide

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


def scene(words: str) -> list[Seen[str]]:
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


def ready_of(replicas: list[Seen[int]]) -> int:
    return sum(seen.state is LifeState.READY for seen in replicas)


def capacity_of(replicas: list[Seen[int]]) -> int:
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


def check(replicas: list[Seen[int]], wanted: int) -> None:
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
    with pytest.raises(AssertionError, match=f"'ready' can't happen .* {ends_as.value}$"):
        life.on("ready")
