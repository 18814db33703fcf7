"""Streams whose items the handler's task sends, and batches that take requests while it runs."""

import json
from types import SimpleNamespace

import anyio
import pytest
import trio
import trio.testing
from held_app import answers_counted, served

import shoal
from handlers import app_of, ask_once, ask_together, asking
from shoal.asgi.http_options import HttpOptions
from shoal.core.histogram import ItemTimes
from shoal.http.json.endpoint import JsonCodec
from shoal.http.json.stream_forms import JSON_LINES
from shoal.http.requests.exchange import Exchange
from shoal.http.requests.protocol import StreamForm
from shoal.http.requests.shared_parts import SharedParts
from shoal.http.requests.streaming import _Relay
from shoal.testing import settle
from shoal.testing.asgi import Call, ask

WAIT_S = 1.0
LINES = ("Accept", "application/x-ndjson")
END = b"event: end\ndata: {}\n\n"


class Word(str):
    __slots__ = ()


@pytest.fixture
def streaming(app, steps):
    app.endpoint("/steps", name="steps", batch_wait_timeout_s=WAIT_S, stream_buffer=2)(steps)
    return app


async def begun(server, steps, count=1):
    clients = [server.connect() for _ in range(count)]
    for client in clients:
        client.ask("/steps", 1, headers=[": ".join(LINES)])
    await anyio.sleep(2 * WAIT_S)  # virtual; so that they are in one batch
    await steps.take(0)
    return clients


def parts_of(client):
    """The lines that a client got, parsed; the chunks are complete."""
    lines = []
    rest = client.wire.sent.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        data, rest = rest[: int(size, 16)], rest[int(size, 16) :]
        assert rest.startswith(b"\r\n")
        rest = rest[2:]
        lines += map(json.loads, filter(None, data.splitlines()))
    return lines


def items_of(client):
    return [line["item"] for line in parts_of(client) if "item" in line]


def tasks_that_send(client):
    tasks = []
    send = client.wire.send

    def noted(data):
        tasks.append(anyio.get_current_task().id)
        return send(data)

    client.wire.send = noted
    return tasks


@pytest.mark.parametrize("item", ["word", 1, 0.5, True, None], ids=repr)
async def test_plain_items_are_sent_by_the_task_of_the_handler(streaming, steps, item):
    async with served(streaming) as server:
        (client,) = await begun(server, steps)
        tasks = tasks_that_send(client)
        await steps.take(item)
        assert tasks == [steps.task]
        assert items_of(client) == [0, item]


async def test_plain_items_are_encoded(app, steps):
    app.endpoint("/steps", name="steps", encode=lambda item: [item])(steps)
    async with served(app) as server:
        (client,) = await begun(server, steps)
        await steps.take(1, "word")
        assert items_of(client) == [[0], [1], ["word"]]


@pytest.mark.parametrize("item", [{"a": 1}, [1], Word("word"), 2**70], ids=repr)
async def test_what_may_run_users_code_is_written_by_the_calls_task(
    streaming, steps, monkeypatch, item
):
    is_plain = type(item) is int
    async with served(streaming) as server:
        (client,) = await begun(server, steps)
        tasks = tasks_that_send(client)
        await steps.take(item)
        assert (steps.task in tasks) is is_plain
        assert items_of(client) == [0, item]


async def test_the_order_is_kept_whoever_sends(streaming, steps):
    items = ["a", {"b": 1}, "c", [2], None, "d", "e", {"f": "g"}]
    async with served(streaming) as server:
        clients = await begun(server, steps, count=3)
        await steps.take(*items, shoal.END)
        for client in clients:
            assert items_of(client) == [0, *items]
            assert parts_of(client)[-1] == {"end": True}
        assert server.counts() == (3, 3)


async def test_an_item_that_json_can_not_hold_fails_its_stream(streaming, steps):
    async with served(streaming) as server:
        (client,) = await begun(server, steps)
        await steps.take("a", object())
        assert items_of(client) == [0, "a"]
        assert parts_of(client)[-1]["error"]["status"] == 500
        assert server.counts() == (1, 1)
    assert steps.closed


async def test_a_client_that_reads_slowly_holds_the_handler_and_gets_all_in_order(streaming, steps):
    async with served(streaming) as server:
        slow, other = await begun(server, steps, count=2)
        slow.wire.takes = False
        await steps.take(*range(1, 9))
        # One is on its way, one waits for that, two are in the buffer.
        assert steps.taken == 5
        assert items_of(slow) == [0]
        slow.read_on()
        await settle()
        await steps.take(shoal.END)
        assert items_of(slow) == items_of(other) == [*range(9)]
        assert server.counts() == (2, 2)


@pytest.mark.parametrize("items", [0, 2], ids=["before the first item", "between items"])
async def test_a_client_that_leaves_closes_the_handler_and_is_counted(streaming, steps, items):
    async with served(streaming) as server:
        client = server.connect()
        client.ask("/steps", 1, headers=[": ".join(LINES)])
        await anyio.sleep(2 * WAIT_S)
        await steps.take(*range(items))
        client.leave()
        await settle()
        assert steps.closed
        assert items_of(client) == [*range(items)]
        assert client.releases == 1
        assert server.counts() == (1, 1)
        assert await answers_counted(streaming, "steps") == {"left": 1}


async def test_a_connection_lost_as_an_item_is_sent_leaves_the_others(
    streaming, steps, monkeypatch
):
    async with served(streaming) as server:
        first, lost, last = await begun(server, steps, count=3)

        def send(_data):
            lost.leave()
            return True

        lost.wire.send = send
        await steps.take(1, 2, shoal.END)
        assert items_of(first) == items_of(last) == [0, 1, 2]
        assert items_of(lost) == [0]
        assert lost.releases == 1
        assert server.counts() == (3, 3)


async def test_a_call_that_is_cut_off_gets_its_items_and_then_the_error(streaming, steps):
    async with served(streaming) as server:
        (client,) = await begun(server, steps)
        await steps.take(1)
        server.shared.end_early()
        await steps.take(2)
        *items, error = parts_of(client)
        assert items[:2] == [{"item": 0}, {"item": 1}]
        assert error["error"]["status"] == 503
        assert steps.closed


async def test_a_piece_on_its_way_at_the_cut_off_is_sent_whole_before_the_error(streaming, steps):
    async with served(streaming) as server:
        (client,) = await begun(server, steps)
        client.wire.takes = False
        await steps.take("a", {"b": 1}, {"c": 2})
        server.shared.end_early()
        await settle()
        assert steps.closed
        assert items_of(client) == [0]
        client.read_on()
        await settle()
        *items, error = parts_of(client)
        assert items[:2] == [{"item": 0}, {"item": "a"}]
        assert error["error"]["status"] == 503


async def test_silence_after_an_item_is_broken_by_a_heartbeat():
    app = shoal.App(heartbeat_s=1.0)

    @app.endpoint("/paced")
    async def paced(items: list[int]):
        for word in ("a", "b"):
            yield [word] * len(items)
            await anyio.sleep(0.6)
        await anyio.sleep(1.0)
        yield ["c"] * len(items)

    async with served(app) as server:
        client = server.connect()
        client.ask("/paced", 1, headers=[": ".join(LINES)])
        await anyio.sleep(3.0)
        assert items_of(client) == ["a", "b", "c"]
        assert client.wire.sent.count(b"1\r\n\n\r\n") >= 1


class Words:
    """A continuous handler of streams: it sends three words, one for each that is let go."""

    def __init__(self):
        self.gate = anyio.Semaphore(0)

    async def __call__(self, batch: shoal.OpenBatch[str, str]) -> None:
        async for request in batch:
            for word in range(3):
                await self.gate.acquire()
                await request.send(f"{request.item}{word}")
            request.finish()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([], b'data: "a0"\n\ndata: "a1"\n\ndata: "a2"\n\n' + END),
        ([LINES], b'{"item":"a0"}\n{"item":"a1"}\n{"item":"a2"}\n{"end":true}\n'),
    ],
)
async def test_a_stream_of_a_continuous_batch_is_sent_as_it_is_produced(headers, body):
    words = Words()
    app = app_of(words, "/it", name="it", fill="continuous", streams=True, max_batch_size=2)
    async with asking(app, "/it", "a", headers=headers) as [call]:
        await settle()
        assert call.sent == []
        words.gate.release()
        await settle()
        assert b"a0" in call.body
        assert b"a1" not in call.body
        words.gate.release()
        words.gate.release()
        await call.returned.wait()
    assert (call.status, call.body) == (200, body)


async def test_calls_of_an_open_batch_get_their_results():
    sizes = []

    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        requests = [request async for request in batch]
        sizes.append(len(requests))
        for request in requests:
            request.finish(2 * request.item)

    app = app_of(handler, "/it", name="it", fill="open", max_batch_size=3, batch_wait_timeout_s=5)
    calls = await ask_together(app, "/it", *range(4))
    assert sizes == [3, 1]
    assert [call.answer.json() for call in calls] == [0, 2, 4, 6]


@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_items_are_checked_against_the_annotation_of_the_batch(fill):
    async def handler(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            request.finish(request.item)

    app = app_of(handler, "/it", name="it", fill=fill)
    async with app.lifespan():
        assert (await ask(app, "/it", "text")).status == 422
        assert (await ask(app, "/it", 3)).json() == 3


@pytest.mark.real_time
@pytest.mark.parametrize("fill", ["open", "continuous"])
async def test_a_class_is_made_once_and_its_call_is_the_handler(fill, app):
    made = []

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


async def test_a_decorated_function_keeps_its_way_of_filling(app):
    @shoal.batch(fill="continuous", streams=True)
    async def counts(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            await request.send(request.item)
            request.finish()

    with pytest.raises(TypeError, match="decorated"):
        app.endpoint("/other", fill="open")(counts)
    app.endpoint("/it", name="it")(counts)
    assert (await ask_once(app, "/it", 7)).body == b"data: 7\n\n" + END


def test_streams_are_for_batches_that_are_open(app):
    async def handler(items: list[int]) -> list[int]:
        return items

    with pytest.raises(TypeError, match="streams"):
        app.endpoint("/it", streams=True)(handler)


def exchange_of(call, **options):
    return Exchange(SharedParts(HttpOptions(**options)), call.scope, call._receive, call._send)


async def test_a_last_item_that_comes_with_the_end_is_sent_with_it():
    async def handler(batch: shoal.OpenBatch[str, str]) -> None:
        async for request in batch:
            await request.send("first")
            await settle()
            await request.send("last")
            request.finish()

    call = Call(None, "/it")
    exchange = exchange_of(call)
    batcher = shoal.Batcher(handler, fill="continuous", streams=True)
    async with batcher as model, model("a") as stream:
        await exchange.begin(200, [])
        relay = _Relay(exchange, stream, JSON_LINES, lambda: None, None)
        assert await relay._send_rest() == b'{"item":"last"}\n'
    assert call.body == b'{"item":"first"}\n'


def test_an_item_that_comes_as_the_silence_is_broken_is_not_lost():
    clock = trio.testing.MockClock()
    call = Call(None, "/steps")
    exchange = exchange_of(call, send_timeout_s=3, heartbeat_s=4)

    class Stream:
        def __init__(self):
            self.came = trio.Event()
            self.items = iter([1])

        async def __anext__(self):
            await self.came.wait()
            try:
                return next(self.items)
            except StopIteration:
                raise StopAsyncIteration from None

    async def main():
        stream = Stream()
        async with trio.open_nursery() as nursery:
            relay = _Relay(exchange, stream, JSON_LINES, list, None)
            nursery.start_soon(relay._send_items)
            await trio.testing.wait_all_tasks_blocked()
            # The reader is woken by the item before it could be by the deadline, in the same tick.
            stream.came.set()
            clock.jump(4)

    trio.run(main, clock=clock)
    assert call.body == b'{"item":1}\n'


class Numbered(StreamForm):
    """Messages that have a number, so that an item may be written once only."""

    media_type = b"text/plain"
    heartbeat = b"\n"

    def __init__(self, last):
        self.written = 0
        self.last = last

    def item(self, value):
        self.written += 1
        self.is_over = self.written == self.last
        return f"{self.written} {value}\n".encode()

    def end(self):
        return b"end\n"

    def error(self, problem, request_id):
        return b"error\n"


async def test_an_item_that_the_handlers_task_could_not_send_is_written_once():
    sent, left, passed, has_room = [], [], [], False
    times = ItemTimes()
    relay = _Relay(None, None, Numbered(3), times.clock(anyio.current_time), None)
    stream = SimpleNamespace(leave=lambda: left.append(1), pass_on=passed.append)
    relay._let_the_handler_send(stream, lambda: has_room, sent.append)
    [send] = passed
    assert not send("a")
    assert relay._message("a") == b"1 a\n"  # the reader gets the item then
    assert relay._message("b") == b"2 b\n"
    has_room = True
    assert send("c")
    assert (sent, left) == ([b"3 c\n"], [1])
    assert (times.first.snapshot().total, times.between.snapshot().total) == (1, 2)


async def test_of_items_that_are_there_already_none_follows_the_last():
    class Stream:
        items = ("a", "b", "c", "d")

        def __aiter__(self):
            return self

        async def __anext__(self):
            return self.items[0]

        def ready(self):
            return self.items[1:]

    call = Call(None, "/steps")
    relay = _Relay(exchange_of(call), Stream(), Numbered(3), lambda: None, None)
    assert await relay._send_rest() == b"1 a\n2 b\n3 c\n"


async def test_a_form_may_end_a_stream_before_its_call_has_ended(steps, monkeypatch):
    monkeypatch.setattr(JsonCodec, "stream", lambda _self, _exchange: Numbered(2))
    async with asking(app_of(steps), "/x", 1) as [call]:
        await settle()
        for value in "abc":
            steps.step(value)
        await call.returned.wait()
        await settle()
        assert call.body == b"1 a\n2 b\nend\n"
        assert steps.closed
