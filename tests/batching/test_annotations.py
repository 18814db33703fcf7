"""What annotations of user code say, on each CPython.

Types that do not exist at run time mean "any": up to 3.13 such annotations are text, from 3.14 on
they are evaluated when they are read. They tell Ray Serve's form of `batch_size_fn` from ours.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, List  # noqa: UP035 - users write it, and it is another type

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
from shoal.batching.options import adapted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path as Absent

    from somewhere import Graph, Graphs

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


def test_of_list_makes_a_function_of_one_item() -> None:
    cost = shoal.of_list(lambda texts: sum(map(len, texts)))
    assert cost("four") == 4


async def test_an_unannotated_function_of_a_list_is_told_from_one_of_an_item() -> None:
    async def handler(items: Any) -> Any:
        return items

    def nodes(graphs: Any) -> Any:
        return sum(graph["n"] for graph in graphs)

    async with shoal.Batcher(handler, batch_size_fn=nodes) as f:
        with pytest.raises(TypeError, match=r"write batch_size_fn=shoal\.of_list\(function\)"):
            await f({"n": 3})
        with pytest.raises(TypeError, match="not iterable"):  # it fails for a list, too
            await f(3)


def test_of_list_of_one_function_is_the_same_cost() -> None:
    assert shoal.of_list(len) == shoal.of_list(len)
    assert shoal.of_list(len) != shoal.of_list(sum)


@pytest.mark.parametrize("fn", [3, None, "len"])
def test_of_list_takes_a_function(fn: Any) -> None:
    with pytest.raises(TypeError, match=f"not {fn!r}"):
        shoal.of_list(fn)


async def texts_handler(texts: list[str]) -> list[str]:
    return texts


async def lists_handler(token_lists: list[list[int]]) -> list[int]:
    return [len(tokens) for tokens in token_lists]


async def graphs_handler(graphs: list[Graph]) -> list[int]:
    return [len(graphs)]


async def alias_handler(graphs: Graphs) -> list[int]:
    return [len(graphs)]


async def bare_handler(items: list) -> list:  # type: ignore[type-arg]
    return items


async def untyped_handler(items):
    return items


async def pairs_handler(texts: list[str], limits: list[int]) -> list[str]:
    return texts


def model_handler(model: object, texts: list[str]) -> list[str]:
    return texts


class Model:
    async def predict(self, texts: list[str]) -> list[str]:
        return texts

    def cost(self, texts: list[str]) -> int:
        return letters(texts)


class Callable:
    def __call__(self, texts: list[str]) -> int:
        return letters(texts)


def letters(texts: list[str]) -> int:
    assert isinstance(texts, list)
    return sum(map(len, texts))


def capitals(texts: List[str]) -> int:  # noqa: UP006
    return letters(texts)


def with_weight(weight: int, texts: list[str]) -> int:
    return weight * letters(texts)


def nodes(graphs: list[Graph]) -> int:
    return letters(graphs)  # type: ignore[arg-type]


def nodes_of_alias(graphs: Graphs) -> int:
    return letters(graphs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("handler", "fn", "cost"),
    [
        (texts_handler, letters, 4),
        (texts_handler, capitals, 4),
        (texts_handler, Callable(), 4),
        (texts_handler, Model().cost, 4),
        (texts_handler, partial(with_weight, 3), 12),
        (texts_handler, partial(letters), 4),
        (Model().predict, letters, 4),
        (Callable(), letters, 4),
        (partial(model_handler, object()), letters, 4),
        (partial(model_handler, model=object()), letters, 4),
        (graphs_handler, nodes, 4),
        (alias_handler, nodes_of_alias, 4),
    ],
)
def test_a_function_of_the_handlers_list_is_rays(handler: Any, fn: Any, cost: float) -> None:
    assert adapted(fn, annotations_of(handler))("four") == cost


def length(text: str) -> int:
    return len(text)


def number_of_tokens(tokens: list[int]) -> int:
    return len(tokens)


def elements(items: list) -> int:  # type: ignore[type-arg]
    return len(items)


def elements_of_sequence(items: Sequence[str]) -> int:
    return len(items)


def untyped(item):
    return len(item)


def size_of_graph(graph: Graph) -> int:
    return len(graph)


def words_of_one(words: set[str]) -> int:
    return len(words)


def nothing() -> int:
    return 0


@pytest.mark.parametrize(
    ("handler", "fn"),
    [
        (texts_handler, length),
        (texts_handler, len),
        (texts_handler, int),
        (texts_handler, untyped),
        (texts_handler, lambda text: len(text)),
        (texts_handler, number_of_tokens),
        (texts_handler, nothing),
        (texts_handler, elements_of_sequence),
        (texts_handler, words_of_one),
        (texts_handler, shoal.of_list(letters)),
        (lists_handler, number_of_tokens),
        (graphs_handler, size_of_graph),
        (graphs_handler, letters),
        (bare_handler, elements),
        (bare_handler, letters),
        (untyped_handler, letters),
        (untyped_handler, untyped),
        (len, letters),
        (int, letters),
    ],
)
def test_everything_else_is_a_function_of_one_item_and_stays_as_it_is(handler, fn):
    assert adapted(fn, annotations_of(handler)) is fn


def test_of_several_arguments_rays_function_sees_the_first() -> None:
    wanted = annotations_of(pairs_handler)
    assert adapted(letters, wanted)(("four", 1)) == 4
    assert adapted(length, wanted) is length
    assert adapted(letters, wanted) == adapted(letters, wanted)
