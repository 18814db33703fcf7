"""What is declared is written down before it takes effect, and is there again at the next start."""

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from batching.scenes import line_up, outcome
from shoal.errors import ShutDown
from shoal.serving.controller.controller import Controller
from shoal.serving.controller.journal import Journal
from shoal.serving.state_file import StateFile
from shoal.serving.state_records import Change
from time_limits import HANG_S

# The file is written in worker threads.
pytestmark = pytest.mark.real_time

ECHO = f"{__name__}:echo"
ADDING = f"{__name__}:Adding"


async def echo(items: list[Any]) -> list[Any]:
    return items


class Adding:
    def __init__(self, left: int, *, right: int) -> None:
        self._sum = left + right
        self._told = 0

    async def reconfigure(self, told: int) -> None:
        if told < 0:
            raise ZeroDivisionError("a bad config")
        self._told = told

    async def __call__(self, items: list[int]) -> list[int]:
        return [item + self._sum + self._told for item in items]


class Refusing:
    def __init__(self, file: StateFile) -> None:
        self._file = file
        self.refuses = False
        self.written = 0

    def load(self) -> Any:
        return self._file.load()

    def apply(self, change: Change) -> None:
        if self.refuses:
            raise OSError("no space is left")
        self.written += 1
        self._file.apply(change)

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[tuple[Controller, Refusing]]:
    state: Any = Refusing(StateFile.open(path))
    async with Controller(state) as controller:
        yield controller, state


async def declared(path: Path) -> tuple[Any, Any]:
    """Opens a controller on the file, and returns what it says that there is."""
    async with opened(path) as (controller, _):
        backends = await controller.list_backends()
        return {tag: config.given() for tag, config in backends.items()}, (
            await controller.list_endpoints()
        )


async def test_what_can_not_be_written_does_not_take_effect(path: Path) -> None:
    async with opened(path) as (controller, state):
        await controller.create_backend(
            "a", ADDING, 1, init_kwargs={"right": 2}, config={"user_config": 1}
        )
        await controller.create_backend("b", ECHO)
        await controller.create_endpoint("e", backend="a", route="/e")
        handle = await controller.get_handle("e")
        before = await controller.list_endpoints()
        state.refuses = True
        for verb in (
            controller.create_backend("c", ECHO),
            controller.delete_backend("b"),
            controller.update_backend_config("a", {"user_config": 50, "num_replicas": 2}),
            controller.create_endpoint("f", backend="a", route="/f"),
            controller.delete_endpoint("e"),
            controller.set_traffic("e", {"b": 1}),
            controller.shadow_traffic("e", "b", 1),
        ):
            error = await outcome(verb)
            assert isinstance(error, OSError)
        assert await controller.list_endpoints() == before
        assert sorted(await controller.list_backends()) == ["a", "b"]
        assert [one.route for one in controller.endpoints.values()] == ["/e"]
        assert await handle.call(100) == 104
        status = (await controller.status()).backends
        assert (status["a"].wanted, len(status["a"].replicas)) == (1, 1)
        state.refuses = False
        await controller.create_backend("c", ECHO)
        await controller.delete_backend("b")
    assert [*(await declared(path))[0]] == ["a", "c"]


async def test_a_change_that_is_cancelled_is_kept_whole_or_not_at_all(path: Path) -> None:
    async with opened(path) as (controller, _):
        await controller.create_backend("b", ECHO)
        for passes in range(12):
            async with anyio.create_task_group() as tasks:
                [caller] = await line_up(
                    tasks, controller.create_endpoint(f"e{passes}", backend="b")
                )
                for _ in range(passes):
                    await anyio.lowlevel.checkpoint()
                caller.leave()
        there = await controller.list_endpoints()
    assert (await declared(path))[1] == there


async def test_the_file_is_not_closed_while_a_change_is_being_written(path, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()
    is_writing = False
    closed_while_writing: list[bool] = []
    apply, close = StateFile.apply, StateFile.close

    def slow_apply(file: StateFile, *changes: Change) -> None:
        nonlocal is_writing
        is_writing = True
        writing.set()
        assert go_on.wait(HANG_S)
        apply(file, *changes)
        is_writing = False

    def noted_close(file: StateFile) -> None:
        closed_while_writing.append(is_writing)
        close(file)

    monkeypatch.setattr(StateFile, "close", noted_close)
    async with Controller(StateFile.open(path)) as controller:
        await controller.create_endpoint("e", backend=None)
        monkeypatch.setattr(StateFile, "apply", slow_apply)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, controller.create_endpoint("f", backend=None))
            await anyio.to_thread.run_sync(writing.wait)
            timer = threading.Timer(0.1, go_on.set)  # shutdown may hold the loop up, and not us
            timer.start()
            await controller.shutdown()
            timer.join()
    assert closed_while_writing == [False]


async def test_nothing_is_written_once_the_file_was_let_go(tmp_path: Path) -> None:
    """A verb may be on its way to the file when the controller ends."""
    declarations = Journal(StateFile.open(tmp_path / "state.db"))
    declarations.close()
    with pytest.raises(ShutDown):
        await declarations.delete("backend", "b")
