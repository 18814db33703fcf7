"""Which outcome, protocol and trace a request over HTTP is counted by, however it ends."""

import anyio
import pytest

import shoal
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling


def ended(app, endpoint="x"):
    times = [*app._shared.times, *([] if app.controller is None else app.controller.times)]
    return {(o.protocol, o.outcome): o.times.total for o in times if o.endpoint == endpoint}


async def test_a_stream_whose_client_leaves_halfway_was_left():
    async def endless(items: list[int]):
        yield items
        await anyio.sleep_forever()

    app = shoal.App()
    app.endpoint("/x", name="x")(endless)
    call = Call(app, "/x", item=1)
    async with app.lifespan(), calling(call):
        await settle()
        assert ended(app) == {}
        call.leave()
        await call.returned.wait()
        assert ended(app) == {("json", "left"): 1}


async def test_a_call_by_a_handle_is_counted_apart():
    async def picky(items: list[int]) -> list[int]:
        if 0 in items:
            raise ValueError
        await anyio.sleep(items[0])
        return items

    async def steps(items: list[int]):
        for _ in range(2):
            yield items

    app = shoal.App()
    app.endpoint("/x", name="x")(picky)
    app.endpoint("/steps", name="steps")(steps)
    async with app.lifespan():
        handle = await app.controller.get_handle("x")
        await handle.call(1)
        with pytest.raises(ValueError):
            await handle.call(0)
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await handle.options(timeout_s=1).call(5)
        with anyio.move_on_after(1):
            await handle.call(5)
        await ask(app, "/x", 1)
        assert ended(app) == {
            ("json", "ok"): 1,
            ("python", "ok"): 1,
            ("python", "failed"): 1,
            ("python", "timeout"): 1,
            ("python", "left"): 1,
        }
        streams = await app.controller.get_handle("steps")
        async with streams.stream(1) as whole:
            assert [item async for item in whole] == [1, 1]
        async with streams.stream(1) as part:
            await anext(part)
        assert ended(app, "steps") == {("python", "ok"): 1, ("python", "left"): 1}


async def test_a_replica_of_a_continuous_batch_runs_its_requests_and_none_while_idle():
    go = anyio.Event()

    async def held(batch: shoal.OpenBatch[int, int]) -> None:
        async for _ in batch.steps():
            await go.wait()
            for request in batch.active:
                request.finish(request.item)

    app = shoal.App()
    app.endpoint("/x", name="x", fill="continuous", max_batch_size=4)(held)
    async with app.lifespan(), anyio.create_task_group() as tasks:
        for item in range(3):
            tasks.start_soon(ask, app, "/x", item)
        await settle()

        def figures():
            backend = app.controller.status_now().backends["x"]
            return backend.ongoing, backend.replicas[0].ongoing

        assert figures() == (3, 3)
        go.set()
        await settle()
        assert figures() == (0, 0)
