"""Code for open batches that tests of replicas run; it is imported in workers and in actors."""

import asyncio
import gc
import os
import time
from typing import Any

import anyio
import sniffio
import trio

import shoal
from replicas.process_backends import Block, Unreadable, Unsendable
from shoal.replicas.process.wire.messages import packed
from shoal.replicas.process.wire.open_batch import CHUNK, WAIT
from shoal.testing.replicas.code import Folder, Mistake


class Open:
    def __init__(self, folder: str = "") -> None:
        self._folder = Folder(folder)
        self._config: Any = None
        self._kept: list[Any] = []

    async def reconfigure(self, config: Any) -> None:
        self._config = config

    async def health(self) -> None:
        self._folder.note("health")

    async def __call__(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        """Answers each request by what its item names."""
        async for request in batch:
            item = request.item
            if item == "pid":
                request.finish(os.getpid())
            elif item == "config":
                request.finish(self._config)
            elif item == "unsendable":
                request.finish(Unsendable())
            elif item == "unreadable":
                request.finish(Unreadable())
            elif item == "mistake":
                request.fail(Mistake("of one"))
            elif item == "knows":
                now = anyio.current_time()
                deadline = request.deadline or now
                request.finish(
                    (
                        dict(request.metadata),
                        request.priority,
                        request.cost,
                        round(deadline - now),
                        now - request.arrived_at < 5,
                        [each.item for each in shoal.current_batch().requests],
                    )
                )
            elif type(item) is Block:
                request.finish(Block(bytearray(item.memory)))
            elif item != "nothing":
                request.finish(item)

    async def once(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        """Answers the requests that are there, and ends when it may."""
        joined = await batch.join()
        self._folder.note(f"once {[request.item for request in joined]}")
        await self._folder.wait_async("once")
        for request in joined:
            request.finish(request.item)

    async def closed(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        """Answers when no more requests join, with why."""
        requests = [request async for request in batch]
        for request in requests:
            request.finish((batch.size, str(batch.reason)))

    async def raises(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        async for request in batch:
            self._folder.note(f"raises {request.item}")
            await self._folder.wait_async("raise")
            raise Mistake("of all")

    async def stuck(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        """Holds the process while it has a request."""
        async for request in batch:
            self._folder.note(f"stuck {request.item}")
            self._folder.wait("stuck")
            request.finish(request.item)

    async def count(self, batch: shoal.OpenBatch[int, int]) -> None:
        """Streams the numbers from 1 to the item, one in each step."""
        at: dict[Any, int] = {}
        async for joined in batch.steps():
            at |= dict.fromkeys(joined, 0)
            at = {request: number + 1 for request, number in at.items() if not request.ended}
            await batch.send(dict(at))
            for request, number in at.items():
                if number == request.item:
                    request.finish()

    async def one_task_each(self, batch: shoal.OpenBatch[str, Any]) -> None:
        """Streams the item until its caller leaves, or the wait of its name is over."""

        async def serve(request: shoal.OpenRequest[str, Any]) -> None:
            self._folder.note(f"begins {request.item}")
            if request.item == "unsendable":
                await request.send(1)
                await request.send(Unsendable())
                self._folder.note(f"ended {request.ended}")
                return
            sent = 0
            while not (request.ended or self._folder.is_released(request.item)):
                await request.send(sent)
                sent += 1
                self._folder.note(f"sent {request.item} {sent}")
                await anyio.sleep(0.001)
            self._folder.note(f"leaves {request.item} {request.cancelled}")
            if not request.ended:
                request.finish()

        async with anyio.create_task_group() as tasks:
            async for request in batch:
                tasks.start_soon(serve, request)

    async def drains(self, batch: shoal.OpenBatch[str, Any]) -> None:
        """Ends its streams when its backend begins to close."""
        async for request in batch:
            await request.send(1)
            await batch.draining.wait()
            request.finish()

    async def leaves(self, batch: shoal.OpenBatch[str, Any]) -> None:
        """Answers two requests, and lets another batch have the others."""
        answered = 0
        async for request in batch:
            request.finish((batch.id, request.item))
            answered += 1
            if answered == 2:
                batch.leave()

    async def cleans_up(self, batch: shoal.OpenBatch[str, Any]) -> None:
        """Answers when it is cancelled."""
        async for request in batch:
            try:
                self._folder.note("waits")
                await anyio.sleep_forever()
            finally:
                request.finish("at last")

    async def never_ends(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        async for request in batch:
            self._folder.note(f"holds {request.item}")
            while True:
                time.sleep(0.01)  # noqa: ASYNC251 - as a model that computes would

    async def exits(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        await batch.join()
        raise SystemExit(3)

    async def lies(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        """Sends rubbish in place of its answers."""
        async for request in batch:
            wire: Any = batch._run
            if request.item == "too much":
                wire._answers += [(CHUNK, request._request.waiter.number, n) for n in range(99)]
                wire.flush()
            elif request.item == "no message":
                wire._send_message(packed(("no", "message")))
            elif request.item == "seen too much":
                wire._saw += 1000
                request.finish()
            elif request.item == "waits twice":
                number = request._request.waiter.number
                wire._answers += [(WAIT, 1, [number])] * 2
                wire.flush()
            elif request.item == "waits again":
                number = request._request.waiter.number
                for wait in (1, 2):
                    wire._answers.append((WAIT, wait, [number]))
                    wire.flush()
                await request.send("sent")
                request.finish()
            elif request.item == "no frame":
                wire._send_message.func.__self__._connection.send([b"\xff" * 64])

    def pids(self, items: list[Any]) -> list[int]:
        """Returns the process for each item."""
        return [os.getpid() for _ in items]

    async def two_at_once(self, batch: shoal.OpenBatch[str, str]) -> None:
        """Uses the room of one stream while a task waits to send to both."""
        a, b = sorted([request async for request in batch], key=lambda each: each.item)
        for _ in range(2):
            await a.send("alone")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(batch.send, {a: "both", b: "both"})
            await anyio.wait_all_tasks_blocked()
            for _ in range(2):
                await b.send("alone")
            self._folder.note("both are full")
        a.finish()
        b.finish()

    async def goes_on(self, batch: shoal.OpenBatch[int, Any]) -> None:
        """Begins to wait for a reader when it has room already, and then fills its buffer."""
        async for request in batch:
            await request.send(1)
            await self._folder.wait_async("the first is read")
            await request.send(2)
            batch.join_nowait()  # sends it
            self._folder.note("sent 2")
            self._folder.wait("room is reported")
            await request.send(3)
            batch.join_nowait()
            self._folder.release("the buffer is full")
            await self._folder.wait_async("end")
            request.finish()

    async def counts_blocks(self, batch: shoal.OpenBatch[Any, int]) -> None:
        """Looks for no more requests until it may, and answers how many items it then holds."""
        async for request in batch:
            self._folder.note("busy")
            await self._folder.wait_async("count")
            request.finish(sum(type(each) is Block for each in gc.get_objects()))

    async def leaves_early(self, batch: shoal.OpenBatch[str, Any]) -> None:
        """Takes no more requests once it has its first."""
        first = await batch.join()
        batch.leave()
        batch.join_nowait()  # sends that
        self._folder.note(f"left {[request.item for request in first]}")
        await self._folder.wait_async("leave")
        rest = await batch.join()
        for request in (*first, *rest):
            request.finish([each.item for each in first])

    async def answers_much(self, batch: shoal.OpenBatch[int, Any]) -> None:
        """Answers with large and small values when it is cancelled."""
        joined = [request async for request in batch]
        try:
            self._folder.note("waits")
            await anyio.sleep_forever()
        finally:
            for request in joined:
                request.finish(Block(bytearray(request.item)) if request.item else "small")

    async def outlived(self, batch: shoal.OpenBatch[str, Any]) -> None:
        """Ends while its tasks still wait for a reader, and for requests."""
        [request] = await batch.join()

        async def send() -> None:
            while not request.ended:
                await request.send("item")
            self._folder.note(f"no more to send: {request.ended}")

        async def join() -> None:
            self._folder.note(f"joined: {await batch.join()}")

        for function in (send, join):
            if sniffio.current_async_library() == "trio":
                trio.lowlevel.spawn_system_task(function)
            else:
                self._kept.append(asyncio.get_running_loop().create_task(function()))
        await anyio.wait_all_tasks_blocked()

    async def busy(self, batch: shoal.OpenBatch[int, Any]) -> None:
        """Takes steps without waiting until a task beside it has had some turns."""
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_turns)
            async for joined in batch.steps():
                turns = 0 if joined else turns
                for request in batch.active:
                    if turns >= request.item:
                        request.finish(turns)
            tasks.cancel_scope.cancel()

    async def plain_lists(self, items: list[int]) -> list[int]:
        return items

    def plain(self, batch: shoal.OpenBatch[Any, Any]) -> None:
        pass
