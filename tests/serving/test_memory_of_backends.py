"""What backends have used is freed: items, results, dead replicas, places of dropped streams."""

import gc
import logging
import os
import signal
import warnings
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import settle
from serving.composed_code import Dropping, PlainDropping, endless, plain_endless
from serving.failing_code import Mortal
from serving.scenes import deployed
from serving.watched_code import (
    Thing,
    failing,
    failing_steps,
    in_a_task,
    one,
    plain,
    plain_steps,
    plainly_failing,
    steps,
)
from shoal.core.replicas import life
from shoal.errors import HandlerTimeout, ReplicaDied
from shoal.replicas.process.calls import Conversation
from shoal.replicas.process.replica import ProcessReplica
from shoal.replicas.process.wire.frames import FrameReader
from shoal.replicas.process.wire.shared_memory import Region
from shoal.replicas.process.worker import Worker
from shoal.serving.backends.managed import ManagedReplica
from shoal.serving.controller.controller import Controller
from shoal.serving.controller.endpoints import EndpointHandle
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


ASYNC: list[Any] = [in_a_task, one, steps, failing, failing_steps]
PLAIN: list[Any] = [plain, plain_steps, plainly_failing]
CASES: list[Any] = [
    *((code, "task", retries) for code in ASYNC + PLAIN for retries in (0, 1)),
    *((code, "thread", retries) for code in PLAIN for retries in (0, 1)),
    *(
        pytest.param(code, "process", retries, marks=pytest.mark.one_loop)
        for code, retries in [(in_a_task, 0), (steps, 1), (plain_steps, 0), (failing, 1)]
    ),
]


async def call_with(handle: Any, references: list[weakref.ref[Any]], *, streams: bool) -> None:
    thing = Thing()
    references.append(weakref.ref(thing))
    try:
        if streams:
            async with handle.stream(thing) as stream:
                del thing
                async for step in stream:
                    references.append(weakref.ref(step))
                    del step
        else:
            call = handle.call(thing)
            del thing
            references.append(weakref.ref(await call))
    except ValueError:
        pass


async def freed(references: list[weakref.ref[Any]]) -> None:
    with anyio.fail_after(HANG_S):
        while any(reference() is not None for reference in references):
            await anyio.sleep(0.01)
            gc.collect()


@pytest.mark.parametrize(
    ("code", "placement", "retries"), CASES, ids=lambda one: getattr(one, "__name__", str(one))
)
async def test_what_was_answered_is_kept_by_nobody(code: Any, placement: str, retries: int) -> None:
    references: list[weakref.ref[Any]] = []
    streams = "steps" in code.__name__
    config: dict[str, Any] = {"placement": placement, "retries": retries}
    async with shoal.start() as client:
        handle = await deployed(client, "b", code, config=config, endpoint="e")
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(lambda: call_with(handle, references, streams=streams))
        await freed(references)
        assert len(references) >= 6


async def test_what_was_left_is_kept_by_nobody() -> None:
    @shoal.accept_batch
    async def hanging(things: list[Any]) -> list[Any]:
        await anyio.sleep_forever()
        return things

    references: list[weakref.ref[Any]] = []
    async with shoal.start() as client:
        handle = await deployed(client, "b", hanging, endpoint="e")
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(lambda: call_with(handle, references, streams=False))
            await settle()
            tasks.cancel_scope.cancel()
        await freed(references)
        assert len(references) == 6


OF_A_REPLICA = {ManagedReplica: 1, ProcessReplica: 1, Conversation: 1, Worker: 1, Region: 2}
OF_A_REPLICA |= {FrameReader: 2}  # one of each channel, with a buffer of 64 KiB


WAYS = ("exits", "hangs", "nothing", "is unhealthy", "a stream of exits", "a config of exits")
WAYS_TO_RUN_AGAIN = ("exits", "a stream of exits")


def alive() -> Counter[type]:
    return Counter(type(one) for one in gc.get_objects() if type(one) in OF_A_REPLICA)


async def dies(client: Any, handle: Any, how: str) -> None:
    way, _, item = how.rpartition(" of ")
    if way == "a stream":
        with pytest.raises((ReplicaDied, HandlerTimeout)):
            await read(handle, item)
    elif way == "a config":
        with pytest.raises(ReplicaDied):
            await client.update_backend_config("b", {"user_config": item})
    elif item == "nothing":
        os.kill(await handle.call("lives"), signal.SIGKILL)
    elif item == "is unhealthy":
        await handle.call(item)
    else:
        with pytest.raises((ReplicaDied, HandlerTimeout)):
            await handle.call(item)


async def read(handle: Any, item: str) -> None:
    async with handle.options(method_name="steps").stream(item) as steps:
        async for _ in steps:
            pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("retries", "ways"), [(0, WAYS), pytest.param(1, WAYS_TO_RUN_AGAIN, marks=pytest.mark.one_loop)]
)
async def test_a_dead_replica_is_freed_without_a_collection(
    retries, ways, monkeypatch, caplog, tmp_path
):
    flag = tmp_path / "no replica can start"
    caplog.set_level(logging.CRITICAL, logger="shoal")  # the log of a test keeps errors
    monkeypatch.setattr(life, "LONGEST_S", 0.02)
    config = {"placement": "process", "retries": retries, "cancel_grace_s": 0.05}
    config |= {"health_check_period_s": 0.1, "handler_timeout_s": 1, "max_memory_bytes": 10**9}
    async with Controller() as client:
        handle = await deployed(client, "b", Mortal, str(flag), config=config, endpoint="e")
        pid = await handle.call("lives")
        gc.collect()
        gc.disable()
        try:
            for how in ways:
                if how == "nothing":
                    flag.touch()
                await dies(client, handle, how)
                if how == "nothing":
                    failures = client.backends["b"].supervisor.failures
                    while not failures.start_failures:  # noqa: ASYNC110 - nothing tells it
                        await anyio.sleep(0.01)
                    assert alive()[Conversation] <= 1  # that of a start, at most
                    flag.unlink()
                while (survivor := await lives(handle)) in (None, pid):  # noqa: ASYNC110 - see `lives`
                    await anyio.sleep(0.01)
                pid = survivor
                # The task of the dead one may end a moment after the new one is ready.
                with anyio.move_on_after(5):
                    while alive() != OF_A_REPLICA:  # noqa: ASYNC110 - nothing tells it
                        await anyio.sleep(0.02)
                assert alive() == OF_A_REPLICA, how
        finally:
            gc.enable()


async def lives(handle: Any) -> int | None:
    """Returns the process of the replica; None if that has just died."""
    try:
        pid: int = await handle.call("lives")
    except (ReplicaDied, HandlerTimeout):
        return None
    return pid


TOKEN = "correct-horse"


@asynccontextmanager
async def serving(
    code: Any = endless, placement: str = "task", **http: Any
) -> AsyncGenerator[tuple[Any, EndpointHandle]]:
    """Serves a stream without an end, to one reader at a time."""
    with anyio.fail_after(HANG_S), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "a stream of")
        async with shoal.start(**http) as client:
            config = {"placement": placement, "max_batch_size": 1, "slow_reader_timeout_s": None}
            config["graceful_shutdown_timeout_s"] = 0
            yield client, await deployed(client, "inner", code, config=config)


async def has_room(client: Any) -> None:
    with anyio.fail_after(HANG_S):
        while (await client.status()).backends["inner"].ongoing:  # noqa: ASYNC110
            await anyio.sleep(0.001)


async def first(stream: Any) -> Any:
    async for item in stream:
        return item
    raise AssertionError


async def begun(stream: Any) -> Any:
    await stream.__aenter__()
    assert await anext(stream) == 1
    return stream


@pytest.mark.parametrize(
    ("code", "placement"),
    [
        (endless, "task"),
        (plain_endless, "thread"),
        (endless, "process"),
        pytest.param(plain_endless, "process", marks=pytest.mark.one_loop),
    ],
)
async def test_a_stream_of_a_handle(code: Any, placement: str) -> None:
    async with serving(code, placement) as (client, handle):
        for _ in range(2):
            assert await first(handle.stream(1)) == 1
            await has_room(client)
            held = [await begun(handle.stream(1))]
            held.clear()
            await has_room(client)


async def test_one_in_a_cycle() -> None:
    async with serving() as (client, handle):
        held: list[Any] = [await begun(handle.stream(1))]
        held.append(held)
        del held
        gc.collect()
        await has_room(client)


async def test_one_that_is_dropped_by_another_thread() -> None:
    async with serving() as (client, handle):
        held = [await begun(handle.stream(1))]
        await anyio.to_thread.run_sync(held.clear)
        await has_room(client)


async def test_one_whose_items_are_compared() -> None:
    async with serving() as (client, handle):
        await client.create_backend("shadow", endless, config={"placement": "task"})
        await client.shadow_traffic("inner", "shadow", 1.0, compare=lambda _, __: True)
        assert await first(handle.stream(1)) == 1
        await has_room(client)
        await client.shadow_traffic("inner", "shadow", 0)
        await client.delete_backend("shadow", force=True)


async def test_one_of_a_thread() -> None:
    def read(make: Callable[[int], Any]) -> Any:
        stream = make(1).__enter__()
        return next(stream)

    async with serving() as (client, handle):
        assert await anyio.to_thread.run_sync(read, handle.sync.stream) == 1
        await has_room(client)
        held = [await anyio.to_thread.run_sync(handle.sync.stream(1).__enter__)]
        held.clear()  # in the event loop's own thread
        await has_room(client)


@pytest.mark.parametrize(
    ("code", "placement", "method"),
    [
        (Dropping, "task", "__call__"),
        (Dropping, "task", "entered"),
        (PlainDropping, "thread", "__call__"),
        pytest.param(Dropping, "process", "__call__", marks=pytest.mark.one_loop),
        pytest.param(Dropping, "process", "entered", marks=pytest.mark.one_loop),
        pytest.param(PlainDropping, "process", "__call__", marks=pytest.mark.one_loop),
    ],
)
async def test_one_of_code_in_a_backend(code: Any, placement: str, method: str) -> None:
    async with serving() as (client, handle):
        outer = await deployed(client, "outer", code, handle, config={"placement": placement})
        for _ in range(2):
            assert await outer.options(method_name=method).call(1) == 1
            await has_room(client)


@asynccontextmanager
async def remote() -> AsyncGenerator[tuple[Any, Any]]:
    http = {"port": 0, "token": TOKEN}
    async with (
        serving(http=http) as (client, _),
        shoal.connect(client.url, token=TOKEN) as connected,
    ):
        yield client, connected


async def test_one_from_a_server() -> None:
    async with remote() as (client, connected):
        handle = await connected.get_handle("inner")
        for _ in range(2):
            held = [await begun(handle.stream(1))]
            held.clear()
            await has_room(client)
        held = [await begun(handle.stream(1))]
        await anyio.to_thread.run_sync(held.clear)
        await has_room(client)
        held = [await begun(handle.stream(1))]
        held.append(held)
        del held
        gc.collect()
        await has_room(client)


async def test_one_from_a_server_that_was_never_read() -> None:
    async with remote() as (client, connected):
        handle = await connected.get_handle("inner")
        held = [await handle.stream(1).__aenter__()]
        held.clear()
        await has_room(client)
        held = [await handle.stream(1).__aenter__()]
        with pytest.warns(ResourceWarning, match="a stream of .* was not closed"):
            held.clear()
        await has_room(client)
        open_streams = connected._connection.pool._client._transport._pool.connections
        await connected.status()
        assert len(open_streams) <= 1


async def test_one_of_a_thread_from_a_server() -> None:
    def read(url: str) -> Any:
        with shoal.connect(url, token=TOKEN) as connected:
            stream = connected.get_handle("inner").stream(1).__enter__()
            return next(stream), stream  # which the end of the client ends

    async with remote() as (client, _):
        held = [await anyio.to_thread.run_sync(read, client.url)]
        assert held.pop()[0] == 1
        await has_room(client)
