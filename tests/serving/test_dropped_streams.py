"""A stream that nobody refers to any more gives its place back, by whatever handle it was made."""

import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import shoal
from serving.composed_code import Dropping, PlainDropping, endless, plain_endless
from serving.scenes import deployed
from shoal.serving.controller.endpoints import EndpointHandle
from time_limits import HANG_S

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore:a stream of"),
]

TOKEN = "correct-horse"


@asynccontextmanager
async def serving(
    code: Any = endless, placement: str = "task", **http: Any
) -> AsyncGenerator[tuple[Any, EndpointHandle]]:
    """Serves a stream without an end, to one reader at a time."""
    with anyio.fail_after(HANG_S):
        async with shoal.start(**http) as client:
            config = {
                "placement": placement,
                "max_batch_size": 1,
                "slow_reader_timeout_s": None,
                "graceful_shutdown_timeout_s": 0,
            }
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
        *(
            pytest.param(code, "process", method, marks=pytest.mark.one_loop)
            for code, method in [
                (Dropping, "__call__"),
                (Dropping, "entered"),
                (PlainDropping, "__call__"),
            ]
        ),
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
