"""Work that nobody waits for any more: it ends by itself, and its replica lives on."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import shoal
from replicas.playing import noted
from serving.failing_code import AsyncCode, Code, Isolated
from serving.scenes import deployed
from shoal.errors import DeadlineExceeded, HandlerTimeout
from shoal.serving.clients.handles import Handle
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import Call, calling
from shoal.testing.replicas.code import Folder
from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

GRACE_S = 0.05


# What workers do with work that was left is tested on both loops in tests/replicas.
ONCE = pytest.mark.one_loop
METHODS = [
    (Code, "steps"),
    pytest.param(Code, "__call__", marks=ONCE),
    pytest.param(AsyncCode, "__call__", marks=ONCE),
    pytest.param(AsyncCode, "stubborn_steps", marks=ONCE),
]


class Served:
    def __init__(self, controller: Controller, handle: Handle, folder: Folder) -> None:
        self.controller = controller
        self.folder = folder
        self._handle = handle

    async def ask(self, method: str, name: str, timeout_s: float | None = None) -> Any:
        handle = self._handle.options(method_name=method, timeout_s=timeout_s)
        if "steps" not in method:
            return await handle.call(name)
        async with handle.stream(name) as steps:
            return [step async for step in steps][-1]

    async def pid(self) -> int:
        self.folder.release("pid")
        found: int = await self.ask("__call__", "pid")
        return found

    async def leave(self, method: str, name: str) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.ask, method, name)
            await noted(self.folder, f"holds {name}")
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def serving(code: Any, path: Path, **config: Any) -> AsyncGenerator[Served]:
    folder = Folder(str(path))
    config = {"placement": "process", "cancel_grace_s": GRACE_S, **config}
    async with Controller() as controller:
        handle = await deployed(controller, "b", code, folder.path, config=config)
        yield Served(controller, handle, folder)


@pytest.mark.parametrize(("code", "method"), METHODS)
async def test_a_caller_that_leaves_ends_no_process(code, method, tmp_path):
    async with serving(code, tmp_path) as served:
        pid = await served.pid()
        await served.leave(method, "a")
        await anyio.sleep(2 * GRACE_S)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.ask, method, "b")  # waits for the replica
            served.folder.release("a")
            served.folder.release("b")
        assert await served.pid() == pid


@ONCE
async def test_the_time_out_of_a_caller_ends_no_process(tmp_path):
    async with serving(Code, tmp_path) as served:
        pid = await served.pid()
        with pytest.raises(DeadlineExceeded):
            await served.ask("steps", "a", timeout_s=0.2)
        await anyio.sleep(2 * GRACE_S)
        served.folder.release("a")
        assert await served.pid() == pid


@ONCE
@pytest.mark.parametrize(("code", "method"), [(Code, "steps"), (AsyncCode, "stubborn")])
async def test_work_that_goes_on_after_its_handler_timeout_is_killed(code, method, tmp_path):
    async with serving(code, tmp_path) as served:
        pid = await served.pid()
        await served.controller.update_backend_config("b", {"handler_timeout_s": 0.3})
        with pytest.raises(HandlerTimeout):
            await served.ask(method, "a")
        assert await served.pid() != pid


async def test_the_handler_timeout_also_limits_work_whose_callers_have_left(tmp_path):
    async with serving(Code, tmp_path, handler_timeout_s=0.5) as served:
        pid = await served.pid()
        await served.leave("__call__", "a")
        assert await served.pid() != pid


@ONCE
async def test_work_that_runs_again_in_parts_is_killed_in_time(tmp_path):
    config = {"isolate_errors": True, "handler_timeout_s": 0.5, "batch_wait_timeout_s": None}
    async with serving(Isolated, tmp_path, max_batch_size=2, **config) as served:

        async def fails() -> None:
            with pytest.raises(HandlerTimeout):
                await served.ask("__call__", "a")

        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(fails)
        await noted(served.folder, "starts", times=2)


@ONCE
async def test_closing_waits_for_abandoned_work_only_for_its_grace_period(tmp_path):
    async with serving(Code, tmp_path, graceful_shutdown_timeout_s=0.2) as served:
        await served.leave("__call__", "a")
        with anyio.fail_after(HANG_S):
            await served.controller.delete_endpoint("b")
            await served.controller.delete_backend("b")


@ONCE
async def test_a_client_that_leaves_during_a_change_ends_no_process(tmp_path):
    async with serving(Code, tmp_path) as served:
        pid = await served.pid()
        served.folder.release("before")
        await served.controller.update_backend_config("b", {"user_config": "before"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.controller.update_backend_config, "b", {"user_config": "a"})
            await noted(served.folder, "holds a")
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2 * GRACE_S)
            served.folder.release("a")
        assert served.folder.notes()[-1] == "holds before"  # the change was undone
        assert await served.pid() == pid


@ONCE
async def test_http_clients_that_give_up_leave_the_server_ready(tmp_path):
    folder = Folder(str(tmp_path))
    app = shoal.App()
    config = {"placement": "process", "cancel_grace_s": GRACE_S}
    app.backend("b", Code, folder.path, **config)
    app.route("e", backend="b", path="/e")
    async with app.lifespan():
        timed = Call(app, "/e", item="a", headers=[("X-Request-Timeout", "0.2")])
        await timed.run()
        assert timed.status == 504
        left = Call(app, "/e", item="b")
        async with calling(left):
            await noted(folder, "holds a")
            left.leave()
            await left.returned.wait()
        await anyio.sleep(2 * GRACE_S)
        ready = Call(app, "/-/readyz", method="GET")
        await ready.run()
        assert ready.status == 200
        folder.release("all")
        last = Call(app, "/e", item="c")
        await last.run()
        assert last.status == 200
        assert app.controller.status_now().backends["b"].deaths == 0
