"""Annotations that name types which do not exist at run time mean "any", on each CPython.

Up to 3.13 they are text. From 3.14 on they are evaluated when they are read.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import TypedDict

import shoal
from shoal.batching.handlers import annotations
from shoal.batching.handlers.annotations import field_types, read_signature
from shoal.batching.handlers.binding import (
    annotations_of,
    signature_of_batch,
    signature_of_call,
    takes_lists,
    unreadable_annotations,
)

if TYPE_CHECKING:
    from pathlib import Path as Absent

SOURCE = Path(annotations.__file__).parents[2]

LAZY = """
import dataclasses
from typing import TYPE_CHECKING
import shoal

if TYPE_CHECKING:
    from absent import Absent, Listed

def of_lists(items: list[Absent], counts: list[int]) -> list[Absent]:
    return items

def of_one(item: Absent, count: int = 1) -> Absent:
    return item

def of_batch(batch: shoal.OpenBatch[Absent, int]) -> None: ...

def of_listed(items: Listed[int]) -> list[int]:
    return items

class Model:
    def __init__(self, name: Absent = None) -> None: ...

    def __call__(self, items: list[Absent]) -> list[Absent]:
        return items

@dataclasses.dataclass
class Record:
    text: str
    image: Absent
"""


async def anything(items: list[Absent], count: int, item: Absent | None) -> list[Absent]:
    raise NotImplementedError


def one(item: Absent, count: int = 1) -> Absent:
    raise NotImplementedError


def of_batch(batch: shoal.OpenBatch[Absent, int]) -> None:
    raise NotImplementedError


def types_of(signature):
    return [*(one.annotation for one in signature.parameters.values()), signature.return_annotation]


def test_annotations_that_can_not_be_evaluated_are_no_types_of_calls():
    empty = read_signature(one).empty
    assert types_of(signature_of_call(one)) == [empty, int, empty]
    assert types_of(signature_of_call(functools.partial(one, count=2))) == [empty, empty]
    assert types_of(signature_of_batch(of_batch, None)) == [empty, empty]


def test_they_are_known_by_their_text_where_lists_are_told_from_items():
    assert annotations_of(anything) == ["list[Absent]", int, "Absent | None"]
    with pytest.raises(TypeError, match="unclear whether"):
        takes_lists(anything)
    assert list(unreadable_annotations(anything)) == ["items", "item"]


def test_a_batched_function_has_no_types_for_them():
    async def handler(items: list[Absent], counts: list[int]) -> list[Absent]:
        raise NotImplementedError

    handler.__annotations__ = {"items": "list[Absent]", "return": "list[Absent]"}
    batched = shoal.batch(handler)
    empty = read_signature(one).empty
    assert types_of(batched.__signature__) == [empty, empty, empty]


@dataclasses.dataclass
class Record:
    text: str
    image: Absent


class Fields(TypedDict):
    text: str
    image: Absent


class Child(Record):
    number: int


@pytest.mark.parametrize("kind", [Record, Fields])
def test_a_field_whose_annotation_can_not_be_evaluated_has_any_type(kind):
    assert field_types(kind) == {"text": str, "image": Any}
    assert field_types(Child) == {"text": str, "image": Any, "number": int}


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are lazy from 3.14 on")
def test_code_with_lazy_annotations_is_read():
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(LAZY, "lazy.py", "exec", dont_inherit=True), namespace)  # no text annotations
    empty = read_signature(one).empty
    assert types_of(shoal.batch(namespace["of_lists"]).__signature__) == [empty, int, empty]
    assert types_of(shoal.batch(namespace["Model"]()).__signature__) == [empty, empty]
    assert types_of(signature_of_call(namespace["of_one"])) == [empty, int, empty]
    assert types_of(signature_of_batch(namespace["of_batch"], None)) == [empty, int]
    assert annotations_of(namespace["of_listed"]) == ["Listed[int]"]
    assert list(read_signature(namespace["Model"]).parameters) == ["name"]
    assert field_types(namespace["Record"]) == {"text": str, "image": Any}


READERS = re.compile(
    r"\b(inspect\.signature|get_type_hints|get_annotations)\("
    r"|^from inspect import .*\bsignature\b",
    re.MULTILINE,
)


# They read Shoal's own methods and data.
OWN = {"serving/clients/verbs.py", "serving/clients/wire.py"}


def test_only_one_module_reads_annotations_of_user_code():
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if READERS.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"batching/handlers/annotations.py", *OWN}
