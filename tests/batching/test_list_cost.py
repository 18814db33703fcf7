"""Ray Serve's form of `batch_size_fn`, told from ours and adapted to it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, List  # noqa: UP035 - users write it, and it is another type

import pytest

import shoal
from shoal.batching.handlers.binding import annotations_of
from shoal.batching.options import adapted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from somewhere import Graph, Graphs


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
