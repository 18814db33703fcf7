"""Which replica a shard key prefers, and how far the loads of replicas may differ for it."""

from collections import Counter

import pytest

from shoal.core.replicas.members import Member, Members

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


def test_each_replica_is_the_home_of_its_share_of_the_keys() -> None:
    counted = Counter(homes(members_of("a", "b", "c")).values())
    assert all(900 < count < 1100 for count in counted.values())


def test_a_new_replica_takes_its_share_and_no_other_key_moves() -> None:
    members = members_of("a", "b", "c")
    before = homes(members)
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
    assert members.holds(home, waiting, waiting, 1, factor) is holds


def test_the_load_of_the_others_allows_a_home_more() -> None:
    members = members_of("a", "b", slots=2)
    home, other = members
    members.begin(home, 3)
    members.begin(home, 3)
    assert not members.holds(home, 2, 2, 1, 1.25)
    members.begin(other, 4)
    assert members.holds(home, 2, 2, 1, 1.25)


def test_a_batch_does_not_wait_by_itself_where_no_replica_has_room() -> None:
    members = members_of("a", "b")
    home, other = members
    members.begin(home, 1)
    members.begin(other, 1)
    assert not members.holds(home, 1, 1, 1, 1000)
