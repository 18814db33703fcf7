"""What Ray Serve's tests assert of cancellation (group RC), of replicas that are processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

import shoal
from batching.scenes import LEFT, Held, line_up, outcome
from conformance import process_backends
from conformance.replica_scenes import service
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import Call, calling
from shoal.testing.replicas.code import Folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

HANG_S = 15
PROCESS: dict[str, Any] = {"placement": "process", "max_batch_size": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path))


async def until(condition: Callable[[], object]) -> None:
    """Looks again and again: what another process does can't be waited for."""
    with anyio.fail_after(HANG_S):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.002)


async def said(folder: Folder, line: str) -> None:
    await until(lambda: line in folder.notes())


async def test_rc1_a_client_that_leaves_cancels_the_handler_and_what_it_calls(
    folder: Folder,
) -> None:
    inner, app = Held(), shoal.App()
    async with app.lifespan():
        handle = await service(app.controller, "inner", inner)
        await service(
            app.controller,
            "outer",
            process_backends.Passing,
            folder.path,
            handle,
            **PROCESS,
        )
        call = Call(app, "/outer", item="item")
        async with calling(call):
            await until(lambda: inner.batches)
            call.leave()
            await said(folder, "cancelled item")
            await until(lambda: inner.cancelled)
            await call.returned.wait()
        assert app.controller.status_now().backends["outer"].deaths == 0
    assert inner.cancelled == [["item"]]
    assert call.status == 499


async def test_rc3_rc5_cancelling_a_running_call_cancels_the_handler_and_keeps_its_process(
    folder: Folder,
) -> None:
    async with Controller() as controller, anyio.create_task_group() as tasks:
        handle = await service(controller, "only", process_backends.Held, folder.path, **PROCESS)
        pid = await handle.options(method_name="pid").call("")
        (caller,) = await line_up(tasks, handle.call("held"))
        await said(folder, "runs held")
        caller.leave()
        await said(folder, "cancelled held")
        await until(lambda: caller.outcome == LEFT)
        assert await handle.options(method_name="pid").call("") == pid
        assert controller.status_now().backends["only"].deaths == 0


async def test_rc3_plain_code_that_is_cancelled_is_left_to_finish_and_keeps_its_process(
    folder: Folder,
) -> None:
    async with Controller() as controller, anyio.create_task_group() as tasks:
        handle = await service(
            controller,
            "only",
            process_backends.PlainHeld,
            folder.path,
            **PROCESS,
            cancel_grace_s=0.05,
        )
        pid = await handle.options(method_name="pid").call("")
        (caller,) = await line_up(tasks, handle.call("held"))
        await said(folder, "runs held")
        caller.leave()
        await until(lambda: caller.outcome == LEFT)
        folder.release("held")
        assert await handle.options(method_name="pid").call("") == pid
        assert controller.status_now().backends["only"].deaths == 0


@pytest.mark.parametrize("code", [process_backends.Held, process_backends.PlainHeld])
async def test_rc4_rc6_a_call_that_is_cancelled_in_line_never_reaches_the_handler(
    code: Any, folder: Folder
) -> None:
    async with Controller() as controller, anyio.create_task_group() as tasks:
        handle = await service(controller, "only", code, folder.path, **PROCESS)
        (first,) = await line_up(tasks, handle.call("first"))
        await said(folder, "runs first")
        (second,) = await line_up(tasks, handle.call("second"))
        await until(lambda: controller.status_now().backends["only"].queued == 1)
        second.leave()
        await until(lambda: second.outcome == LEFT)
        folder.release("all")
        assert await handle.call("third") == "third"
        assert first.outcome == "first"
        assert controller.status_now().backends["only"].deaths == 0
    assert folder.notes() == ["runs first", "runs third"]


@pytest.mark.parametrize("code", [process_backends.Held, process_backends.PlainHeld])
async def test_rc7_cancelling_a_stream_closes_its_generator(code: Any, folder: Folder) -> None:
    async with Controller() as controller:
        handle = await service(controller, "only", code, folder.path, **PROCESS)
        pid = await handle.options(method_name="pid").call("")
        async with handle.options(method_name="steps").stream("hi") as stream:
            assert await anext(stream) == "hi"
            await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        await said(folder, "closed hi")
        assert await handle.options(method_name="pid").call("") == pid


async def test_rc18_a_time_out_cancels_the_handler_and_what_it_calls(folder: Folder) -> None:
    inner = Held()
    async with Controller() as controller:
        other = await service(controller, "inner", inner)
        handle = await service(
            controller, "outer", process_backends.Passing, folder.path, other, **PROCESS
        )
        # The nested call has the deadline of who waits for it; it must have come that far.
        timeout_s = 0.5
        while not inner.batches:
            timeout_s *= 2
            got = await outcome(handle.options(timeout_s=timeout_s).call("item"))
            assert type(got) is shoal.errors.DeadlineExceeded
        await said(folder, "cancelled item")
        await until(lambda: len(inner.cancelled) == len(inner.batches))
        assert controller.status_now().backends["outer"].deaths == 0
    assert inner.batches == inner.cancelled


async def test_rc18_what_plain_code_calls_is_cancelled_when_its_process_ends(
    folder: Folder,
) -> None:
    inner = Held()
    async with Controller() as controller, anyio.create_task_group() as tasks:
        other = await service(controller, "inner", inner)
        handle = await service(
            controller,
            "outer",
            process_backends.PlainPassing,
            folder.path,
            other,
            **PROCESS,
            cancel_grace_s=0.05,
        )
        (caller,) = await line_up(tasks, handle.call("item"))
        await until(lambda: inner.batches)
        caller.leave()
        await until(lambda: inner.cancelled)
        assert inner.cancelled == [["item"]]
        assert caller.outcome == LEFT
        inner.gate.set()
        assert await handle.call("next") == "next"
