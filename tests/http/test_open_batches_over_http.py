"""Endpoints whose batches take requests while their handler runs."""

import json

import anyio
import pytest
from held_app import statistics

import shoal
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling

pytestmark = pytest.mark.anyio
LINES = ("accept", "application/x-ndjson")
END = b"event: end\ndata: {}\n\n"


class Words:
    """A continuous handler of streams: each request gets its words, one for each that is let go."""

    def __init__(self):
        self.active = []
        self.given = []
        self.ended = []
        self._gates = {}

    def let_go(self, name, words=1):
        for _ in range(words):
            self._gate(name).release()

    async def __call__(self, batch: shoal.OpenBatch[str, str]) -> None:
        async with anyio.create_task_group() as tasks:
            async for request in batch:
                tasks.start_soon(self._serve, request)

    async def _serve(self, request):
        name = request.item
        self.given.append(name)
        self.active.append(name)
        try:
            for word in range(3):
                await self._gate(name).acquire()
                if request.cancelled:
                    return
                if name == "bad" and word == 1:
                    request.fail(ValueError("secret"))
                    return
                await request.send(f"{name}{word}")
            request.finish()
        finally:
            self.active.remove(name)
            self.ended.append(name)

    def _gate(self, name):
        return self._gates.setdefault(name, anyio.Semaphore(0))


@pytest.fixture
def words():
    return Words()


def serving(handler, **options):
    app = shoal.App()
    app.endpoint("/it", name="it", **options)(handler)
    return app


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([], b'data: "a0"\n\ndata: "a1"\n\ndata: "a2"\n\n' + END),
        ([LINES], b'{"item":"a0"}\n{"item":"a1"}\n{"item":"a2"}\n{"end":true}\n'),
    ],
)
async def test_a_stream_of_a_continuous_batch_is_sent_as_it_is_produced(words, headers, body):
    app = serving(words, fill="continuous", streams=True, max_batch_size=2)
    call = Call(app, "/it", item="a", headers=headers)
    async with app.lifespan(), calling(call):
        await settle()
        assert call.sent == []
        words.let_go("a")
        await settle()
        assert b"a0" in call.body
        assert b"a1" not in call.body
        words.let_go("a", 2)
        await call.returned.wait()
    assert (call.status, call.body) == (200, body)


async def test_a_request_joins_while_others_are_streamed(words):
    app = serving(words, fill="continuous", streams=True, max_batch_size=2)
    first, second, third = (Call(app, "/it", item=item) for item in "abc")
    async with app.lifespan(), calling(first) as tasks:
        words.let_go("a")
        await first.until_sent(b"a0")
        tasks.start_soon(second.run)
        await settle()
        tasks.start_soon(third.run)
        await settle()
        assert words.active == ["a", "b"]
        words.let_go("b", 3)
        await second.returned.wait()
        await settle()
        assert words.active == ["a", "c"]
        words.let_go("a", 2)
        words.let_go("c", 3)
        await third.returned.wait()
        await first.returned.wait()
        assert statistics(app, "it").batches_running == 1
    assert all(call.body.endswith(END) for call in (first, second, third))


async def test_a_client_that_leaves_in_mid_stream_frees_its_place(words):
    app = serving(words, fill="continuous", streams=True, max_batch_size=1)
    leaver, second = (Call(app, "/it", item=item) for item in "ab")
    async with app.lifespan(), calling(leaver) as tasks:
        words.let_go("a")
        await leaver.until_sent(b"a0")
        tasks.start_soon(second.run)
        await settle()
        assert words.given == ["a"]
        leaver.leave()
        await leaver.returned.wait()
        await settle()
        assert words.given == ["a", "b"]
        words.let_go("a")
        words.let_go("b", 3)
        await second.returned.wait()
        assert statistics(app, "it").cancelled == 1
    assert not leaver.is_complete
    assert second.body.endswith(END)


async def test_an_error_in_mid_stream_is_the_last_event_of_its_stream_alone(words):
    app = serving(words, fill="continuous", streams=True, max_batch_size=2)
    bad, good = Call(app, "/it", item="bad"), Call(app, "/it", item="good")
    async with app.lifespan(), calling(bad, good):
        words.let_go("bad", 2)
        words.let_go("good", 3)
        await bad.returned.wait()
        await good.returned.wait()
    assert b"event: error" in bad.body
    assert b"secret" not in bad.body
    assert good.body.endswith(END)


async def test_calls_of_an_open_batch_get_their_results():
    sizes = []

    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        requests = [request async for request in batch]
        sizes.append(len(requests))
        for request in requests:
            request.finish(2 * request.item)

    app = serving(handler, fill="open", max_batch_size=3, batch_wait_timeout_s=5)
    calls = [Call(app, "/it", item=item) for item in range(4)]
    async with app.lifespan(), calling(*calls):
        for call in calls:
            await call.returned.wait()
    assert sizes == [3, 1]
    assert [call.answer.json() for call in calls] == [0, 2, 4, 6]


async def test_who_is_left_unanswered_gets_an_error():
    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        await batch.join()

    app = serving(handler, fill="open", max_batch_size=3)
    async with app.lifespan():
        answer = await ask(app, "/it", 1)
    assert answer.status == 500
    assert answer.headers["content-type"] == "application/problem+json"


async def test_an_item_that_is_too_large_is_told_by_status():
    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            request.finish(request.item)

    app = serving(handler, fill="open", max_batch_size=3, batch_size_fn=lambda item: item)
    async with app.lifespan():
        assert (await ask(app, "/it", 4)).status == 413
        assert (await ask(app, "/it", 3)).json() == 3


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_items_are_checked_against_the_annotation_of_the_batch(fill):
    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            request.finish(request.item)

    app = serving(handler, fill=fill)
    async with app.lifespan():
        assert (await ask(app, "/it", "text")).status == 422
        assert (await ask(app, "/it", 3)).json() == 3


@pytest.mark.real_time
@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_a_class_is_made_once_and_its_call_is_the_handler(fill):
    made = []
    app = shoal.App()

    @app.endpoint("/it", name="it", fill=fill, streams=True)
    class Model:
        def __init__(self):
            made.append(self)

        async def __call__(self, batch: shoal.OpenBatch[int, int]) -> None:
            async for request in batch:
                for number in range(request.item):
                    await request.send(number)
                request.finish()

    async with app.lifespan():
        for item in (2, 3):
            answer = await ask(app, "/it", item, headers=[LINES])
            lines = [json.loads(line) for line in answer.body.splitlines()]
            assert lines == [*({"item": number} for number in range(item)), {"end": True}]
        assert (await ask(app, "/it", "text")).status == 422
    assert len(made) == 1


async def test_a_decorated_function_keeps_its_way_of_filling():
    @shoal.batch(fill="continuous", streams=True)
    async def counts(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            await request.send(request.item)
            request.finish()

    app = shoal.App()
    with pytest.raises(TypeError, match="decorated"):
        app.endpoint("/other", fill="open")(counts)
    app.endpoint("/it", name="it")(counts)
    async with app.lifespan():
        answer = await ask(app, "/it", 7)
    assert answer.body == b"data: 7\n\n" + END


async def test_stopping_serves_queued_requests(words):
    app = serving(words, fill="continuous", streams=True, max_batch_size=1)
    calls = [Call(app, "/it", item=item) for item in "ab"]
    stop = anyio.Event()

    async def serve(*, task_status):
        async with app.lifespan():
            task_status.started()
            await stop.wait()

    async with anyio.create_task_group() as tasks:
        await tasks.start(serve)
        for call in calls:
            tasks.start_soon(call.run)
            await settle()
        stop.set()
        await settle()
        words.let_go("a", 3)
        words.let_go("b", 3)
    assert all(call.body.endswith(END) for call in calls)


def test_streams_are_for_batches_that_are_open():
    async def handler(items: list[int]) -> list[int]:
        return items

    app = shoal.App()
    with pytest.raises(TypeError, match="streams"):
        app.endpoint("/it", streams=True)(handler)
