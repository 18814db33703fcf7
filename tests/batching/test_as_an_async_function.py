"""Other libraries take a batched function for what it is: an async function."""

import copy
import inspect
import pickle
import sys
from typing import Any

import pytest

import shoal

fastapi: Any = pytest.importorskip("fastapi")
httpx: Any = pytest.importorskip("httpx")
tenacity: Any = pytest.importorskip("tenacity")
background: Any = pytest.importorskip("starlette.background")


@shoal.batch
async def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


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

    transport = httpx.ASGITransport(api)
    async with (
        shoal.open_batchers(),
        httpx.AsyncClient(transport=transport, base_url="http://a") as to,
    ):
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
