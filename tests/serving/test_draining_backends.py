"""Code of a backend may ask whether that begins to end, wherever it runs."""

from typing import Any

import anyio
import pytest

from serving.composed_code import plain_until_draining, until_draining
from serving.scenes import deployed
from shoal.serving.controller.controller import Controller
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

PLACES = pytest.mark.parametrize(
    ("code", "placement", "how"),
    [
        (until_draining, "task", "drain"),
        (until_draining, "task", "shutdown"),
        (plain_until_draining, "thread", "drain"),
        (plain_until_draining, "thread", "delete"),
        (until_draining, "process", "drain"),
        *(
            pytest.param(code, "process", how, marks=pytest.mark.one_loop)
            for code, how in [(plain_until_draining, "delete"), (plain_until_draining, "shutdown")]
        ),
    ],
)


async def read(handle: Any, item: int, begun: anyio.Event, got: list[Any]) -> None:
    async with handle.stream(item) as stream:
        async for step in stream:
            assert step == item
            begun.set()
    got.append(item)


@PLACES
async def test_streams_without_an_end_end_with_their_backend(code, placement, how):
    got: list[Any] = []
    with anyio.fail_after(HANG_S):
        async with Controller() as controller, anyio.create_task_group() as tasks:
            handle = await deployed(
                controller, "b", code, config={"placement": placement}, endpoint="e"
            )
            begun = anyio.Event()
            tasks.start_soon(read, handle, 1, begun, got)
            await begun.wait()
            if how == "delete":
                await controller.delete_endpoint("e")
                await controller.delete_backend("b")
            elif how == "shutdown":
                await controller.shutdown()
            else:
                controller.drain()
                while got != [1]:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                await controller.restart_backend("b")  # whose new replicas are told as well
                await read(handle, 2, anyio.Event(), got)
    assert got[0] == 1
