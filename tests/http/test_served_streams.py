"""Streams of calls that an App makes for the server itself: the handler's task sends items."""

import json

import anyio
import pytest
from held_app import served

import shoal
from shoal.testing import settle

WAIT_S = 1.0
LINES = ["Accept: application/x-ndjson"]


class Word(str):
    __slots__ = ()


@pytest.fixture
def app(steps):
    app = shoal.App()
    app.endpoint("/steps", name="steps", batch_wait_timeout_s=WAIT_S, stream_buffer=2)(steps)
    return app


async def begun(server, steps, count=1):
    clients = [server.connect() for _ in range(count)]
    for client in clients:
        client.ask("/steps", 1, headers=LINES)
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


def tasks_that_send(client, monkeypatch):
    tasks = []
    send = client.wire.send

    def noted(data):
        tasks.append(anyio.get_current_task().id)
        return send(data)

    monkeypatch.setattr(client.wire, "send", noted)
    return tasks


@pytest.mark.parametrize("item", ["word", 1, 0.5, True, None], ids=repr)
async def test_plain_items_are_sent_by_the_task_of_the_handler(app, steps, monkeypatch, item):
    async with served(app) as server:
        (client,) = await begun(server, steps)
        tasks = tasks_that_send(client, monkeypatch)
        await steps.take(item)
        assert tasks == [steps.task]
        assert items_of(client) == [0, item]


async def test_plain_items_are_encoded(steps):
    app = shoal.App()
    app.endpoint("/steps", name="steps", encode=lambda item: [item])(steps)
    async with served(app) as server:
        (client,) = await begun(server, steps)
        await steps.take(1, "word")
        assert items_of(client) == [[0], [1], ["word"]]


@pytest.mark.parametrize("item", [{"a": 1}, [1], Word("word"), 2**70], ids=repr)
async def test_what_may_run_users_code_is_written_by_the_calls_task(app, steps, monkeypatch, item):
    is_plain = type(item) is int
    async with served(app) as server:
        (client,) = await begun(server, steps)
        tasks = tasks_that_send(client, monkeypatch)
        await steps.take(item)
        assert (steps.task in tasks) is is_plain
        assert items_of(client) == [0, item]


async def test_the_order_is_kept_whoever_sends(app, steps):
    items = ["a", {"b": 1}, "c", [2], None, "d", "e", {"f": "g"}]
    async with served(app) as server:
        clients = await begun(server, steps, count=3)
        await steps.take(*items, shoal.END)
        for client in clients:
            assert items_of(client) == [0, *items]
            assert parts_of(client)[-1] == {"end": True}
        assert server.counts() == (3, 3)


async def test_an_item_that_json_can_not_hold_fails_its_stream(app, steps):
    async with served(app) as server:
        (client,) = await begun(server, steps)
        await steps.take("a", object())
        assert items_of(client) == [0, "a"]
        assert parts_of(client)[-1]["error"]["status"] == 500
        assert server.counts() == (1, 1)
    assert steps.closed


async def test_a_client_that_reads_slowly_holds_the_handler_and_gets_all_in_order(app, steps):
    async with served(app) as server:
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


async def test_a_client_that_leaves_between_items_closes_the_handler(app, steps):
    async with served(app) as server:
        (client,) = await begun(server, steps)
        await steps.take(1)
        client.leave()
        await settle()
        assert steps.closed
        assert client.releases == 1
        assert server.counts() == (1, 1)


async def test_a_connection_lost_as_an_item_is_sent_leaves_the_others(app, steps, monkeypatch):
    async with served(app) as server:
        first, lost, last = await begun(server, steps, count=3)

        def send(_data):
            lost.leave()
            return True

        monkeypatch.setattr(lost.wire, "send", send)
        await steps.take(1, 2, shoal.END)
        assert items_of(first) == items_of(last) == [0, 1, 2]
        assert items_of(lost) == [0]
        assert lost.releases == 1
        assert server.counts() == (3, 3)


async def test_a_call_that_is_cut_off_gets_its_items_and_then_the_error(app, steps):
    async with served(app) as server:
        (client,) = await begun(server, steps)
        await steps.take(1)
        server.shared.end_early()
        await steps.take(2)
        *items, error = parts_of(client)
        assert items[:2] == [{"item": 0}, {"item": 1}]
        assert error["error"]["status"] == 503
        assert steps.closed


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
        client.ask("/paced", 1, headers=LINES)
        await anyio.sleep(3.0)
        assert items_of(client) == ["a", "b", "c"]
        assert client.wire.sent.count(b"1\r\n\n\r\n") >= 1
