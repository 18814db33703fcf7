"""Calls that are bound by a signature alone, where the function is elsewhere or takes one item."""

import inspect

import pytest

from shoal.batching.handlers.binding import Binding


def of_one(item, /): ...
def of_one_by_name(*, item): ...
def with_default(item=7): ...
def of_two(text, plus=1): ...
def mixed(first, /, second, *, third=3): ...
def of_none(): ...


def called(binding, *args, **kwargs):
    """What a function of one item gets for a call."""
    return binding.columns([binding.item(args, kwargs)])


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "passed"),
    [
        (of_one, (5,), {}, ([5], {})),
        (of_one_by_name, (), {"item": 5}, ([], {"item": 5})),
        (with_default, (), {}, ([7], {})),
        (with_default, (), {"item": 5}, ([5], {})),
        (of_two, ("a",), {}, (["a", 1], {})),
        (of_two, ("a",), {"plus": 2}, (["a", 2], {})),
        (of_two, (), {"plus": 2, "text": "a"}, (["a", 2], {})),
        (mixed, (1, 2), {}, ([1, 2], {"third": 3})),
        (mixed, (1,), {"second": 2, "third": 4}, ([1, 2], {"third": 4})),
        (of_none, (), {}, ([], {})),
    ],
)
def test_a_function_of_one_item_gets_its_arguments_as_they_were_given(
    function, args, kwargs, passed
):
    binding = Binding.of_items(inspect.signature(function), "arguments")
    assert called(binding, *args, **kwargs) == passed
    positional, keywords = passed
    inspect.signature(function).bind(*positional, **keywords)


@pytest.mark.parametrize("gives", ["items", "arguments"])
@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (of_one, (), {}),
        (of_one, (1, 2), {}),
        (of_one, (), {"item": 1}),
        (of_one_by_name, (1,), {}),
        (of_two, ("a",), {"text": "b"}),
        (of_two, ("a",), {"minus": 1}),
        (of_none, (1,), {}),
    ],
)
def test_a_call_that_does_not_fit_is_a_type_error(gives, function, args, kwargs):
    with pytest.raises(TypeError):
        Binding.of_items(inspect.signature(function), gives).item(args, kwargs)


@pytest.mark.parametrize("function", [lambda *items: ..., lambda item, **more: ...])
def test_an_item_of_any_number_of_arguments_has_no_form(function):
    with pytest.raises(TypeError, match="must be named"):
        Binding.of_items(inspect.signature(function), "items")


def test_a_batch_is_handed_on_as_one_list():
    binding = Binding.of_items(inspect.signature(of_two), "items")
    items = [binding.item(("a",), {}), binding.item(("b", 2), {})]
    assert binding.columns(items) == ([[("a", 1), ("b", 2)]], {})
    of_single = Binding.of_items(inspect.signature(of_one), "items")
    assert of_single.columns([1, 2]) == ([[1, 2]], {})


def test_an_item_that_is_a_tuple_stays_one():
    binding = Binding.of_items(inspect.signature(of_one), "arguments")
    assert called(binding, (1, 2)) == ([(1, 2)], {})
