"""Limits of a backend: one for all replicas and methods, changed while it runs."""

from typing import Any

import anyio
import httpx
import pytest

import shoal
from batching.scenes import outcomes
from serving.limited_code import RefusedOnce, StreamRefusedOnce
from time_limits import HANG_S

EVERY_SECOND = {"batches_per_s": 1}


class Starts:
    """Code with two methods that notes when its batches start, and on which replica."""

    log: list[tuple[float, str]]
    refusals: list[float]

    @shoal.accept_batch
    async def __call__(self, items: list[int]) -> list[int]:
        return await self.run(items)

    @shoal.accept_batch
    async def other(self, items: list[int]) -> list[int]:
        return await self.run(items)

    async def run(self, items: list[int]) -> list[int]:
        self.log.append((anyio.current_time(), shoal.current_replica_tag()))
        await anyio.sleep(2)
        if self.refusals:
            raise shoal.RetryLater(self.refusals.pop())
        return items


@pytest.fixture
def code() -> type[Starts]:
    return type("Code", (Starts,), {"log": [], "refusals": []})


def starts(code: type[Starts]) -> list[float]:
    return [round(at - code.log[0][0], 6) for at, _ in code.log]


async def test_all_replicas_and_methods_of_a_backend_share_one_limit(code):
    config: Any = {"num_replicas": 3, "max_batch_size": 1, "limit": EVERY_SECOND}
    async with shoal.start() as client:
        await client.create_backend("api", code, config=config)
        await client.create_endpoint("api", backend="api")
        handle = await client.get_handle("api")
        other = handle.options(method_name="other")
        calls = [handle.call(n) for n in range(3)] + [other.call(n) for n in range(3)]
        assert await outcomes(*calls) == [0, 1, 2, 0, 1, 2]
    assert starts(code) == [0, 1, 2, 3, 4, 5]
    assert len({tag for _, tag in code.log}) > 1


async def test_a_refusal_pauses_all_replicas_and_methods(code):
    code.refusals = [7.0]
    async with shoal.start() as client:
        await client.create_backend("api", code, config={"num_replicas": 3, "max_batch_size": 1})
        await client.create_endpoint("api", backend="api")
        handle = await client.get_handle("api")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle.call, 0)
            await anyio.sleep(2.5)
            tasks.start_soon(handle.options(method_name="other").call, 1)
            tasks.start_soon(handle.call, 2)
    assert starts(code) == [0, 9, 9, 9]


async def test_a_limit_changes_while_the_backend_runs(code):
    config: Any = {"num_replicas": 3, "max_batch_size": 1, "limit": {"batches_per_s": 0.1}}
    async with shoal.start() as client:
        await client.create_backend("api", code, config=config)
        await client.create_endpoint("api", backend="api")
        handle = await client.get_handle("api")
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(handle.call, number)
            await anyio.sleep(1)
            await client.update_backend_config("api", {"limit": {"batches_per_s": 0.5}})
            config = await client.get_backend_config("api")
            assert config.batching["limit"] == shoal.Limit(batches_per_s=0.5)
    assert starts(code) == [0, 2, 4]


@pytest.mark.real_time
@pytest.mark.parametrize("code", [RefusedOnce, StreamRefusedOnce])
async def test_a_process_may_raise_it(code):
    async with shoal.start() as client:
        await client.create_backend("api", code, config={"placement": "process"})
        await client.create_endpoint("api", backend="api")
        handle = await client.get_handle("api")
        if code is RefusedOnce:
            assert await handle.call(4) == 42
        else:
            async with handle.stream(4) as stream:
                assert [item async for item in stream] == [42]


@pytest.mark.real_time
async def test_a_client_over_http_is_asked_to_come_again_when_the_tries_are_used_up():
    @shoal.accept_batch
    async def busy(items: list[int]) -> list[int]:
        raise shoal.RetryLater(0)

    async with shoal.start(http={"port": 0}) as client:
        await client.create_backend("busy", busy)
        await client.create_endpoint("busy", backend="busy", route="/busy", methods=["POST"])
        async with httpx.AsyncClient(base_url=client.url) as http:
            response = await http.post("/busy", json=1, timeout=HANG_S)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert response.json()["type"] == "urn:shoal:problem:overloaded"
