"""The options of a request, from its call's options and the user's functions of one item."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from shoal import BatchOptions
from shoal.core.forming.call_options import NO_CALL_OPTIONS, CallOptions, RequestOptionsFactory
from shoal.errors import ItemTooLarge
from shoal.testing import make_request


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
    ("limit_s", "timeout_s", "scope", "deadline", "due"),
    [
        (None, None, math.inf, None, None),
        (5, None, math.inf, 105, 105),
        (5, 2, math.inf, 102, 102),
        (2, 5, math.inf, 102, 102),
        (None, 5, math.inf, 105, 105),
        (None, None, 103, None, 103),
        (5, None, 103, 105, 103),
        (2, None, 103, 102, 102),
        (math.inf, math.inf, math.inf, None, None),
    ],
)
def test_the_earliest_end_counts(limit_s, timeout_s, scope, deadline, due):
    made = options_factory(request_timeout_s=limit_s)
    asked = made.of("an item", CallOptions(timeout_s), 100.0, scope)
    assert (asked.deadline, asked.due) == (deadline, due)


def test_a_waiting_request_gets_new_options_and_keeps_those_of_its_call() -> None:
    request = make_request("abc", arrived_at=1.0)
    before = options_factory(priority_levels=5).of("abc", CallOptions(4.0, {"a": 1}, 5, 2.0), 1.0)
    request.options = before
    before.delayed_at = 3.0
    after = options_factory(priority_levels=3, batch_size_fn=len, bucket_by=str.upper)
    assert after.renew(request) is None
    asked = request.options
    assert asked is not before
    assert (asked.cost, asked.key, asked.priority) == (3, "ABC", 3)
    assert (asked.deadline, asked.due, asked.metadata) == (5.0, 5.0, {"a": 1})
    assert (asked.queue_timeout_s, asked.delayed_at) == (2.0, 3.0)
