"""Devices: who has which, whole or in part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.serving.devices import DeviceLedger, exact_part


def test_a_part_goes_where_the_least_is_left():
    ledger = DeviceLedger(["0", "1"])
    ledger.take("a", 0.5)
    assert ledger.take("b", 0.75) == ("1",)
    assert ledger.take("c", 0.25) == ("1",)
    assert ledger.take("d", 1) is None


@pytest.mark.parametrize(("part", "fit"), [(1 / 3, 3), (0.333333, 3), (0.1, 10), (0.34, 2), (1, 1)])
def test_parts_are_exact(part, fit):
    ledger = DeviceLedger(["0"])
    assert ledger.places(part) == fit
    for number in range(fit):
        assert ledger.take(f"r{number}", part) == ("0",)
    assert ledger.take("more", part) is None


def test_who_has_what_is_shown():
    ledger = DeviceLedger([str(number) for number in range(40)])
    assert ledger.shown() == ""
    ledger.take("a#0", 1)
    ledger.take("b#0", 0.5)
    ledger.take("b#1", 0.25)
    assert ledger.shown() == "0 has a#0; 1 has b#0 (0.5) and b#1 (0.25)"
    assert ledger.parts()["1"] == {"b#0": 0.5, "b#1": 0.25}


@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from("tttr"), st.sampled_from([1, 2, 3, 0.5, 0.25, 1 / 3, 0.7]))),
)
def test_no_device_is_given_out_twice_and_places_are_kept(count, steps):
    ledger = DeviceLedger(map(str, range(count)))
    held = {}
    for number, (step, wanted) in enumerate(steps):
        if step == "r":
            if held:
                ledger.release(held.popitem()[0])
            continue
        places = ledger.places(wanted)
        found = ledger.take(str(number), wanted)
        assert (found is not None) == (places > 0)
        if found is not None:
            assert len(found) == max(1, int(wanted))
            held[str(number)] = wanted
            assert ledger.places(wanted) <= places - 1
        for parts in ledger.parts().values():
            assert sum(map(exact_part, parts.values())) <= 1
    assert {name for name in held if ledger.held_by(name)} == set(held)
    assert ledger.places(1, list(held)) == count
