"""A batched function is called, inspected and referred to as any async function is."""

import copy
import gc
import inspect
import pickle
import sys
import threading
import weakref
from functools import partial
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import settle

OTHERS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@shoal.batch
async def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


def same(texts: str = "none", /) -> str:
    return texts


@shoal.batch(signature=same)
async def mirrored(texts: list[str]) -> list[str]:
    return [text[::-1] for text in texts]


class Doubler:
    @shoal.batch
    async def double(self, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    @shoal.batch(signature=lambda numbers=4: numbers)
    async def by_default(self, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    @shoal.batch
    @staticmethod
    async def apart(numbers: list[int]) -> list[int]:
        return [3 * number for number in numbers]


@shoal.batch
async def added(left: list[int], right: list[int]) -> list[int]:
    return [one + other for one, other in zip(left, right, strict=True)]


@shoal.batch
async def by_name_only(*, numbers: list[int]) -> list[int]:
    return numbers


async def test_the_argument_may_be_passed_by_its_name() -> None:
    async with shoal.open_batchers():
        for _ in range(2):  # the first call opens it
            assert await double(numbers=3) == 6
            assert await double(3) == 6
            assert await added(1, right=2) == 3
            assert await by_name_only(numbers=5) == 5


async def test_the_default_and_the_kind_of_the_parameter_are_kept() -> None:
    anyhow: Any = mirrored
    async with shoal.open_batchers(mirrored):
        assert await anyhow() == "enon"
        assert await anyhow("ab") == "ba"
        with pytest.raises(TypeError, match="texts"):
            await anyhow(texts="ab")


async def test_a_parameter_of_the_handler_stays_positional_only() -> None:
    @shoal.batch
    async def echo(numbers: list[int], /) -> list[int]:
        return numbers

    anyhow: Any = echo
    async with shoal.open_batchers(echo):
        assert await echo(1) == 1
        with pytest.raises(TypeError, match="positional"):
            await anyhow(numbers=1)


async def test_the_deadline_of_the_scope_counts() -> None:
    @shoal.batch(use_scope_deadline=True)
    async def left(numbers: list[int]) -> list[float | None]:
        return [request.options.due for request in shoal.current_batch().requests]

    async with shoal.open_batchers(left):
        assert await left(1) is None
        with anyio.fail_after(5):
            assert await left(1) == anyio.current_effective_deadline()


async def test_methods_are_called_on_instances_and_through_the_class() -> None:
    doubler = Doubler()
    through_the_class: Any = Doubler
    async with shoal.open_batchers(doubler):
        assert await doubler.double(3) == 6
        assert await doubler.double(numbers=3) == 6
        assert await through_the_class.double(doubler, 3) == 6
        assert await doubler.by_default() == 8
        assert await doubler.by_default(numbers=5) == 10
        assert await through_the_class.by_default(doubler, 5) == 10
        assert await through_the_class.by_default(doubler) == 8
    async with shoal.open_batchers(Doubler.apart):
        assert await doubler.apart(3) == await Doubler.apart(3) == 9


async def test_an_instance_is_collected_with_its_last_reference() -> None:
    doubler = Doubler()
    gc.disable()
    try:
        call: Any = doubler.double
        with pytest.raises(shoal.errors.NotOpen):
            await call(3)
        gone = weakref.ref(doubler)
        del doubler
        assert gone() is not None
        del call
        assert gone() is None
    finally:
        gc.enable()


async def test_new_options_apply_to_the_next_call() -> None:
    held = anyio.Event()

    @shoal.batch(max_batch_size=1)
    async def slow(numbers: list[int]) -> list[int]:
        await held.wait()
        return numbers

    async with shoal.open_batchers(slow), anyio.create_task_group() as tasks:
        tasks.start_soon(slow, 1)
        await settle()
        slow.configure(request_timeout_s=5)
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await slow(2)
        slow.configure(batch_size_fn=lambda number: number)
        with pytest.raises(shoal.errors.ItemTooLarge):
            await slow(3)
        slow.configure(batch_size_fn=None, request_timeout_s=None, dedupe=True)
        outcomes: list[int] = []

        async def call() -> None:
            outcomes.append(await slow(4))

        for _ in range(2):
            tasks.start_soon(call)
        await settle()
        assert slow.batcher.statistics().shared == 1
        slow.configure(dedupe=False)
        tasks.start_soon(call)
        await settle()
        assert slow.batcher.statistics().shared == 1
        held.set()
    assert outcomes == [4, 4, 4]


async def test_a_function_of_one_item_runs_when_the_call_is_awaited() -> None:
    def cost(number: int) -> int:
        costs.append(number)
        return 1 // number

    costs: list[int] = []

    @shoal.batch(batch_size_fn=cost)
    async def echo(numbers: list[int]) -> list[int]:
        return numbers

    async with shoal.open_batchers(echo):
        call = echo(numbers=1)
        broken = echo(0)
        assert costs == []
        assert await call == 1
        with pytest.raises(ZeroDivisionError):
            await broken
        assert costs == [1, 0]


@pytest.mark.real_time
@OTHERS
@pytest.mark.parametrize("options", [{}, {"request_timeout_s": 60}])
async def test_each_thread_has_its_own_batcher(backend: str, options: dict[str, float]) -> None:
    threads: list[int] = []

    @shoal.batch(**options)  # type: ignore[call-overload, untyped-decorator]
    async def where(numbers: list[int]) -> list[int]:
        threads.append(threading.get_ident())
        return numbers

    async def call_there(made_here: Any) -> None:
        with pytest.raises(shoal.errors.NotOpen):
            await where(1)
        async with shoal.open_batchers(where):
            assert await where(2) == 2
            assert await made_here == 3  # in this event loop, not where it was made
        with pytest.raises(shoal.errors.NotOpen):
            await where(1)

    async with shoal.open_batchers(where):
        assert await where(1) == 1
        run = partial(anyio.run, call_there, where(3), backend=backend)
        await anyio.to_thread.run_sync(run)
        assert await where(4) == 4
        here = threading.get_ident()
        assert [thread == here for thread in threads] == [True, False, False, True]


def test_it_looks_like_a_function() -> None:
    assert callable(double)
    assert str(inspect.signature(double)) == "(numbers: int) -> int"
    assert double.__name__ == "double"
    assert inspect.getdoc(type(double).__call__) == "Makes one call, and returns its result."


async def test_a_batcher_may_be_lent_to_several_functions() -> None:
    @shoal.batch
    async def first(numbers: list[int]) -> list[int]:
        return numbers

    @shoal.batch
    async def second(numbers: list[int]) -> list[int]:
        return numbers

    batcher = shoal.Batcher(double.parts()[0], max_batch_size=2)
    async with batcher:
        with first.lent(batcher), second.lent(batcher):
            for function in (first, second):
                assert await function(2) == 4
            batcher.configure(batch_size_fn=lambda number: number)
            for function in (first, second):
                with pytest.raises(shoal.errors.ItemTooLarge):
                    await function(3)
        for function in (first, second):
            with pytest.raises(shoal.errors.NotOpen):
                await function(2)


# Other libraries take a batched function for what it is: an async function


fastapi: Any = pytest.importorskip("fastapi")
httpx: Any = pytest.importorskip("httpx")
tenacity: Any = pytest.importorskip("tenacity")
background: Any = pytest.importorskip("starlette.background")


def plain(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


double_in_threads = shoal.batch(plain)


class Plain:
    @shoal.batch
    def double(self, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]


HELD = Plain()
"""An instance, whose method belongs to it."""

FORMS = pytest.mark.parametrize(
    "function",
    [double, double_in_threads, HELD.double, double_in_threads.options(timeout_s=60)],
    ids=["async", "plain", "method", "options"],
)


@FORMS
def test_it_is_known_for_an_async_function(function: Any) -> None:
    if sys.version_info >= (3, 12):
        assert inspect.iscoroutinefunction(function)
    assert inspect.iscoroutinefunction(function.__call__)


@pytest.mark.real_time
@FORMS
async def test_type_and_call_may_be_apart(function: Any) -> None:
    async with shoal.open_batchers():
        assert await type(function).__call__(function, 1) == 2


@pytest.mark.real_time
@FORMS
async def test_starlette_runs_it_in_the_background(function: Any) -> None:
    async with shoal.open_batchers():
        await background.BackgroundTask(function, 1)()
        if function is not HELD.double and isinstance(function, type(double)):
            assert function.batcher.statistics().finished == 1


@pytest.mark.real_time
@pytest.mark.parametrize("function", [double, double_in_threads, HELD.double])
async def test_fastapi_serves_it_and_depends_on_it(function: Any) -> None:
    api = fastapi.FastAPI()
    api.get("/x")(function)
    depends = fastapi.Depends(function)

    @api.get("/needs")
    async def needs(found: int = depends) -> list[int]:
        return [found]

    client = httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://a")
    async with shoal.open_batchers(), client as to:
        assert (await to.get("/x", params={"numbers": 2})).json() == 4
        assert (await to.get("/needs", params={"numbers": 3})).json() == [6]


@pytest.mark.real_time
async def test_tenacity_tries_again_above_it() -> None:
    tried: list[int] = []

    @tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_none())
    @shoal.batch
    def fails_twice(numbers: list[int]) -> list[int]:
        tried.append(len(numbers))
        if len(tried) < 3:
            raise OSError
        return numbers

    async with shoal.open_batchers():
        assert await fails_twice(5) == 5
    assert tried == [1, 1, 1]


def test_a_copy_and_a_pickle_are_references() -> None:
    assert copy.copy(double) is copy.deepcopy(double) is double
    assert pickle.loads(pickle.dumps(double)) is double
    for again in (copy.copy(HELD.double), pickle.loads(pickle.dumps(HELD.double))):
        assert again.__qualname__ == "Plain.double"
        assert again.__signature__ == HELD.double.__signature__
