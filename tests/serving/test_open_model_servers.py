"""Open and continuous batches in model servers, whose requests are those of several ingresses."""

from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

import shoal
from replicas.remote_servers import listening
from serving.scenes import deployed
from shoal.errors import DeadlineExceeded, ReplicaDied, SlowReader
from shoal.serving import backend_config
from shoal.serving.controller.controller import Controller
from shoal.serving.model_server import ingress as ingress_module
from worker_processes import until

pytestmark = pytest.mark.real_time


class Counts:
    """Streams numbers from 1 on, one for each request in a step, until the item; "on" is endless.

    Before each step after the first one it waits for `go`, if that was replaced.
    """

    def __init__(self):
        self.joined = []
        self.left = []
        self.deadlines = []
        self.go = anyio.Event()
        self.go.set()

    async def __call__(self, batch: shoal.OpenBatch[object, object]):
        sent = {}
        async for joined in batch.steps():
            for request in joined:
                self.joined.append((batch.id, request.item))
                self.deadlines.append(request.deadline)
            sent |= dict.fromkeys(joined, 0)
            self.left += [request.item for request in sent if request.cancelled]
            sent = {request: number + 1 for request, number in sent.items() if not request.ended}
            await batch.send(dict(sent))
            for request, number in sent.items():
                if number == request.item:
                    request.finish()
            await self.go.wait()


class Answers:
    """Answers each request when its event is set, and notes how many requests it has."""

    def __init__(self):
        self.events = {}
        self.most = 0

    async def __call__(self, batch: shoal.OpenBatch[str, str]):
        async def answer(request):
            event = self.events.setdefault(request.item, anyio.Event())
            self.most = max(self.most, len(batch.active))
            await event.wait()
            if request.item == "fails":
                request.fail(KeyError("of one"))
            else:
                request.finish(request.item)

        async with anyio.create_task_group() as tasks:
            async for request in batch:
                tasks.start_soon(answer, request)


@asynccontextmanager
async def model_server(address, model, **config):
    options = {"fill": "continuous", "streams": True, "max_batch_size": 16, **config}
    async with Controller() as controller:
        await controller.create_backend("model", model, config=options)
        async with listening(controller, address) as (listener, _):
            yield controller, listener


@asynccontextmanager
async def ingresses(count, *addresses, **config):
    """Yields a handle of each of several servers that forward to the same model servers."""
    options = {"placement": "remote", "model_servers": addresses, **config}
    async with AsyncExitStack() as stack:
        handles = []
        for _ in range(count):
            controller = await stack.enter_async_context(Controller())
            handles.append(await deployed(controller, "model", "nowhere:Nothing", config=options))
        yield handles


async def taken(stream, count):
    return [await anext(stream) for _ in range(count)]


async def test_streams_of_several_ingresses_share_one_batch(at):
    model = Counts()
    got = {}

    async def read(handle, item):
        async with handle.stream(item) as stream:
            got[item] = [chunk async for chunk in stream]

    async with (
        model_server(at, model),
        ingresses(2, at) as (one, other),
        one.stream("on") as on,
    ):
        await taken(on, 1)
        async with anyio.create_task_group() as tasks:
            for handle, item in ((one, 3), (other, 5), (other, 1)):
                tasks.start_soon(read, handle, item)
            await taken(on, 20)
    # The short ones end while the endless one goes on.
    assert got == {1: [1], 3: [1, 2, 3], 5: [1, 2, 3, 4, 5]}
    assert sorted(str(item) for _, item in model.joined) == ["1", "3", "5", "on"]
    assert len({id_ for id_, _ in model.joined}) == 1


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_each_result_is_answered_when_it_is_there(at, fill):
    model = Answers()
    results = []

    async def call(handle, item):
        try:
            results.append(await handle.call(item))
        except KeyError as error:
            results.append(str(error))

    config = {"fill": fill, "streams": False}
    if fill == "open":
        config["batch_wait_timeout_s"] = 60.0
    async with (
        model_server(at, model, **config) as (server, _),
        ingresses(2, at) as handles,
        anyio.create_task_group() as tasks,
    ):
        for number, item in enumerate(["slow", "fails", "fast"]):
            tasks.start_soon(call, handles[number % 2], item)
        await until(lambda: len(model.events) == 3)
        assert model.most == 3
        for number, item in enumerate(["fast", "fails", "slow"]):
            model.events[item].set()
            await until(lambda number=number: len(results) == number + 1)
        server.backends["model"].drain()
    assert results == ["fast", "'of one'", "slow"]


async def test_callers_that_leave_and_deadlines_end_their_requests_over_there(at):
    model = Counts()

    async def read_on(handle):
        async with handle.stream("on") as on:
            await taken(on, 1_000_000)

    async with (
        model_server(at, model),
        ingresses(1, at) as [handle],
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(read_on, handle)
        await until(lambda: model.joined)
        async with handle.stream("leaves") as leaves:
            await taken(leaves, 2)
        await until(lambda: "leaves" in model.left)
        with pytest.raises(DeadlineExceeded):
            async with handle.options(timeout_s=0.05).stream("late") as late:
                await taken(late, 1_000_000)
        await until(lambda: "late" in model.left)
        assert model.left == ["leaves", "late"]
        tasks.cancel_scope.cancel()
    assert [deadline is None for deadline in model.deadlines] == [True, True, False]


async def test_a_reader_that_does_not_read_fails_alone(at):
    model = Counts()
    slow = {"slow_reader_timeout_s": 0.1, "stream_buffer": 2}
    async with (
        model_server(at, model, **slow),
        ingresses(1, at, stream_buffer=2) as [handle],
        handle.stream("on") as on,
        handle.stream("unread") as unread,
    ):
        await taken(unread, 1)
        await taken(on, 200)
        with pytest.raises(SlowReader):
            await taken(unread, 200)
        await taken(on, 10)


@pytest.mark.parametrize("retries", [0, 1])
async def test_the_death_of_a_model_server_fails_begun_streams_by_name(tmp_path, at, retries):
    one, other = Counts(), Counts()
    failed = []

    async def read(handle, item):
        try:
            async with handle.stream(item) as stream:
                await taken(stream, 2)
        except ReplicaDied as error:
            failed.append(str(error))
        else:
            failed.append("none")

    async with (
        model_server(at, one, max_batch_size=1) as (_, listener),
        ingresses(1, at, retries=retries) as [handle],
        handle.stream("on") as on,
        anyio.create_task_group() as tasks,
    ):
        await taken(on, 1)
        tasks.start_soon(read, handle, "waits")  # for its place in the batch
        [connection] = listener.ingresses
        await until(lambda: len(connection._calls) == 2)
        listener._accepting.cancel()
        await until(lambda: listener._bound[0].socket.fileno() == -1)
        (tmp_path / "a").unlink()
        async with model_server(at, other):
            connection._ended.set()
            with pytest.raises(ReplicaDied, match="lost the model server at unix:"):
                await taken(on, 1_000_000)
            await until(lambda: failed)
    if retries:
        assert failed == ["none"]
        assert [item for _, item in other.joined] == ["waits"]
    else:
        assert "lost the model server at unix:" in failed[0]


async def test_more_calls_than_a_connection_takes_wait_in_the_ingress(at, monkeypatch):
    monkeypatch.setattr(ingress_module, "_MOST_CALLS", 4)
    monkeypatch.setattr(backend_config, "MOST_REMOTE_CALLS", 3)
    model = Answers()
    async with (
        model_server(at, model, streams=False) as (_, listener),
        ingresses(1, at) as [handle],
        anyio.create_task_group() as tasks,
    ):
        for number in range(9):
            tasks.start_soon(handle.call, str(number))
        await until(lambda: len(model.events) == 3)
        [connection] = listener.ingresses
        assert len(connection._calls) == 3
        for answered in range(9):
            await until(lambda answered=answered: len(model.events) > answered)
            [*model.events.values()][answered].set()  # trio starts tasks in any order
