"""What code sets in its context ends with the call, wherever the code runs."""

from typing import Any

import pytest

from serving.context_code import Async, Plain, user
from serving.scenes import deployed
from shoal.serving.controller.controller import Controller
from shoal.serving.controller.endpoints import EndpointHandle

pytestmark = pytest.mark.real_time

CASES = [
    pytest.param("task", Async, id="task-async"),
    pytest.param("task", Plain, id="task-plain"),
    pytest.param("thread", Plain, id="thread"),
    pytest.param("process", Async, id="process-async", marks=pytest.mark.one_loop),
    pytest.param("process", Plain, id="process-plain", marks=pytest.mark.one_loop),
]


async def _stream(handle: EndpointHandle, item: str) -> list[Any]:
    async with handle.stream(item) as steps:
        return [step async for step in steps]


@pytest.mark.parametrize(("placement", "code"), CASES)
async def test_a_variable_that_code_sets_holds_until_its_call_ends(placement, code):
    async with Controller() as controller:
        config = {"placement": placement, "user_config": {"version": 1}, "max_batch_size": 4}
        handle = await deployed(controller, "code", code, config=config)
        one = handle.options(method_name="one")
        steps = handle.options(method_name="steps")
        for name in "ab":
            assert await handle.call(name) == "nobody"
            assert await one.call(name) == "nobody"
            assert await _stream(steps, name) == ["nobody", name]
        await controller.update_backend_config("code", {"user_config": {"version": 2}})
        assert user.get() == "nobody"
        assert await handle.call("c") == "nobody"
