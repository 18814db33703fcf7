"""What a handler that runs elsewhere learns of the readers of its streams."""

import anyio
from anyio.lowlevel import checkpoint

import shoal
from shoal.batching.open_relay import OpenRelay


async def pass_on():
    for _ in range(8):
        await checkpoint()


async def test_streams_that_began_at_different_times_get_room_in_one_message():
    said = []
    read = {}

    async def send(news):
        said.append(news)
        relay.saw(len(said), len(read))

    async def handler(batch):
        nonlocal relay
        relay = OpenRelay(batch)
        async with anyio.create_task_group() as tasks:
            relay.begin(tasks, send)
            await stop.wait()
            tasks.cancel_scope.cancel()

    async def reader(name):
        read[name] = 0
        async with call(name) as stream:
            async for _ in stream:
                read[name] += 1

    relay = None
    stop = anyio.Event()
    batcher = shoal.Batcher(handler, fill="continuous", streams=True, max_batch_size=2)
    async with batcher as call, anyio.create_task_group() as readers:
        readers.start_soon(reader, "a")
        await pass_on()
        [(first, _, room)] = said[0].joined
        for _ in range(room // 2 - 1):
            relay.put(first, "item")
            await pass_on()
        readers.start_soon(reader, "b")
        await pass_on()
        [(second, _, _)] = said[-1].joined
        relay.put(second, "item")
        await pass_on()
        assert [news.room for news in said] == [{}, {}]
        relay.put(first, "item")
        await pass_on()
        assert [[*news.room] for news in said[2:]] == [[first, second]]
        assert read == {"a": room // 2, "b": 1}
        readers.cancel_scope.cancel()
        stop.set()
