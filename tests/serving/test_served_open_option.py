"""The option ``open`` of a backend."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import line_up, outcome
from batching.scenes import settle
from serving.scenes import deployed
from shoal.serving.controller.controller import Controller

pool: ContextVar[str] = ContextVar("pool")
notes: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_noted() -> None:
    notes.clear()


@asynccontextmanager
async def connected() -> AsyncGenerator[None]:
    await anyio.sleep(0.01)
    pool.set("a pool")
    notes.append("opened")
    yield
    notes.append("closed")


async def one(_: int) -> str:
    return pool.get()


async def lists(items: list[int]) -> list[str]:
    return [pool.get()] * len(items)


def plain(items: list[int]) -> list[str]:
    return [pool.get()] * len(items)


class Service:
    async def __call__(self, items: list[int]) -> list[str]:
        return [pool.get()] * len(items)

    async def other(self, items: list[int]) -> list[str]:
        return [f"the other has {pool.get()}"] * len(items)


@asynccontextmanager
async def serving(code: Any, **config: Any) -> AsyncGenerator[Any]:
    async with Controller() as controller:
        yield await deployed(controller, "code", code, config=config)


@pytest.mark.parametrize("code", [one, lists, Service])
@pytest.mark.parametrize("opens", [connected, f"{__name__}:connected"])
async def test_it_is_entered_before_the_first_batch_and_left_after_the_last(code, opens):
    async with serving(code, open=opens) as handle:
        assert await handle.map([1, 2]) == ["a pool"] * 2
        assert notes == ["opened"]
    assert notes == ["opened", "closed"]


@pytest.mark.real_time
@pytest.mark.parametrize("placement", ["task", "thread"])
async def test_plain_code_in_a_thread_has_it_too(placement: str) -> None:
    async with serving(plain, open=connected, placement=placement) as handle:
        assert await handle.call(1) == "a pool"


async def test_it_is_entered_for_each_method_that_is_called() -> None:
    async with serving(Service, open=connected) as handle:
        other = handle.options(method_name="other")
        assert [await other.call(1), await handle.call(1)] == ["the other has a pool", "a pool"]
    assert notes == ["opened"] * 2 + ["closed"] * 2


async def test_a_change_while_it_is_entered_for_a_method_holds_for_that_too() -> None:
    gate = anyio.Event()

    @asynccontextmanager
    async def opens() -> AsyncGenerator[None]:
        if notes:
            await gate.wait()
        notes.append("opened")
        yield

    async with Controller() as controller, anyio.create_task_group() as tasks:
        config = {"open": opens, "max_batch_size": 5}
        handle = await deployed(controller, "code", Service, config=config)
        [caller] = await line_up(tasks, handle.options(method_name="other").call(1))
        await settle()
        changes = {"max_batch_size": 3, "encode": "builtins:str"}
        await controller.update_backend_config("code", changes)
        gate.set()
        await settle()
        assert isinstance(caller.outcome, LookupError)  # there is no pool
        opened = controller.backends["code"].method_batchers["other"]
        assert opened.batcher.options.max_batch_size == 3
        assert opened.converters is not None


@pytest.mark.parametrize("error", [ValueError(7), SystemExit(7), GeneratorExit(7)])
@pytest.mark.parametrize("when", ["made", "entered"])
async def test_whatever_it_raises_fails_the_creation_alone(error: BaseException, when: str) -> None:
    def fails() -> Any:
        if when == "made":
            raise error
        return entered()

    @asynccontextmanager
    async def entered() -> AsyncGenerator[None]:
        raise error
        yield

    async with Controller() as controller:
        await deployed(controller, "other", lists, config={"open": connected})
        failure = await outcome(controller.create_backend("code", lists, config={"open": fails}))
        assert isinstance(failure, (ValueError, shoal.errors.HandlerFailed))
        assert "7" in str(failure)
        assert await (await controller.get_handle("other")).call(1) == "a pool"


@pytest.mark.parametrize("error", [ValueError(7), SystemExit(7), GeneratorExit(7)])
async def test_whatever_it_raises_when_it_is_left_is_logged(error, caplog):
    @asynccontextmanager
    async def fails() -> AsyncGenerator[None]:
        pool.set("a pool")
        yield
        raise error

    async with serving(lists, open=fails) as handle:
        assert await handle.call(1) == "a pool"
    assert "the batcher of code broke" in caplog.text


async def test_it_can_not_be_changed_while_the_backend_serves() -> None:
    async with Controller() as controller:
        handle = await deployed(controller, "code", lists, config={"open": connected})
        with pytest.raises(ValueError, match=r"open= can't be changed.*make another backend"):
            await controller.update_backend_config("code", {"open": None})
        await controller.update_backend_config("code", {"max_batch_size": 2})
        assert await handle.call(1) == "a pool"
    assert notes == ["opened", "closed"]


@pytest.mark.parametrize("placement", ["process", "ray"])
def test_it_is_refused_where_the_code_runs_in_another_process(placement: str) -> None:
    with pytest.raises(ValueError, match=r"another one; connect in `async def warm_up\(self\)`"):
        shoal.BackendConfig(open=connected, placement=placement)


def test_a_context_manager_is_refused_since_a_backend_needs_several() -> None:
    with pytest.raises(TypeError, match="open=pool, not open=pool\\(\\)"):
        shoal.BackendConfig(open=connected())
