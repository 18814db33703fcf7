"""Results that calls of a backend share, and until when: other code answers after a change."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import PENDING, line_up
from serving.scenes import deployed
from shoal.testing import settle

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
