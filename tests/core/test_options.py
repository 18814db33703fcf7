"""The options: what is accepted, what is refused, and that a record never changes."""

import copy
import dataclasses
import math
import pickle
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from shoal import Batcher, BatchOptions, LatencyTarget, QueuePolicy
from shoal.core.forming.call_options import NO_CALL_OPTIONS, CallOptions, RequestOptionsFactory
from shoal.core.options.options import OPTIONS, OptionKeywords
from shoal.errors import ItemTooLarge
from shoal.testing import make_request


class Index:
    def __index__(self) -> int:
        return 7


def test_the_defaults_are_those_of_the_contract() -> None:
    found = {name: one for name, one in dataclasses.asdict(BatchOptions()).items() if one}
    assert found == {
        "max_batch_size": 10,
        "regather": True,
        "max_concurrent_batches": 1,
        "overload": "reject",
        "padding": "up",
        "priority_levels": 1,
        "priority_aging_s": 10.0,
        "priority_mixing": "merge",
        "order": "arrival",
        "stream_buffer": 16,
        "slow_reader_timeout_s": 10.0,
        "cancel_abandoned": True,
        "graceful_shutdown_timeout_s": 20.0,
    }
    assert BatchOptions().batch_wait_timeout_s == 0.0
    assert BatchOptions().max_queued_requests is None


def test_the_keywords_for_type_checkers_are_the_fields() -> None:
    fields = get_type_hints(BatchOptions)
    keywords = get_type_hints(OptionKeywords)
    assert [field.name for field in dataclasses.fields(BatchOptions)] == list(fields)
    assert keywords.keys() == fields.keys()
    del fields["policy"], keywords["policy"]  # its argument is the record, which comes later
    assert keywords == fields


WHOLE = [
    *("max_batch_size", "max_concurrent_batches", "stream_buffer", "priority_levels"),
    "max_queued_requests",
]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(("given", "kept"), [(1, 1), (64, 64), (3.0, 3), (Index(), 7)])
def test_whole_numbers_are_kept_as_int(name: str, given: Any, kept: int) -> None:
    value = getattr(BatchOptions.of({name: given}), name)
    assert value == kept
    assert type(value) is int


SECONDS = [
    *("batch_wait_timeout_s", "idle_timeout_s", "priority_aging_s", "slow_reader_timeout_s"),
    *("handler_timeout_s", "request_timeout_s", "graceful_shutdown_timeout_s"),
]


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("given", [0, 0.0, 2, 1.5, math.inf])
def test_seconds_are_kept_as_float(name: str, given: float) -> None:
    value = getattr(BatchOptions.of({name: given}), name)
    assert value == given
    assert type(value) is float


SWITCHES = [
    *("cancel_abandoned", "drop_queued_on_shutdown", "isolate_errors", "refuse_late"),
    *("use_scope_deadline", "regather"),
]
SIZES = ["allowed_batch_sizes", "preferred_batch_sizes"]


@pytest.mark.parametrize(
    ("names", "values", "kind", "says"),
    [
        (WHOLE, ["1", 1.5, True, False, math.inf, math.nan, [1]], TypeError, "{}"),
        (["max_batch_size", "stream_buffer", "priority_levels"], [None], TypeError, "{}"),
        (WHOLE[:-1], [0, -1], ValueError, "{} must be at least 1"),
        (WHOLE[-1:], [-1], ValueError, "{} must be at least 0"),
        (SECONDS, ["1", True, [1], 1j], TypeError, "{}"),
        (SECONDS, [-1, -0.001, math.nan, -math.inf], ValueError, "{}"),
        (SWITCHES, [1, 0, "yes", None], TypeError, "{}"),
        (SIZES, [3, "10", 1.5, len], TypeError, r"{} must be some batch sizes, such as \(8, 16"),
        (SIZES, [[1.5, 10], ["1", 10], [True], [None]], TypeError, "{} must be a whole number"),
        (SIZES, [[], [4, 2, 10], [4, 4, 10]], ValueError, "{} must ascend"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_option(names, values, kind, says):
    for name in names:
        for value in values:
            with pytest.raises(kind, match=says.format(name)):
                BatchOptions.of({name: value})


def test_none_means_no_limit_but_for_the_time_that_closing_takes() -> None:
    for name in SECONDS[:-1]:
        assert getattr(BatchOptions.of({name: None}), name) is None
    with pytest.raises(TypeError, match="graceful_shutdown_timeout_s"):
        BatchOptions.of({"graceful_shutdown_timeout_s": None})


CHOICES = {
    "overload": ["reject", "wait", "shed_oldest", "shed_lowest"],
    "padding": ["up", "down", "cost"],
    "order": ["arrival", "deadline"],
    "priority_mixing": ["merge", "isolate"],
}
WHERE_ALL_GO = {"max_queued_requests": 1, "priority_levels": 2, "allowed_batch_sizes": [10]}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_one_of_those_there_are(name: str) -> None:
    *others, last = map(repr, CHOICES[name])
    for given in ("drop", "", None, CHOICES[name][0].upper(), [1]):
        with pytest.raises(ValueError, match=f"{name} must be {', '.join(others)} or {last}, not"):
            BatchOptions.of({name: given})
    for given in CHOICES[name]:
        assert getattr(BatchOptions.of({**WHERE_ALL_GO, name: given}), name) == given


FUNCTIONS = {
    "batch_size_fn": {},
    "bucket_by": {},
    "pad": {"allowed_batch_sizes": [10]},
    "split": {"join": sum, "batch_size_fn": len},
    "join": {"split": divmod, "batch_size_fn": len},
    "policy": {},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_called_can_be_called(name: str) -> None:
    assert getattr(BatchOptions.of({**FUNCTIONS[name], name: print}), name) is print
    assert getattr(BatchOptions.of({name: None}), name) is None
    for given in (3, "len", [len]):
        with pytest.raises(TypeError, match=f"{name} must be a callable or None.*write {name}="):
            BatchOptions.of({**FUNCTIONS[name], name: given})


@pytest.mark.parametrize("given", [0, -1, math.inf, math.nan, "8", True])
def test_the_largest_cost_is_a_finite_number_above_0(given: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_batch_cost must be"):
        BatchOptions(max_batch_cost=given, batch_size_fn=len)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("given", [[2, 4, 10], (2, 4, 10), range(2, 11, 8), (2.0, 10.0), {10: 1}])
def test_sizes_are_kept_as_a_tuple_of_whole_numbers(name: str, given: Any) -> None:
    sizes = getattr(BatchOptions.of({name: given}), name)
    assert sizes == tuple(given)
    assert {type(size) for size in sizes} == {int}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_begin_at_1_and_end_within_a_batch(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        BatchOptions.of({name: [0, 10]})
    with pytest.raises(ValueError, match=f"{name} must not go beyond max_batch_size=10"):
        BatchOptions.of({name: [10, 11]})


def test_the_largest_allowed_size_is_that_of_a_batch() -> None:
    with pytest.raises(ValueError, match="must be max_batch_size=10, not 8"):
        BatchOptions.of({"allowed_batch_sizes": (4, 8)})
    options = BatchOptions.of({"preferred_batch_sizes": (4, 8)})
    assert options.preferred_batch_sizes == (4, 8)
    changes: dict[str, Any] = {"max_batch_size": 6}
    with pytest.raises(ValueError, match="must not go beyond max_batch_size=6"):
        options.changed(changes)


@pytest.mark.parametrize(("levels", "usual"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_the_usual_priority_is_the_middle_one(levels: int, usual: int) -> None:
    assert BatchOptions(priority_levels=levels).usual_priority == usual
    assert BatchOptions(priority_levels=levels, default_priority=1).usual_priority == 1


@pytest.mark.parametrize("given", [0, 4, -1])
def test_there_are_no_other_levels(given: int) -> None:
    match = f"not {given}"
    with pytest.raises(ValueError, match=match):
        BatchOptions(priority_levels=3, default_priority=given)
    with pytest.raises(ValueError, match=match):
        BatchOptions(priority_levels=3, queue_policies={given: QueuePolicy()})
    with pytest.raises(ValueError, match=match):
        BatchOptions(priority_levels=3).checked_priority("priority", given)


@pytest.mark.parametrize("given", ["1", 1.5, True])
def test_a_level_is_a_whole_number(given: Any) -> None:
    with pytest.raises(TypeError, match="default_priority"):
        BatchOptions(priority_levels=3, default_priority=given)
    with pytest.raises(TypeError, match="a level of queue_policies"):
        BatchOptions(priority_levels=3, queue_policies={given: QueuePolicy()})


def test_each_level_has_its_policy_or_the_default_one() -> None:
    first, others = QueuePolicy(timeout_s=1), QueuePolicy(timeout_s=2)
    options = BatchOptions(
        priority_levels=3, queue_policies={1: first}, default_queue_policy=others
    )
    assert [options.queue_policy(level) for level in (1, 2, 3)] == [first, others, others]
    assert BatchOptions().queue_policy(1) is None


@pytest.mark.parametrize("given", [3, [QueuePolicy()], QueuePolicy(), None])
def test_policies_are_given_by_level(given: Any) -> None:
    with pytest.raises(TypeError, match=r"queue_policies must be a mapping, .* QueuePolicy\("):
        BatchOptions(queue_policies=given)


@pytest.mark.parametrize("given", [3, {"timeout_s": 1}, QueuePolicy, LatencyTarget])
def test_a_queue_policy_and_a_latency_target_are_records(given: Any) -> None:
    with pytest.raises(TypeError, match=r"write adaptive=shoal\.LatencyTarget"):
        BatchOptions(adaptive=given)
    with pytest.raises(TypeError, match="must be a QueuePolicy or None, not"):
        BatchOptions(default_queue_policy=given)
    with pytest.raises(TypeError, match="must be a QueuePolicy or None, not"):
        BatchOptions(queue_policies={1: given})


def test_a_queue_policy_is_checked() -> None:
    kept = QueuePolicy(max_queued_requests=2.0, timeout_s=1, batch_wait_timeout_s=3)  # type: ignore[arg-type]
    assert [type(value) for value in dataclasses.astuple(kept)][:2] == [int, float]
    assert (kept.timeout_action, type(kept.batch_wait_timeout_s)) == ("reject", float)
    assert QueuePolicy(batch_wait_timeout_s=None).batch_wait_timeout_s is None
    bad: dict[str, Any] = {"max_queued_requests": 0, "timeout_s": -1, "timeout_action": "drop"}
    for name, value in {**bad, "batch_wait_timeout_s": -1}.items():
        options: dict[str, Any] = {name: value}
        with pytest.raises(ValueError, match=name):
            QueuePolicy(**options)
    for name in ("max_queued_requests", "timeout_s", "batch_wait_timeout_s"):
        wrong: dict[str, Any] = {name: "1"}
        with pytest.raises(TypeError, match=name):
            QueuePolicy(**wrong)


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"p99_s": "fast"}, TypeError, "p99_s must be a number of seconds, such as 0.1, not 'f"),
        ({"p99_s": None}, TypeError, "p99_s must be a number of seconds"),
        ({"p99_s": True}, TypeError, "p99_s must be a number of seconds"),
        ({"p99_s": 0}, ValueError, "p99_s must be above 0 seconds, and finite, not 0.0"),
        ({"p99_s": math.inf}, ValueError, "p99_s must be above 0 seconds, and finite, not inf"),
        ({"p99_s": math.nan}, ValueError, "p99_s must be above 0"),
        ({"p99_s": 1, "headroom": 0}, ValueError, "headroom must be above 0 and at most 1, not 0"),
        ({"p99_s": 1, "headroom": 1.1}, ValueError, "headroom must be above 0 and at most 1"),
        ({"p99_s": 1, "headroom": "most"}, TypeError, "headroom must be a number, such as 0.9"),
        ({"p99_s": 1, "growth": 1}, ValueError, "growth must be above 1, and finite, not 1.0"),
        ({"p99_s": 1, "growth": [2]}, TypeError, "growth must be a number, such as 4, not [2]"),
    ],
)
def test_what_is_no_target_is_refused_with_what_was_passed(given, kind, says):
    with pytest.raises(kind, match=re.escape(says)):
        LatencyTarget(**given)
    assert LatencyTarget(p99_s=0.2, headroom=0.5).planned_s == pytest.approx(0.1)


def test_a_set_of_options_is_frozen_and_compares_by_value() -> None:
    options = BatchOptions(max_batch_size=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.max_batch_size = 4  # type: ignore[misc]
    assert options == BatchOptions(max_batch_size=3)
    assert len({options, BatchOptions(max_batch_size=3)}) == 1
    assert options != BatchOptions(max_batch_size=3, queue_policies={1: QueuePolicy()})


def test_a_set_of_options_can_be_copied_and_sent_to_another_process() -> None:
    options = BatchOptions(queue_policies={1: QueuePolicy(timeout_s=1)}, batch_size_fn=len)
    for other in (copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert other == options
        assert other.queue_policy(1).batch_wait_timeout_s is QueuePolicy().batch_wait_timeout_s


def test_a_change_makes_another_set_and_keeps_the_rest() -> None:
    before = BatchOptions(max_batch_size=3, overload="wait")
    after = before.changed({"max_batch_size": 5, "batch_wait_timeout_s": None})
    assert before == BatchOptions(max_batch_size=3, overload="wait")
    assert after == BatchOptions(max_batch_size=5, overload="wait", batch_wait_timeout_s=None)


def test_an_unknown_option_like_no_other_is_told_which_there_are() -> None:
    with pytest.raises(TypeError, match=r"'xyzzy' is not an option .* there are max_batch_size, "):
        BatchOptions.of({"xyzzy": 1})


def test_the_page_and_the_docstring_name_the_options_that_change_at_once() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "options.md").read_text("utf-8")
    of_page = re.search(r"Some options apply at once in any case: ([^.]*)\.", page)
    of_docstring = re.search(r"These change at\s+once: ([^;]*);", Batcher.configure.__doc__ or "")
    at_once = {name for name, option in OPTIONS.items() if option.at_once}
    for found in (of_page, of_docstring):
        assert found is not None
        assert set(re.findall(r"`(\w+)`", found[1])) == at_once


# The options of a request, from its call's options and the user's functions of one item


def options_factory(**options: Any) -> RequestOptionsFactory:
    return RequestOptionsFactory("a batcher", BatchOptions.of(options))


def cost_of(given: Any) -> float:
    return options_factory(batch_size_fn=lambda _: given).of("an item", NO_CALL_OPTIONS, 0.0).cost


@pytest.mark.parametrize("given", [0, 3, 2.5, True, Fraction(1, 2), Decimal("0.5"), 10])
def test_a_cost_is_any_number_from_0(given: Any) -> None:
    assert cost_of(given) == given


@pytest.mark.parametrize("given", ["3", None, [1], 1j, object()])
def test_what_is_no_number_is_no_cost(given: Any) -> None:
    with pytest.raises(TypeError, match=r"batch_size_fn of a batcher must return a number, not"):
        cost_of(given)


@pytest.mark.parametrize("given", [-1, -0.5, math.nan, math.inf, -math.inf, Decimal("NaN")])
def test_a_cost_is_finite_and_not_negative(given: Any) -> None:
    with pytest.raises(ValueError, match="at least 0 and finite, not"):
        cost_of(given)


@pytest.mark.parametrize("cost", [11, 10.5, 10**400])
def test_an_item_that_is_too_large_is_told_the_bound(cost: float) -> None:
    with pytest.raises(ItemTooLarge, match="max_batch_size=10") as caught:
        cost_of(cost)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("limit_s", "timeout_s", "deadline"),
    [
        (None, None, None),
        (5, None, 105),
        (5, 2, 102),
        (2, 5, 102),
        (None, 5, 105),
        (math.inf, math.inf, None),
    ],
)
def test_the_earliest_end_counts(limit_s, timeout_s, deadline):
    made = options_factory(request_timeout_s=limit_s)
    asked = made.of("an item", CallOptions(timeout_s), 100.0)
    assert asked.deadline == asked.due == deadline


def test_a_waiting_request_gets_new_options_and_keeps_those_of_its_call() -> None:
    request = make_request("abc", arrived_at=1.0)
    before = options_factory(priority_levels=5).of("abc", CallOptions(4.0, {"a": 1}, 5, 2.0), 1.0)
    request.options = before
    before.delayed_at = 3.0
    after = options_factory(priority_levels=3, batch_size_fn=len, bucket_by=str.upper)
    after.renew(request)
    asked = request.options
    assert asked is not before
    assert (asked.cost, asked.key, asked.priority) == (3, "ABC", 3)
    assert (asked.deadline, asked.due, asked.metadata) == (5.0, 5.0, {"a": 1})
    assert (asked.queue_timeout_s, asked.delayed_at) == (2.0, 3.0)
