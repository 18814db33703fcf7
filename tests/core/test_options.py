"""The options: what is taken, what is refused, and that a set of them never changes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_type_hints

import pytest

from shoal import BatchOptions
from shoal.core.option_keywords import OptionKeywords


class Index:
    def __index__(self) -> int:
        return 7


def test_the_defaults_are_those_of_the_contract() -> None:
    assert dataclasses.asdict(BatchOptions()) == {
        "max_batch_size": 10,
        "batch_wait_timeout_s": 0.0,
        "max_concurrent_batches": 1,
        "max_queued_requests": None,
        "overload": "reject",
        "stream_buffer": 16,
        "slow_reader_timeout_s": 10.0,
        "cancel_abandoned": True,
        "handler_timeout_s": None,
        "request_timeout_s": None,
        "isolate_errors": False,
        "graceful_shutdown_timeout_s": 20.0,
    }


def test_the_keywords_for_type_checkers_are_the_fields() -> None:
    fields = get_type_hints(BatchOptions)
    assert get_type_hints(OptionKeywords) == fields
    assert [field.name for field in dataclasses.fields(BatchOptions)] == list(fields)


WHOLE = ["max_batch_size", "max_concurrent_batches", "stream_buffer", "max_queued_requests"]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(("given", "kept"), [(1, 1), (64, 64), (3.0, 3), (Index(), 7)])
def test_whole_numbers_are_kept_as_int(name: str, given: Any, kept: int) -> None:
    value = getattr(BatchOptions.of({name: given}), name)
    assert value == kept
    assert type(value) is int


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("given", ["1", 1.5, True, False, math.inf, math.nan, [1]])
def test_what_is_no_whole_number_is_a_type_error(name: str, given: Any) -> None:
    with pytest.raises(TypeError, match=name):
        BatchOptions.of({name: given})


@pytest.mark.parametrize("name", WHOLE[:3])
def test_none_is_no_whole_number_either(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        BatchOptions.of({name: None})


@pytest.mark.parametrize(("name", "least"), [(name, 1) for name in WHOLE[:3]] + [(WHOLE[3], 0)])
def test_whole_numbers_have_a_least_value(name: str, least: int) -> None:
    assert getattr(BatchOptions.of({name: least}), name) == least
    with pytest.raises(ValueError, match=f"{name} must be at least {least}"):
        BatchOptions.of({name: least - 1})


SECONDS = [
    "batch_wait_timeout_s",
    "slow_reader_timeout_s",
    "handler_timeout_s",
    "request_timeout_s",
    "graceful_shutdown_timeout_s",
]


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("given", [0, 0.0, 2, 1.5, math.inf])
def test_seconds_are_kept_as_float(name: str, given: float) -> None:
    value = getattr(BatchOptions.of({name: given}), name)
    assert value == given
    assert type(value) is float


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("given", ["1", True, [1], 1j])
def test_what_is_no_number_of_seconds_is_a_type_error(name: str, given: Any) -> None:
    with pytest.raises(TypeError, match=name):
        BatchOptions.of({name: given})


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("given", [-1, -0.001, math.nan, -math.inf])
def test_seconds_are_not_negative(name: str, given: float) -> None:
    with pytest.raises(ValueError, match=name):
        BatchOptions.of({name: given})


def test_none_means_no_limit_but_for_the_time_that_closing_takes() -> None:
    for name in SECONDS[:-1]:
        assert getattr(BatchOptions.of({name: None}), name) is None
    with pytest.raises(TypeError, match="graceful_shutdown_timeout_s"):
        BatchOptions.of({"graceful_shutdown_timeout_s": None})


@pytest.mark.parametrize("name", ["cancel_abandoned", "isolate_errors"])
@pytest.mark.parametrize("given", [1, 0, "yes", None])
def test_a_switch_is_true_or_false(name: str, given: Any) -> None:
    with pytest.raises(TypeError, match=name):
        BatchOptions.of({name: given})


@pytest.mark.parametrize("given", ["drop", "", None, "REJECT"])
def test_overload_is_one_of_the_known_rules(given: Any) -> None:
    with pytest.raises(ValueError, match="'reject' or 'wait'"):
        BatchOptions.of({"overload": given})


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(TypeError, match=r"'max_batchsize' is not an option.*max_batch_size"):
        BatchOptions.of({"max_batchsize": 3})
    with pytest.raises(TypeError, match="'wait' is not an option"):
        BatchOptions().changed({"wait": 1})


def test_a_set_of_options_is_frozen_and_compares_by_value() -> None:
    options = BatchOptions(max_batch_size=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.max_batch_size = 4  # type: ignore[misc]
    assert options == BatchOptions(max_batch_size=3)
    assert len({options, BatchOptions(max_batch_size=3)}) == 1


def test_a_change_makes_another_set_and_keeps_the_rest() -> None:
    before = BatchOptions(max_batch_size=3, overload="wait")
    after = before.changed({"max_batch_size": 5, "batch_wait_timeout_s": None})
    assert before == BatchOptions(max_batch_size=3, overload="wait")
    assert after == BatchOptions(max_batch_size=5, overload="wait", batch_wait_timeout_s=None)


@pytest.mark.parametrize("changes", [{"max_batch_size": 0}, {"max_batch_size": 2, "overload": "x"}])
def test_a_change_is_checked_as_a_whole(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        BatchOptions().changed(changes)
