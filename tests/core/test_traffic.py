"""Traffic: the shares are right, shard keys are stable, and errors are explained."""

import hashlib
import math
import random
from collections import Counter

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from shoal.core.traffic import Shadow, Traffic
from shoal.errors import NoSuchName

pytestmark = pytest.mark.slow

REQUESTS = 10_000
NEAR = 0.015  # three times the standard deviation of a share of so many requests
KEYS = [f"customer-{number}" for number in range(REQUESTS)]
SPLITS = [
    {"a": 1.0},
    {"a": 0.5, "b": 0.5},
    {"a": 0.99, "b": 0.01},
    {"a": 0.2, "b": 0.3, "c": 0.5},
    {"a": 0.7, "b": 0.0, "c": 0.3},
    {f"backend-{number}": 0.1 for number in range(10)},
]
WEIGHTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 1000), min_size=1).map(
    lambda parts: {tag: part / (sum(parts.values()) or 1) for tag, part in parts.items()}
)
EXAMPLES = settings(max_examples=50)


def assert_split(chosen: list[str], weights: dict[str, float]) -> None:
    found = {tag: count / len(chosen) for tag, count in Counter(chosen).items()}
    assert found.keys() == {tag for tag, weight in weights.items() if weight}
    for tag, share in found.items():
        assert share == pytest.approx(weights[tag], abs=NEAR)


# Without a shard key


@pytest.mark.parametrize("weights", SPLITS)
def test_requests_and_shard_keys_are_split_by_the_weights(weights: dict[str, float]) -> None:
    traffic = Traffic(weights)
    chance = random.Random(1)
    assert_split([traffic.choose(chance.random()) for _ in range(REQUESTS)], weights)
    assert_split([traffic.choose_for(key) for key in KEYS], weights)


@EXAMPLES
@given(weights=WEIGHTS, point=st.floats(0, 1, exclude_max=True))
@example(weights=dict.fromkeys("abcdefghij", 0.1), point=math.nextafter(1, 0))
@example(weights={"a": 1 / 3, "b": 2 / 3 - 9e-7, "c": 0.0}, point=math.nextafter(1, 0))
@example(weights={"b": 0.0, "a": 1.0}, point=0.0)
def test_each_point_has_a_backend_that_may_be_chosen(weights, point):
    assume(any(weights.values()))
    assert weights[Traffic(weights).choose(point)] > 0


@EXAMPLES
@given(weights=WEIGHTS, point=st.floats(0, 1, exclude_max=True), key=st.text())
def test_the_order_in_which_backends_are_named_does_not_matter(weights, point, key):
    assume(any(weights.values()))
    there, back = Traffic(weights), Traffic(dict(reversed(weights.items())))
    assert there == back
    assert there.choose(point) == back.choose(point)
    assert there.choose_for(key) == back.choose_for(key)


# With one


def test_a_shard_key_goes_to_the_same_backend_in_each_process_and_release() -> None:
    """The digest was taken once; if it changes, every key may move when a server is updated."""
    traffic = Traffic({"a": 0.2, "b": 0.3, "c": 0.5})
    chosen = "".join(traffic.choose_for(key) for key in KEYS[:1000])
    assert chosen[:8] == "accbaaab"
    assert hashlib.sha256(chosen.encode()).hexdigest()[:16] == "f834946fd9218442"


@pytest.mark.parametrize("key", ["", "user 1", "Ω", "\udcff"])
def test_any_text_is_a_key(key: str) -> None:
    assert Traffic({"a": 0.5, "b": 0.5}).choose_for(key) in {"a", "b"}


def moved(before: dict[str, float], after: dict[str, float]) -> float:
    old, new = Traffic(before), Traffic(after)
    return sum(old.choose_for(key) != new.choose_for(key) for key in KEYS) / len(KEYS)


def gained(before: dict[str, float], after: dict[str, float]) -> float:
    """Returns the total variation: the least share that must move."""
    return sum(max(0.0, weight - before.get(tag, 0.0)) for tag, weight in after.items())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 0.9, "b": 0.1}, {"a": 0.5, "b": 0.5}),
        ({"a": 1.0}, {"a": 0.95, "b": 0.05}),
        ({"a": 0.5, "b": 0.5}, {"a": 0.45, "b": 0.45, "c": 0.1}),
        ({"a": 0.25, "b": 0.25, "c": 0.5}, {"a": 0.5, "b": 0.5}),
        ({"a": 0.6, "b": 0.3, "c": 0.1}, {"a": 0.4, "b": 0.2, "c": 0.4}),
        ({"a": 1.0}, {"b": 1.0}),
        ({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5, "c": 0.0}),
    ],
    ids=["two", "a canary", "one is added", "one is taken away", "one is raised", "all", "none"],
)
def test_a_change_of_weights_moves_only_the_share_that_must_move(before, after):
    assert moved(before, after) == pytest.approx(gained(before, after), abs=NEAR)


@EXAMPLES
@given(before=WEIGHTS, after=WEIGHTS, key=st.text())
def test_a_key_moves_only_to_a_backend_that_gained_on_the_one_it_leaves(before, after, key):
    assume(any(before.values()))
    assume(any(after.values()))
    old, new = Traffic(before).choose_for(key), Traffic(after).choose_for(key)
    if old != new:
        assert after[new] * before[old] > before.get(new, 0.0) * after.get(old, 0.0)


# What a user typed


@pytest.mark.parametrize("off", [-0.9e-6, 0.9e-6])
def test_weights_may_miss_1_by_a_rounding_error(off: float) -> None:
    Traffic.checked({"a": 0.5, "b": 0.5 + off}, "ab")
    Traffic.checked(dict.fromkeys("abcdefghij", 0.1), "abcdefghij")


@pytest.mark.parametrize(
    ("weights", "kind", "says"),
    [
        (None, TypeError, "traffic must map backends to weights, not None; write {'embed': 0.9"),
        ([("a", 1)], TypeError, "traffic must map backends to weights"),
        ({1: 1}, TypeError, "traffic must map the names of backends to weights, not 1"),
        ({"a": "all"}, TypeError, "the weight of a must be a number, such as 0.5, not 'all'"),
        ({"a": None}, TypeError, "the weight of a must be a number"),
        ({"a": True}, TypeError, "the weight of a must be a number, such as 0.5, not True"),
        ({"a": 1.5, "b": -0.5}, ValueError, "the weight of b must be at least 0, and finite"),
        ({"a": math.nan}, ValueError, "the weight of a must be at least 0, and finite, not nan"),
        ({"a": math.inf}, ValueError, "the weight of a must be at least 0, and finite, not inf"),
        ({"a": 10**400}, ValueError, "the weight of a must be at least 0, and finite"),
        ({}, ValueError, "traffic must name at least one backend; write {'embed': 1}"),
        ({"a": 60, "b": 40}, ValueError, "must sum to 1, not to 100: {'a': 60, 'b': 40}"),
        ({"a": 0.5, "b": 0.500002}, ValueError, "must sum to 1, not to 1.000002"),
        ({"a": 0.0}, ValueError, "must sum to 1, not to 0"),
    ],
)
def test_what_is_no_traffic_is_refused_with_what_was_passed(weights, kind, says):
    with pytest.raises(kind) as refused:
        Traffic.checked(weights, ["a", "b"])
    assert says in str(refused.value)


@pytest.mark.parametrize(("known", "there"), [(["b", "a"], "a, b"), ([], "none")])
def test_an_unknown_backend_is_refused_with_those_there_are(known: list[str], there: str) -> None:
    says = f"^there is no backend 'new' to send traffic to; there are: {there}$"
    with pytest.raises(NoSuchName, match=says):
        Traffic.checked({"new": 1}, known)


# Shadows


@pytest.mark.parametrize("proportion", [0, 0.01, 0.5, 1])
def test_a_shadow_takes_its_share(proportion: float) -> None:
    shadow = Shadow(proportion)
    chance = random.Random(2)
    taken = sum(shadow.takes(chance.random()) for _ in range(REQUESTS)) / REQUESTS
    assert taken == pytest.approx(proportion, abs=NEAR)
    assert shadow.takes(0.0) == (proportion > 0)
    assert shadow.takes(math.nextafter(1, 0)) == (proportion == 1)


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ("half", TypeError, "must be a number from 0 to 1, not 'half'"),
        (None, TypeError, "must be a number from 0 to 1, not None"),
        (True, TypeError, "must be a number from 0 to 1, not True"),
        (-0.1, ValueError, "must be from 0 to 1, not -0.1"),
        (1.1, ValueError, "must be from 0 to 1, not 1.1"),
        (math.nan, ValueError, "must be from 0 to 1, not nan"),
    ],
)
def test_what_is_no_shadow_is_refused_with_what_was_passed(given, kind, says):
    with pytest.raises(kind) as refused:
        Shadow(given)
    assert says in str(refused.value)
