"""Which code takes lists; `test_ways_in.py` holds the forms of code that every way in knows."""

import functools
from typing import Any

import pytest

from shoal.batching.handlers.binding import takes_lists
from shoal.replicas.code.definition import accept_batch


def of_bare_list(items: list) -> list:
    return items


def of_list_and_one(items: list[int], factor: int) -> list[int]:
    return [factor * item for item in items]


def of_text(item: str) -> str:
    return item


def of_bytes(item: bytes) -> bytes:
    return item


def of_pair(item: tuple[int, int]) -> int:
    return item[0]


def of_dict(item: dict[str, Any]) -> int:
    return len(item)


class Model:
    def __call__(self, items: list[int]) -> list[int]:
        return items

    def one(self, item: int) -> int:
        return item


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (of_bare_list, True),
        (Model().__call__, True),
        (functools.partial(of_list_and_one, factor=3), True),
        (of_text, False),
        (of_bytes, False),
        (of_pair, False),
        (of_dict, False),
        (Model().one, False),
        (functools.partial(of_text), False),
    ],
)
def test_code_takes_lists_if_its_annotations_are_all_of_lists(function, expected):
    assert takes_lists(function) is expected


def of_list_and_anything(items: list[int], factor) -> list[int]:
    return items


@pytest.mark.parametrize("function", [of_list_and_one, of_list_and_anything])
def test_a_mixture_of_lists_and_others_is_refused(function):
    with pytest.raises(TypeError, match=r"unclear whether .*accept_batch\(False\)"):
        takes_lists(function)


def test_what_the_mark_says_comes_first():
    @accept_batch(False)
    def of_one_list(item: list[int]) -> int:
        return sum(item)

    @accept_batch
    def mixed(items: list[int], factor):
        return items

    assert not takes_lists(of_one_list)
    assert not takes_lists(functools.partial(of_one_list))
    assert takes_lists(mixed)


def test_a_class_that_is_marked_takes_lists_when_called():
    @accept_batch
    class Marked:
        def __call__(self, items):
            return items

        def other(self, item):
            return item

    assert takes_lists(Marked())
    assert not takes_lists(Marked().other)


def test_the_mark_gives_back_what_it_marks():
    def function(items):
        return items

    assert accept_batch(function) is function
    assert accept_batch(Model) is Model


@pytest.mark.parametrize("code", [Model().one, len, 7])
def test_what_can_not_be_marked_is_refused(code):
    with pytest.raises(TypeError, match=r"accept_batch\(\) marks a function, a method or a class"):
        accept_batch(code)
