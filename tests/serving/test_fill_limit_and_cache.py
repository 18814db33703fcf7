"""Batch options of backends: open batches, limits, shared results, and queues that are dropped."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

import shoal
from batching.callers import PENDING, line_up, outcome, outcomes, read
from batching.scenes import Held, settle
from serving.failing_code import RefusedOnce, StreamRefusedOnce
from serving.scenes import deployed, under_way
from shoal.replicas.local.task import TaskReplica
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import Call, calling
from time_limits import HANG_S


async def each_takes_a_second(batch: shoal.OpenBatch[int, int]) -> None:
    async def answer(request: Any) -> None:
        await anyio.sleep(1)
        request.finish(request.item)

    async with anyio.create_task_group() as tasks:
        async for request in batch:
            tasks.start_soon(answer, request)


@pytest.mark.parametrize("verb", ["restart", "scale"])
async def test_no_request_is_lost_when_replicas_of_a_continuous_batch_go(verb: str) -> None:
    config = {"fill": "continuous", "num_replicas": 2, "max_batch_size": 4}
    found: list[Any] = []

    async with Controller() as controller:
        handle = await deployed(controller, "b", each_takes_a_second, config=config, endpoint="e")

        async def call_on(item: int) -> None:
            for _ in range(50):
                found.append(await outcome(handle.call(item)))  # noqa: PERF401 - one by one

        async with anyio.create_task_group() as tasks:
            for item in range(6):
                tasks.start_soon(call_on, item)
            await anyio.sleep(10.5)
            begun = anyio.current_time()
            if verb == "restart":
                await controller.restart_backend("b")
            else:
                await controller.scale_backend("b", 1)
            assert anyio.current_time() - begun < 10
    assert sorted(found) == sorted([*range(6)] * 50)


class Opened:
    async def __call__(self, batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            await anyio.sleep(1)
            request.finish(-request.item)


class OpenedTwice(Opened):
    async def other(self, batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            request.finish(request.item)


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_code_takes_open_batches(fill: str) -> None:
    async with Controller() as controller:
        handle = await deployed(controller, "b", Opened(), config={"fill": fill})
        assert await outcomes(*[handle.call(item) for item in range(4)]) == [0, -1, -2, -3]
        backend = controller.status_now().backends["b"]
        assert (backend.requests, backend.errors) == (4, 0)


async def test_a_second_method_of_open_batches_waits_for_its_turn() -> None:
    async with Controller() as controller:
        handle = await deployed(controller, "b", OpenedTwice(), config={"fill": "open"})
        async with anyio.create_task_group() as tasks:
            [caller] = await under_way(tasks, handle.call(1))
            assert await handle.options(method_name="other").call(2) == 2
        assert caller.outcome == -1


async def test_code_for_open_batches_that_takes_none_is_refused() -> None:
    def plain(batch: Any) -> None: ...

    async with Controller() as controller:
        with pytest.raises(TypeError, match="async"):
            await controller.create_backend("b", plain, config={"fill": "open"})
        assert await controller.list_backends() == {}


async def test_another_method_waits_for_a_replica_that_is_started_again() -> None:
    class Code(OpenedTwice):
        async def warm_up(self) -> None:
            await gate.wait()

    def placed(blueprint: Any) -> TaskReplica:
        made.append(TaskReplica(blueprint))
        return made[-1]

    placed.takes_open_batches = True  # type: ignore[attr-defined]
    made: list[TaskReplica] = []
    gate = anyio.Event()
    gate.set()
    async with Controller() as controller:
        config = {"fill": "open", "placement": placed}
        handle = await deployed(controller, "b", Code(), config=config)
        assert await handle.call(1) == -1
        gate = anyio.Event()
        made[0].kill("for the test")
        await anyio.sleep(5)
        async with anyio.create_task_group() as tasks:
            [caller] = await under_way(tasks, handle.options(method_name="other").call(2))
            assert caller.outcome is PENDING
            gate.set()
        assert caller.outcome == 2


async def test_code_with_two_methods_of_continuous_batches_is_refused() -> None:
    says = r"__call__, other take open batches.*backend of its own"
    async with Controller() as controller:
        with pytest.raises(TypeError, match=says):
            await deployed(controller, "b", OpenedTwice(), config={"fill": "continuous"})


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
    config: Any = {"num_replicas": 3, "max_batch_size": 1, "limit": {"batches_per_s": 1}}
    async with shoal.start() as client:
        handle = await deployed(client, "api", code, config=config)
        other = handle.options(method_name="other")
        calls = [handle.call(n) for n in range(3)] + [other.call(n) for n in range(3)]
        assert await outcomes(*calls) == [0, 1, 2, 0, 1, 2]
    assert starts(code) == [0, 1, 2, 3, 4, 5]
    assert len({tag for _, tag in code.log}) > 1


async def test_a_refusal_pauses_all_replicas_and_methods(code):
    code.refusals = [7.0]
    config = {"num_replicas": 3, "max_batch_size": 1}
    async with shoal.start() as client:
        handle = await deployed(client, "api", code, config=config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle.call, 0)
            await anyio.sleep(2.5)
            tasks.start_soon(handle.options(method_name="other").call, 1)
            tasks.start_soon(handle.call, 2)
    assert starts(code) == [0, 9, 9, 9]


async def test_a_limit_changes_while_the_backend_runs(code):
    config: Any = {"num_replicas": 3, "max_batch_size": 1, "limit": {"batches_per_s": 0.1}}
    async with shoal.start() as client:
        handle = await deployed(client, "api", code, config=config)
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
        handle = await deployed(client, "api", code, config={"placement": "process"})
        if code is RefusedOnce:
            assert await handle.call(4) == 42
        else:
            assert await read(handle.stream(4)) == [42]


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


CACHE = {"max_size": 10, "ttl_s": 60}


class Slow:
    """Code that takes a second for its results, which tell its version; notes its items."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.items: list[str] = []

    def code(self) -> Any:
        @shoal.accept_batch
        async def code(items: list[str]) -> list[str]:
            self.items += items
            version = self.version
            await anyio.sleep(1)
            return [f"{item}{version}" for item in items]

        return code


@asynccontextmanager
async def serving(*versions: Slow, **config: Any) -> AsyncGenerator[tuple[Any, Any]]:
    """Serves backends "1", "2" and so on; the endpoint has all of its traffic to the first."""
    async with shoal.start() as client:
        for slow in versions:
            told = {"placement": "task", "cache": CACHE} | config
            await client.create_backend(str(slow.version), slow.code(), config=told)
        await client.create_endpoint("e", backend="1")
        yield client, await client.get_handle("e")


async def test_versions_of_a_backend_share_nothing():
    old, new = Slow(1), Slow(2)
    async with serving(old, new) as (client, handle):
        async with anyio.create_task_group() as tasks:
            before = await line_up(tasks, handle.call("a"), handle.call("a"))
            await anyio.sleep(0.5)  # now they run
            await client.set_traffic("e", {"2": 1.0})
            after = await line_up(tasks, handle.call("a"), handle.call("a"))
        assert [one.outcome for one in (*before, *after)] == ["a1", "a1", "a2", "a2"]
        assert await handle.call("a") == "a2"
        await client.set_traffic("e", {"1": 1.0})
        assert await handle.call("a") == "a1"
    assert old.items == new.items == ["a"]


async def test_a_restart_makes_new_results():
    slow = Slow(1)
    async with serving(slow) as (client, handle):
        assert [await handle.call("a"), await handle.call("a")] == ["a1", "a1"]
        assert slow.items == ["a"]
        slow.version = 2
        await client.restart_backend("1")
        assert [await handle.call("a"), await handle.call("a")] == ["a2", "a2"]
    assert slow.items == ["a", "a"]


async def test_what_an_old_replica_still_makes_is_not_kept():
    slow = Slow(1)
    async with serving(slow) as (client, handle), anyio.create_task_group() as tasks:
        (before,) = await line_up(tasks, handle.call("a"))
        await anyio.sleep(0.5)  # now it runs
        slow.version = 2
        tasks.start_soon(client.restart_backend, "1")
        await settle()
        (after,) = await line_up(tasks, handle.call("a"))
        await anyio.sleep(0.7)  # now the old one has ended
        assert [before.outcome, after.outcome] == ["a1", PENDING]
        assert await handle.call("a") == "a2"
    assert slow.items == ["a", "a"]


async def test_results_of_old_replicas_are_not_kept_while_a_change_is_recorded():
    slow = Slow(1)
    async with serving(slow) as (client, handle), anyio.create_task_group() as tasks:
        async with client._declaring:
            tasks.start_soon(client.update_backend_config, "1", {"cancel_grace_s": 2.0})
            await settle()  # now the new replica is ready
            assert await handle.call("a") == "a1"
            (running,) = await line_up(tasks, handle.call("b"))
            await anyio.sleep(0.5)
            slow.version = 2
        await settle()
        assert [await handle.call("a"), await handle.call("b")] == ["a2", "b2"]
        assert running.outcome == "b1"
    assert slow.items == ["a", "b", "a", "b"]


async def test_a_change_of_the_config_makes_new_results():
    slow = Slow(1)
    async with serving(slow) as (client, handle):
        await handle.call("a")
        await client.update_backend_config("1", {"max_batch_size": 3})
        await handle.call("a")
    assert slow.items == ["a", "a"]


class Versioned:
    def __init__(self) -> None:
        self.version = "none"

    async def reconfigure(self, user_config: str) -> None:
        self.version = user_config

    async def __call__(self, item: int) -> str:
        return f"{self.version} {item}"


@pytest.mark.real_time  # a class is constructed in a thread
async def test_a_new_user_config_makes_new_results():
    async with shoal.start() as client:
        config = {"dedupe": True, "cache": CACHE, "user_config": "one"}
        handle = await deployed(client, "b", Versioned, config=config, endpoint="e")
        assert await handle.call(1) == "one 1"
        await client.update_backend_config("b", {"user_config": "two"})
        assert await handle.call(1) == "two 1"
        await client.restart_backend("b")
        assert await handle.call(1) == "two 1"
        found = (await client.get_backend_config("b")).as_dict()
        assert found["dedupe"] is True
        assert found["cache"] == shoal.Cache(max_size=10, ttl_s=60)


DROP: dict[str, Any] = {"max_batch_size": 1, "drop_queued_on_shutdown": True}


@pytest.mark.parametrize("how", ["delete the backend", "shut down"])
async def test_what_waits_fails_and_what_runs_is_answered(how: str, held: Held) -> None:
    async with Controller() as controller, anyio.create_task_group() as tasks:
        handle = await deployed(controller, "held", held, config=DROP)
        callers = await line_up(tasks, *map(handle.call, range(3)))
        await settle()
        if how == "shut down":
            tasks.start_soon(controller.shutdown)
        else:
            await controller.delete_endpoint("held")
            tasks.start_soon(controller.delete_backend, "held")
        await settle()
        assert [type(caller.outcome) for caller in callers[1:]] == [shoal.errors.BatcherClosed] * 2
        held.gate.set()
    assert callers[0].outcome == 0
    assert held.cancelled == []


async def test_a_server_refuses_what_waits_as_soon_as_it_is_told_to_end(held: Held) -> None:
    app = shoal.App()
    app.endpoint("/held", **DROP)(held)
    running, waiting = (Call(app, "/held", item=item) for item in ("running", "waiting"))
    async with app.lifespan(), calling(running) as tasks:
        await settle()
        tasks.start_soon(waiting.run)
        await settle()
        app.begin_drain()
        await waiting.returned.wait()
        assert waiting.answer.status == 503
        assert waiting.answer.json()["type"] == "urn:shoal:problem:closed"
        assert "retry-after" in waiting.answer.headers
        held.gate.set()
        await running.returned.wait()
    assert running.answer.json() == "running"


async def test_a_config_that_changes_has_it_from_then_on(held: Held) -> None:
    async with Controller() as controller, anyio.create_task_group() as tasks:
        handle = await deployed(controller, "held", held, config=DROP)
        await controller.update_backend_config("held", {"drop_queued_on_shutdown": False})
        callers = await line_up(tasks, *map(handle.call, range(3)))
        await settle()
        tasks.start_soon(controller.shutdown)
        await settle()
        held.gate.set()
    assert [caller.outcome for caller in callers] == [0, 1, 2]
