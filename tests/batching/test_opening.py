"""Decorated functions and methods: opening them, what they keep of the handler, and calls."""

import inspect
from typing import Any

import anyio
import pytest

import shoal
from batching.batched_model import Model, increment
from batching.callers import outcomes


@shoal.batch(max_batch_size=2)
async def sizes(numbers: list[int]) -> list[int]:
    return [len(numbers)] * len(numbers)


async def test_the_decorator_works_bare_and_with_options() -> None:
    async with shoal.open_batchers(increment, sizes):
        assert await outcomes(increment(1), increment(2)) == [2, 3]
        assert await outcomes(*map(sizes, range(4))) == [2, 2, 2, 2]


async def test_a_call_while_nothing_is_open_shows_the_line_that_opens_it() -> None:
    with pytest.raises(shoal.errors.NotOpen, match=r"async with shoal.open_batchers\(increment\):"):
        await increment(1)
    async with shoal.open_batchers(increment):
        await increment(1)
    with pytest.raises(shoal.errors.NotOpen):
        await increment(1)
    with pytest.raises(shoal.errors.NotOpen):
        increment.batcher  # noqa: B018


async def test_a_function_is_open_once_in_an_event_loop() -> None:
    async with shoal.open_batchers(increment):
        with pytest.raises(RuntimeError, match="open in this event loop already"):
            async with shoal.open_batchers(sizes, increment):
                pass
        assert await increment(1) == 2
        with pytest.raises(shoal.errors.NotOpen):
            await sizes(1)  # if one can't be opened, none is


async def test_name_doc_and_signature_are_kept_for_one_item() -> None:
    assert increment.__name__ == "increment"
    assert increment.__doc__ == "Adds one."
    signature = inspect.signature(increment)
    assert list(signature.parameters) == ["numbers"]
    assert signature.parameters["numbers"].annotation is int
    assert signature.return_annotation is int


async def test_a_signature_with_other_parameters_is_refused_where_it_is_written() -> None:
    def other(wrong: int) -> int: ...  # type: ignore[empty-body]

    with pytest.raises(TypeError, match="must have the handler's parameters"):

        @shoal.batch(signature=other)
        async def handler(left: list[Any], right: list[Any]) -> list[Any]:
            return left


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_batch_size": 0}, ValueError),
        ({"handler_timeout_s": "1"}, TypeError),
        ({"batch_size": 4}, TypeError),
    ],
)
async def test_a_wrong_option_is_refused_where_it_is_written(options, error):
    name = next(iter(options))
    with pytest.raises(error, match=name):
        shoal.batch(**options)(lambda items: items)
    with pytest.raises(error, match=name):
        shoal.Batcher(lambda items: items, **options)


async def test_calls_between_batched_functions_work_as_they_close_in_reverse() -> None:
    @shoal.batch
    async def outer(numbers: list[int]) -> list[int]:
        return await increment.map(numbers)

    async with anyio.create_task_group() as tasks, shoal.open_batchers(increment, outer):
        results: list[int] = []

        async def caller() -> None:
            results.append(await outer(1))

        tasks.start_soon(caller)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    assert results == [2]


# Methods: batched for each instance apart, never across instances


class Sub(Model):
    pass


class Equal(Model):
    """All instances are equal and false, and none can be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return False


@pytest.mark.parametrize("kind", [Model, Sub, Equal])
async def test_a_method_is_batched_for_each_instance_and_never_across(kind: type[Model]) -> None:
    a, b = kind("a"), kind("b")
    async with shoal.open_batchers(a.predict, b.predict):
        got = await outcomes(a.predict(1), b.predict(2), a.predict(3), b.predict(4), a.predict(5))
    assert got == [("a", 2, 3), ("b", 3, 2), ("a", 4, 3), ("b", 5, 2), ("a", 6, 3)]


async def test_opening_one_instance_leaves_the_others_closed() -> None:
    a, b = Model("a"), Model("b")
    async with shoal.open_batchers(a.predict):
        assert await a.predict(1) == ("a", 2, 1)
        with pytest.raises(shoal.errors.NotOpen, match=r"open_batchers\(instance.predict\)"):
            await b.predict(1)
        with pytest.raises(shoal.errors.NotOpen):
            await a.tokens(1).__aenter__()


async def test_a_method_gets_its_defaults_and_keywords() -> None:
    model = Model("a")
    async with shoal.open_batchers(model.predict):
        got = await outcomes(model.predict(1, 2), model.predict(xs=3), model.predict(5, ys=6))
        assert got == [("a", 3, 3), ("a", 4, 3), ("a", 11, 3)]
        assert await model.predict.map([1, 2]) == [("a", 2, 2), ("a", 3, 2)]
        assert await model.predict.options(metadata={})(1) == ("a", 2, 1)
        for wrong in ((), (1, 2, 3)):
            with pytest.raises(TypeError):
                await model.predict(*wrong)


@pytest.mark.parametrize("name", ["of_class", "of_class_outside"])
async def test_a_class_method_is_batched_for_each_class(name: str) -> None:
    async with shoal.open_batchers(getattr(Model, name)):
        assert await getattr(Model, name)(1) == ("Model", 1)
        assert await getattr(Model("a"), name)(2) == ("Model", 2)
        with pytest.raises(shoal.errors.NotOpen):
            await getattr(Sub, name)(1)
        async with shoal.open_batchers(getattr(Sub, name)):
            assert await getattr(Sub, name)(3) == ("Sub", 3)


@pytest.mark.parametrize("name", ["static", "static_outside"])
async def test_a_static_method_is_one_function(name: str) -> None:
    async with shoal.open_batchers(getattr(Model, name)):
        got = await outcomes(getattr(Model, name)(1), getattr(Model("a"), name)(2))
    assert got == [-1, -2]


async def test_a_bound_method_keeps_name_and_doc() -> None:
    model = Model("a")
    assert model.predict.__name__ == "predict"
    assert model.predict.__doc__ == "Predicts."
    async with shoal.open_batchers(model.predict):
        assert model.predict.__name__ == "predict"
        assert model.predict.__doc__ == "Predicts."
