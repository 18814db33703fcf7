"""An application whose backends batch in all ways there are, and a load that uses them all.

It is for virtual time, where the same happens at the same moments in each run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

import shoal

if TYPE_CHECKING:
    from server_in_memory import ServerInMemory

    from serving.scenes import Stage

LINES = "application/x-ndjson"
TENSOR = {"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}


def app_on(stage: Stage) -> shoal.App:
    """The application, with the replicas of one of its backends on a stage."""
    app = shoal.App(protocols=["oip", "openai"])
    app.endpoint(
        "/lengths",
        name="lengths",
        max_batch_size=8,
        batch_size_fn=len,
        allowed_batch_sizes=[4, 8],
        pad=lambda texts, _size: texts,
        split=lambda text, most: [text[:most], *(text[n : n + 8] for n in range(most, 64, 8))],
        join=sum,
        isolate_errors=True,
    )(lengths)
    app.endpoint("/padded", name="padded", max_batch_size=6, allowed_batch_sizes=[6])(padded)
    cache = {"max_size": 10, "ttl_s": 60}
    app.endpoint("/shared", name="shared", dedupe=True, cache=cache)(shared)
    app.endpoint("/write", name="write", fill="continuous", streams=True, max_batch_size=4)(write)
    app.endpoint("/count", name="count", fill="continuous", max_batch_size=3)(count)
    opened: dict[str, Any] = {"max_batch_size": 5, "max_concurrent_batches": 2}
    app.endpoint("/store", name="store", fill="open", batch_wait_timeout_s=2, **opened)(store)
    app.endpoint("/words", name="words", batch_wait_timeout_s=0.5, max_batch_size=7)(words)
    levels: dict[str, Any] = {"priority_levels": 3, "overload": "shed_lowest"}
    app.endpoint("/levels", name="levels", max_batch_size=2, max_queued_requests=3, **levels)(
        slowly
    )
    app.endpoint(
        "/parked", name="parked", max_batch_size=1, max_queued_requests=1, overload="wait"
    )(slowly)
    staged: dict[str, Any] = {"placement": stage, "num_replicas": 3, "max_batch_size": 2}
    app.backend("staged", Staged, **staged)
    app.route("staged", backend="staged", path="/staged")
    app.backend("copied", copied, max_batch_size=9)
    app.shadow("staged", "copied", 1.0, compare=lambda ours, theirs: ours == theirs)
    app.shadow("words", "copied", 1.0)
    return app


async def lengths(texts: list[str]) -> list[int]:
    await anyio.sleep(0.3)
    if "!" in texts:
        raise ValueError
    return [len(text) for text in texts]


async def padded(items: list[int]) -> list[int]:
    await anyio.sleep(0.2)
    return items


async def shared(items: list[int]) -> list[int]:
    await anyio.sleep(1)
    return items


async def write(batch: shoal.OpenBatch[str, str]) -> None:
    left: dict[Any, int] = {}
    async for joined in batch.steps():
        left |= {request: len(request.item) for request in joined}
        await anyio.sleep(0.4)
        for request in batch.active:
            await request.send("word")
            left[request] -= 1
            if not left[request]:
                request.finish()


async def count(batch: shoal.OpenBatch[int, int]) -> None:
    async for _ in batch.steps():
        await anyio.sleep(0.7)
        batch.active[0].finish(1)


async def store(batch: shoal.OpenBatch[int, int]) -> None:
    requests = [request async for request in batch]
    await anyio.sleep(1.3)
    for request in requests:
        request.finish(request.item)


async def words(items: list[int]) -> Any:
    for nth in range(max(items)):
        await anyio.sleep(0.6)
        yield [f"word {nth}" if nth < item else shoal.END for item in items]


async def slowly(items: list[int]) -> list[int]:
    await anyio.sleep(2.1)
    return items


class Staged:
    async def __call__(self, items: list[int]) -> list[int]:
        await anyio.sleep(0.9)
        return items

    async def negative(self, items: list[int]) -> list[int]:
        await anyio.sleep(0.1)
        return [-item for item in items]


async def copied(items: list[int]) -> list[int]:
    await anyio.sleep(1.7)
    if 3 in items:
        raise ValueError
    return [min(item, 5) for item in items]


class Load:
    """The load.

    Args:
        app: The application, which is open.
        server: What serves it.
        stage: The stage that it was made with.
    """

    def __init__(self, app: shoal.App, server: ServerInMemory, stage: Stage) -> None:
        assert app.controller is not None
        self._controller = app.controller
        self._server = server
        self._stage = stage

    async def run(self) -> None:
        """Makes calls of all kinds, and has replicas die and fail to start."""
        await self._controller.create_endpoint("held", backend=None, route="/held")
        async with anyio.create_task_group() as tasks:
            # Of tasks that wake at one moment, trio runs first whichever it likes.
            for number, (at, *call) in enumerate(CALLS):
                tasks.start_soon(self._call, at + number / 1000, *call)
            tasks.start_soon(self._lose_replicas)
            await anyio.sleep(25)
            await self._controller.set_traffic("held", {"padded": 1.0})
            await anyio.sleep(0.5)
            handle = await self._controller.get_handle("padded")
            assert [await handle.call(item) for item in (1, 2, 3)] == [1, 2, 3]

    async def _call(
        self, at: float, path: str, item: Any, headers: list[str], leaves_after: float | None
    ) -> None:
        await anyio.sleep(at)
        client = self._server.connect()
        client.ask(path, item, headers=headers)
        if leaves_after is not None:
            await anyio.sleep(leaves_after)
            client.leave()

    async def _lose_replicas(self) -> None:
        replicas = self._stage.replicas
        for number, replica in enumerate(replicas):
            replica.memory = 1_000_000 * (number + 1)

        async def start(replica: Any) -> str | None:
            await anyio.sleep(0.8)
            return "no luck" if replica.number == 3 else None

        await anyio.sleep(2.2)
        self._stage.start = start
        replicas[1].die()
        await anyio.sleep(9)
        replicas[0].die()
        await anyio.sleep(3.3)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._controller.scale_backend, "staged", 2)
            await anyio.sleep(0.1)
            [draining] = [
                replica.tag
                for replica in self._controller.status_now().backends["staged"].replicas
                if replica.state == "draining"
            ]
            next(replica for replica in replicas if replica.tag == draining).die()


def _calls(
    at: float, path: str, *items: Any, leaves_after: float | None = None, **headers: Any
) -> list[Any]:
    given = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return [(at, path, item, given, leaves_after) for item in items]


CALLS = [
    *_calls(0.0, "/lengths", "a", "abc", "x" * 19, "!", "ab", 7),
    *_calls(4.0, "/lengths", "x" * 25, "x" * 11),
    *_calls(10.0, "/lengths", "!", "abc", "ab"),
    *_calls(17.0, "/lengths", "x", "abc", "!"),
    *_calls(1.0, "/padded", 1, 2),
    *_calls(3.5, "/padded", *range(8)),
    *_calls(0.5, "/shared", 1, 1, 1, 2),
    *_calls(5.0, "/shared", 1, 2, 2, 2, 3),
    *_calls(9.0, "/shared", 4, 4, 5, 4, 6, 4, 4),
    *_calls(18.0, "/shared", *range(12)),
    *_calls(0.2, "/write", *("x" * n for n in (1, 3, 2, 5, 4)), accept=LINES),
    *_calls(6.1, "/write", "xx", "x" * 7, accept=LINES),
    *_calls(7.0, "/write", "x" * 9, leaves_after=1.1, accept=LINES),
    *_calls(0.3, "/count", 1, 2),
    *_calls(8.3, "/count", 1, 2, 3, 4, 5),
    *_calls(1.1, "/store", 1, 2, 3, 4, 5, 6, 7, 8),
    *_calls(9.4, "/store", 1),
    *_calls(0.7, "/words", 1, 4, 2),
    *_calls(3.3, "/words", 3, leaves_after=1.0),
    *_calls(0.0, "/levels", 1, 2, 3, 4, x_priority=3),
    *_calls(0.4, "/levels", 5, 6, x_priority=1),
    *_calls(0.5, "/levels", 7, 8, x_priority=2),
    *_calls(6.0, "/levels", 9, 10, x_request_timeout=1),
    *_calls(6.2, "/levels", 11, 12, x_request_timeout=1.5),
    *_calls(2.0, "/parked", 1, 2, 3, 4),
    *_calls(3.0, "/parked", 5, leaves_after=0.5),
    *_calls(0.6, "/staged", *range(10)),
    *_calls(1.9, "/staged", *range(7)),
    *_calls(5.0, "/staged", *range(4), x_serve_call_method="negative"),
    *_calls(14.0, "/staged", *range(5)),
    *_calls(20.0, "/staged", 7, 8, 9, 6),
    *_calls(23.0, "/staged", 3),
    *_calls(12.0, "/held", 1),
    *_calls(12.5, "/held", 2, leaves_after=4.0),
    *_calls(13.0, "/nowhere", 1),
    *_calls(15.0, "/v1/completions", {"model": "write", "prompt": "abc", "stream": True}),
    *_calls(16.0, "/v2/models/padded/infer", {"inputs": [TENSOR]}),
]
