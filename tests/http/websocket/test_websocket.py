"""Endpoints over WebSocket: many requests on one connection, and what its client can't do."""

import io
import json
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import anyio
import numpy as np
import pytest
from pydantic import BaseModel
from starlette.requests import Request

import shoal
from handlers import app_of
from shoal.http.websocket import messages
from shoal.testing import settle
from socket_in_memory import Offered, Socket, opened


async def doubled(items: list[int]) -> list[int]:
    if 13 in items:
        raise ValueError("secret")
    return [2 * item for item in items]


async def counted(items: list[int]):
    for step in range(max(items)):
        if step == 13:
            raise ValueError("secret")
        yield [step if step < item else shoal.END for item in items]


@asynccontextmanager
async def talking(handler, *, offered=None, headers=(), **options):
    """A WebSocket to an open application with one endpoint, which is its `app`."""
    app = app_of(handler, **options)
    async with app.lifespan(), opened(app, "/x", offered, headers=headers) as socket:
        socket.app = app
        yield socket


async def status_of(app):
    (endpoint,) = (await app.controller.status()).endpoints.values()
    return endpoint.requests, endpoint.errors


async def test_a_client_that_sends_without_a_pause_lets_others_run():
    app = app_of(doubled)
    passes = unread = 0

    async def others():
        nonlocal passes
        while True:
            passes += 1
            await anyio.lowlevel.checkpoint()

    async with app.lifespan(), opened(app, "/x") as socket, anyio.create_task_group() as tasks:
        socket.say_each(*range(1000))
        before = len(socket.unread)
        tasks.start_soon(others)
        while socket.unread:
            await anyio.lowlevel.checkpoint()
            unread = max(unread, before - len(socket.unread))
            before = len(socket.unread)
        tasks.cancel_scope.cancel()
        assert passes > 10
        assert unread < 100


async def test_requests_on_one_connection_share_a_batch():
    async with talking(doubled, max_batch_size=3, batch_wait_timeout_s=60) as socket:
        socket.say(id=1, item=1)
        socket.say(id="b", item=2)
        socket.say('{ "item": 3 , "id": "c" }')
        answers = [await socket.read() for _ in range(3)]
        assert sorted(answer["result"] for answer in answers) == [2, 4, 6]
        assert {(type(a["id"]), a["id"], a["result"]) for a in answers} == {
            (int, 1, 2),
            (str, "b", 4),
            (str, "c", 6),
        }
        assert await status_of(socket.app) == (3, 0)


async def test_a_request_that_fails_fails_alone():
    async with talking(doubled, max_batch_size=1) as socket:
        assert (await socket.ask(id=1, item="x"))["error"]["status"] == 422
        failed = (await socket.ask(id=2, item=13))["error"]
        assert (failed["type"], failed["status"]) == ("urn:shoal:problem:internal", 500)
        assert "secret" not in json.dumps(failed)
        assert failed["instance"].endswith(":2")
        assert await socket.ask(id=2, item=4) == {"id": 2, "result": 8}
        assert await status_of(socket.app) == (3, 1)
        assert ended(socket.app) == {"ok": 1, "invalid": 1, "failed": 1}


async def test_streams_are_interleaved_and_end():
    async with talking(counted, max_batch_size=2, batch_wait_timeout_s=60) as socket:
        socket.say(id=1, item=2)
        socket.say(id=2, item=3)
        got = [await socket.read() for _ in range(7)]
    assert [m["next"] for m in got if m["id"] == 1 and "next" in m] == [0, 1]
    assert [m["next"] for m in got if m["id"] == 2 and "next" in m] == [0, 1, 2]
    assert [m["id"] for m in got if m.get("end") is True] == [1, 2]
    assert {m["id"] for m in got[:2]} == {1, 2}


async def test_a_stream_that_fails_says_so_after_its_items():
    async with talking(counted) as socket:
        socket.say(id=1, item=14)
        got = [await socket.read() for _ in range(14)]
        assert [m["next"] for m in got[:-1]] == list(range(13))
        assert got[-1]["error"]["status"] == 500
        assert await status_of(socket.app) == (1, 1)


def steps_of(number, size=1):
    made = []

    async def steps(items: list[int]):
        for step in range(number):
            made.append(step)
            yield ["x" * size] * len(items)

    steps.made = made
    return steps


async def test_streams_wait_for_a_client_that_does_not_read():
    steps = steps_of(1000, 2**10)
    async with talking(
        steps,
        settings={"send_timeout_s": 100},
        max_batch_size=1,
        max_concurrent_batches=2,
        stream_buffer=4,
        slow_reader_timeout_s=None,
    ) as socket:
        socket.reads = anyio.Event()
        socket.say_each(1, 2)
        await anyio.sleep(50)
        assert len(steps.made) < 2 * 100
        socket.reads.set()
        ends = 0
        while ends < 2:
            ends += "end" in await socket.read()
        assert len(steps.made) == 2 * 1000


@pytest.mark.parametrize("size", [2**10, 2**18])
async def test_a_stream_whose_client_does_not_read_is_a_slow_reader(size):
    async with talking(
        steps_of(1000, size),
        settings={"send_timeout_s": 100},
        stream_buffer=1,
        slow_reader_timeout_s=5,
    ) as socket:
        await socket.ask(id=1, item=0)
        socket.reads = anyio.Event()
        await anyio.sleep(20)
        assert await status_of(socket.app) == (1, 0)
        socket.reads.set()
        while "next" in (last := await socket.read()):
            pass
        assert last["error"]["type"] == "urn:shoal:problem:slow-reader"


async def test_a_request_is_cancelled_while_streams_wait_for_its_client():
    async with talking(
        steps_of(10**6, 2**18),
        settings={"send_timeout_s": 100},
        max_batch_size=1,
        max_concurrent_batches=8,
        slow_reader_timeout_s=None,
    ) as socket:
        socket.say_each(*range(8))
        left = set(range(8))
        for number in range(8):
            socket.say(id=number, cancel=True)
        while left:
            message = await socket.read()
            if "error" in message:
                assert message["error"]["status"] == 499
                left.remove(message["id"])


async def test_a_cancelled_request_leaves_its_handler_and_its_id(held):
    async with talking(held, max_batch_size=1) as socket:
        socket.say_each(1, 2)
        await settle()
        assert held.batches == [[1]]
        for number in (2, 2, 7):  # the last two are for no request
            socket.say(id=number, cancel=True)
        cancelled = await socket.read()
        assert (cancelled["id"], cancelled["error"]["status"]) == (2, 499)
        socket.say(id=2, item=3)
        held.go.set()
        assert [await socket.read() for _ in range(2)] == [
            {"id": 1, "result": 1},
            {"id": 2, "result": 3},
        ]
        assert held.batches == [[1], [3]]
        assert await status_of(socket.app) == (3, 0)


@pytest.mark.parametrize("end", ["cancel", "leave"])
async def test_a_stream_ends_when_it_is_cancelled_or_left(end):
    closed = anyio.Event()

    async def endless(items: list[int]):
        try:
            while True:
                yield [0] * len(items)
                await anyio.sleep(1)
        finally:
            closed.set()

    async with talking(endless) as socket:
        assert await socket.ask(id=1, item=1) == {"id": 1, "next": 0}
        if end == "cancel":
            assert (await socket.ask(id=1, cancel=True))["error"]["status"] == 499
        else:
            socket.leave()
        await closed.wait()
        await settle()
        assert end == "cancel" or ended(socket.app) == {"left": 1}


async def test_a_client_that_leaves_cancels_all_it_has_asked_for(held):
    app = app_of(held, max_batch_size=1)
    async with app.lifespan():
        async with opened(app, "/x") as socket:
            socket.say_each(1, 2, 3)
            await settle()
        await socket.returned.wait()
        await settle()
        await held.let_go()
        assert held.batches == [[1]]
        assert await status_of(app) == (3, 0)
        assert ended(app) == {"left": 3}


@pytest.mark.parametrize("end", ["leave", "cancel", "rubbish"])
async def test_a_call_that_ends_as_its_client_leaves_it_ends_once(end, caplog):
    app = app_of(doubled)
    async with app.lifespan():
        for steps in range(12):
            async with opened(app, "/x") as socket:
                socket.say_each(*range(8))
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                if end == "cancel":
                    for number in range(8):
                        socket.say(id=number, cancel=True)
                    assert {(await socket.read())["id"] for _ in range(8)} == set(range(8))
                else:
                    socket.leave() if end == "leave" else socket.say("rubbish")
                    await socket.returned.wait()
                await settle()
            requests, errors = await status_of(app)
            assert (requests <= 8 * (steps + 1), errors) == (True, 0)
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


async def test_a_connection_may_have_so_many_requests_at_once(held):
    async with talking(held, settings={"max_websocket_requests": 2}) as socket:
        socket.say_each(1, 2, 3)
        refused = await socket.read()
        assert (refused["id"], refused["error"]["status"]) == (3, 429)
        held.go.set()
        assert {(await socket.read())["id"] for _ in range(2)} == {1, 2}
        assert await socket.ask(id=3, item=3) == {"id": 3, "result": 3}


async def test_a_client_that_does_not_read_is_not_read_from_and_then_left(held):
    """What waits to be sent is bounded, and a send has a deadline."""
    app = app_of(held, settings={"send_timeout_s": 5}, max_batch_size=1)
    async with app.lifespan(), anyio.create_task_group() as tasks:
        socket = Socket(app, "/x")
        tasks.start_soon(socket.run)
        await socket.message()
        socket.reads = anyio.Event()
        socket.say(id=0, item=1)
        for number in range(1, 8_000):
            socket.say(id=number, item="rubbish")
        await settle()
        assert len(socket.unread) > 5_000
        await socket.returned.wait()
        assert anyio.current_time() == pytest.approx(5)
        assert (held.batches, held.cancelled) == ([[1]], 1)


async def test_options_of_one_request(held):
    async with talking(held, max_batch_size=1, priority_levels=3) as socket:
        socket.say(id=0, item=0)
        await settle()
        socket.say(id=3, item=3, priority=3)
        socket.say(id=1, item=1, priority=1)
        socket.say(id=9, item=9, timeout_s=2)
        socket.say(id=8, item=8, priority=7)
        assert (await socket.read())["error"]["type"] == "urn:shoal:problem:no-such-priority"
        late = await socket.read()
        assert (late["id"], late["error"]["status"]) == (9, 504)
        held.go.set()
        assert [(await socket.read())["id"] for _ in range(3)] == [0, 1, 3]
        assert held.batches == [[0], [1], [3]]


async def test_names_of_options_may_be_in_an_item():
    async def same(items: list[dict]) -> list[dict]:
        return items

    async with talking(same) as socket:
        item = {"priority": {"timeout_s": None}}
        assert (await socket.ask(id=1, item=item))["result"] == item


async def test_bytes_and_arrays_come_in_binary_messages(app):
    async def length(items: list[bytes]) -> list[int]:
        return [len(item) for item in items]

    async def total(items: list[np.ndarray]) -> list[float]:
        return [float(item.sum()) for item in items]

    app.endpoint("/length")(length)
    app.endpoint("/total")(total)
    app.endpoint("/number", name="number")(doubled)
    async with app.lifespan():
        async with opened(app, "/length") as socket:
            assert await socket.ask(b'{"id":1}\nab\ncd') == {"id": 1, "result": 5}
            assert (await socket.ask(id=1, item="abc"))["error"]["status"] == 415
        async with opened(app, "/total") as socket:
            data = io.BytesIO()
            np.save(data, np.arange(4))
            socket.say(b'{"id":1,"timeout_s":3}\n' + data.getvalue())
            assert await socket.read() == {"id": 1, "result": 6.0}
            assert await socket.ask(id=1, item=[1, 2]) == {"id": 1, "result": 3.0}
            assert (await socket.ask(b'{"id":1}\nno array'))["error"]["status"] == 422
        async with opened(app, "/number") as socket:
            assert (await socket.ask(b'{"id":1}\n4'))["error"]["status"] == 415


async def test_a_handler_reads_the_handshake_and_its_own_item():
    async def shown(requests: list[Request]) -> list:
        metadata = shoal.current_batch().requests[0].metadata
        return [
            [await r.json(), r.headers["x-a"], r.path_params, metadata["request_id"][-2:]]
            for r in requests
        ]

    app = app_of(shown, path="/x/{name}")
    async with app.lifespan(), opened(app, "/x/y", headers=[("x-a", "b")]) as socket:
        assert (await socket.ask(id=1, item=[1]))["result"] == [[1], "b", {"name": "y"}, ":1"]


ODD = [
    ("{", 1007),
    ("", 1007),
    ('{"item":NaN,"id":1}', 1007),
    ('\ufeff{"id":1,"item":1}', 1007),
    ('{"id":null,"item":NaN}', 1007),
    ('{"more":1,"id":1,"item":' + "[" * 1500, 1007),
    ("[NaN]", 1007),
    ("[" * 1500, 1007),
    ("[1]", 1008),
    ("3", 1008),
    ('{"item":1}', 1008),
    ('{"id":null,"item":1}', 1008),
    ('{"id":true,"item":1}', 1008),
    ('{"id":-1,"item":1}', 1008),
    ('{"id":1.5,"item":1}', 1008),
    ('{"id":"","item":1}', 1008),
    ('{"id":"a b","item":1}', 1008),
    ('{"id":"\\n","item":1}', 1008),
    (json.dumps({"id": "x" * 65, "item": 1}), 1008),
    ('{"id":1}', 1008),
    ('{"id":1,"item":1,"priority":"1"}', 1008),
    ('{"id":1,"item":1,"timeout_s":0}', 1008),
    ('{"id":1,"item":1,"timeout_s":true}', 1008),
    ('{"id":1,"credit":5}', 1008),
    ('{"id":1,"cancel":false}', 1008),
    ('{"id":1,"cancel":true,"priority":1}', 1008),
    (b"", 1003),
    (b"no line", 1003),
    (b'{"id":1}' + b" " * 1100 + b"\n", 1003),
    (b"\n1", 1007),
    (b"\xff\n1", 1007),
    (b'{"id":1,"item":1}\n1', 1008),
    ('{"item":"' + "x" * 3000 + '","id":1}', 1009),
    ('{"id":1,"cancel":' + " " * 3000 + "true}", 1009),
    (b"x" * 3000, 1003),
]


@pytest.mark.one_loop
@pytest.mark.parametrize(("sent", "code"), ODD)
async def test_a_client_that_breaks_the_protocol_is_told_how(sent, code):
    async with talking(
        doubled, settings={"max_body_bytes": 1000, "max_json_elements": 5000}
    ) as socket:
        socket.say(sent)
        message = await socket.message()
        while message["type"] == "websocket.send":  # of a request that could be read in part
            assert "error" in json.loads(message["text"])
            message = await socket.message()
        assert (message["type"], message["code"]) == ("websocket.close", code)
        assert 0 < len(message["reason"]) < 123
        await socket.returned.wait()


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "members", ['"more":1', '"cancel":true', '"id":2', '"pr\\u0069ority":2', '"item":3']
)
async def test_a_member_after_the_item_that_is_unknown_fails_its_request(members):
    async with talking(doubled) as socket:
        failed = await socket.ask('{"id":1,"item":1,' + members + "}")
        assert (failed["id"], failed["error"]["status"]) == (1, 400)
        assert await socket.ask(id=1, item=1) == {"id": 1, "result": 2}


@pytest.mark.parametrize(
    "large",
    [
        '{"id":2,"item":"' + "x" * 3000 + '"}',
        '{ "id": 2, "item": ' + "x" * 3000,
        b'{"id":2}\n' + bytes(3000),
    ],
)
async def test_an_item_that_is_too_large_fails_alone(large, held):
    async with talking(held, settings={"max_body_bytes": 1000}) as socket:
        socket.say(id=1, item=1)
        failed = await socket.ask(large)
        assert (failed["id"], failed["error"]["status"]) == (2, 413)
        assert failed["error"]["type"] == "urn:shoal:problem:body-too-large"
        held.go.set()
        assert await socket.read() == {"id": 1, "result": 1}
        assert await socket.ask(id=2, item=2) == {"id": 2, "result": 2}


@pytest.mark.parametrize(
    "again",
    ['{"id":1,"item":2}', '{"id":1,"item":"' + "x" * 3000 + '"}', '{"id":1,"item":NaN}'],
    ids=["good", "too large", "unreadable"],
)
async def test_no_item_can_use_the_id_of_a_running_request(again, held):
    async with talking(held, settings={"max_body_bytes": 1000}) as socket:
        socket.say(id=1, item=1)
        await settle()
        assert (await socket.ask(again))["error"]["status"] == 499
        assert (await socket.closed())[0] == 1008
        await socket.returned.wait()


BAD_ITEMS = {
    "nothing": ("", 400),
    "an open list": ("[1", 400),
    "NaN": ("NaN", 400),
    "infinity": ("[-Infinity]", 400),
    "too large a number": ("1e999", 400),
    "a number with more digits than an int may have": ("1" * 4301, 400),
    "a lone surrogate": ('"\\ud800"', 400),
    "a half of a pair": ('{"a":"\\ud800 and \\u0041"}', 400),
    "a lone surrogate as a key": ('{"\\udc00":1}', 400),
    "too deep nesting": ("[" * 300 + "]" * 300, 400),
    "far too deep nesting": ('{"a":' * 400 + "1" + "}" * 400, 400),
    "too many elements": ("[" + "1," * 900 + "1]", 413),
}
FORMS = [
    '{"id":2,"item":%s}',
    ' { "id" : 2 , "item" : %s } ',
    '{"id":2,"item":%s,"priority":1}',
]


class Fish(BaseModel):
    name: Any


def array_message(array):
    file = io.BytesIO(b'{"id":1}\n')
    file.seek(0, io.SEEK_END)
    np.save(file, array)
    return file.getvalue()


NEIGHBOURS = [
    (Any, '{"id":1,"item":1}'),
    (float, '{"id":1,"item":1}'),
    (str, '{"id":1,"item":"a"}'),
    (list, '{"id":1,"item":[]}'),
    (dict, '{"id":1,"item":{}}'),
    (Fish, '{"id":1,"item":{"name":1}}'),
    (bytes, b'{"id":1}\na'),
    (np.ndarray, array_message(np.ones(1))),
]


@pytest.mark.one_loop
@pytest.mark.parametrize(("annotation", "neighbour"), NEIGHBOURS)
async def test_an_item_that_can_not_be_read_fails_alone(annotation, neighbour):
    go = anyio.Event()

    async def handler(items):
        await go.wait()
        return [1 for _ in items]

    handler.__annotations__ = {"items": list[annotation], "return": list[int]}
    async with talking(handler, settings={"max_json_elements": 850}) as socket:
        socket.say(neighbour)
        await settle()
        for text, status in BAD_ITEMS.values():
            for form in FORMS:
                failed = await socket.ask(form % text)
                assert failed["id"] == 2

                # Of an endpoint that takes bytes, the JSON is not read.
                assert failed["error"]["status"] in (
                    (status, 415) if annotation is bytes else (status,)
                )
        go.set()
        assert await socket.read() == {"id": 1, "result": 1}


@pytest.mark.parametrize(
    ("path", "subprotocols", "status"),
    [("/nowhere", ["shoal.v1"], 404), ("/x", [], 400), ("/x", ["other"], 400)],
)
async def test_a_handshake_is_refused_by_a_problem(path, subprotocols, status):
    app = app_of(doubled)
    async with app.lifespan():
        for extensions in ({"websocket.http.response": {}}, {}):
            socket = Socket(app, path, subprotocols=subprotocols, extensions=extensions)
            await socket.run()
            first = await socket.message()
            if extensions:
                assert (first["type"], first["status"]) == ("websocket.http.response.start", status)
                assert dict(first["headers"])[b"content-type"] == b"application/problem+json"
            else:
                assert first["type"] == "websocket.close"


async def test_an_application_that_is_not_open_refuses():
    socket = Socket(app_of(doubled), "/x")
    await socket.run()
    assert (await socket.message())["status"] == 503


async def test_an_endpoint_comes_before_a_mounted_application():
    async def mounted(scope, receive, send):
        await receive()
        await send({"type": "websocket.close", "code": 4000})

    app = app_of(doubled)
    app.mount("/", mounted)
    async with app.lifespan():
        async with opened(app, "/x") as socket:
            assert (await socket.ask(id=1, item=1))["result"] == 2
        other = Socket(app, "/other")
        await other.run()
        assert (await other.message())["code"] == 4000


async def test_a_deleted_endpoint_refuses_further_requests():
    async with talking(doubled) as socket:
        await socket.app.controller.delete_endpoint("doubled")
        assert (await socket.ask(id=1, item=1))["error"]["status"] == 404


async def test_nothing_comes_of_a_stream_after_it_was_cut_off():
    go, offered = anyio.Event(), Offered()

    async def steps(items: list[int]):
        yield items
        await go.wait()
        yield items

    async with talking(steps, offered=offered) as socket:
        assert await socket.ask(id=1, item=5) == {"id": 1, "next": 5}
        await settle()
        go.set()  # the handler's task runs before the one of the stream ends
        offered.cut_off = True
        offered.left()
        assert "error" in await socket.read()
        assert (await socket.closed())[0] == messages.RESTART


@pytest.mark.parametrize("is_plain", [True, False])
async def test_the_items_of_streams_are_timed(is_plain):
    async def slow(items: list[int]):
        await anyio.sleep(2)
        for step in range(3):
            yield [step if is_plain else {"step": step}] * len(items)
            await anyio.sleep(0.2)

    async with talking(slow) as socket:
        socket.say(id=1, item=1)
        while "end" not in await socket.read():
            pass
        ((name, times),) = socket.app._shared.streams.items()
        first, between = times.first.snapshot(), times.between.snapshot()
        assert (name, first.total, between.total) == ("slow", 1, 2)
        assert (first.sum, between.sum) == (pytest.approx(2), pytest.approx(0.4))


def ended(app):
    return {o.outcome: o.times.total for o in app._shared.times if o.protocol == "websocket"}


@pytest.mark.parametrize(
    ("result", "sent"),
    [
        (Fish(name="cod"), {"name": "cod"}),
        (np.array([1.0, 2.0]), [1.0, 2.0]),
        (np.float32(1), 1.0),
        ({"at": datetime(2020, 1, 1)}, {"at": "2020-01-01T00:00:00"}),
        (datetime(2020, 1, 1), "2020-01-01T00:00:00"),
        (b"text", "text"),
    ],
)
async def test_a_result_is_sent_as_json_whatever_the_handshake_accepts(result, sent):
    async def results(items: list[int]) -> list:
        return [result for _ in items]

    app = app_of(results)
    headers = [("accept", "application/msgpack, application/x-npy")]
    async with app.lifespan(), opened(app, "/x", headers=headers) as socket:
        assert (await socket.ask(id=1, item=1))["result"] == sent


# One request runs, and one waits.
FULL = {"max_batch_size": 1, "max_concurrent_batches": 1, "max_queued_requests": 1}


async def refused(socket):
    """The id and the status of the next message, which is an error and comes at once."""
    began = anyio.current_time()
    message = await socket.read()
    assert anyio.current_time() == began
    assert set(message) == {"id", "error"}
    error = message["error"]
    assert error["retry_after_s"] == 1
    assert error["type"] == "urn:shoal:problem:overloaded"
    assert error["title"] == "The endpoint is overloaded"
    assert error["instance"].endswith(f":{message['id']}")
    return message["id"], error["status"]


@pytest.mark.parametrize(("settings", "status"), [({}, 503), ({"overload_status": 429}, 429)])
async def test_a_request_to_a_full_queue_is_refused_at_once_and_alone(settings, status, held):
    app = app_of(held, settings=settings, **FULL)
    async with app.lifespan(), opened(app, "/x") as socket, opened(app, "/x") as other:
        for number in (1, 2):
            socket.say(id=number, item=number)
            await settle()
        for number in (3, 4):
            socket.say(id=number, item=number)
            assert await refused(socket) == (number, status)
        other.say(id=1, item=5)
        assert await refused(other) == (1, status)
        await settle()
        assert not socket.sent
        held.go.set()
        assert [await socket.read() for _ in "12"] == [
            {"id": 1, "result": 1},
            {"id": 2, "result": 2},
        ]
        assert await socket.ask(id=3, item=3) == {"id": 3, "result": 3}
        assert await other.ask(id=1, item=5) == {"id": 1, "result": 5}
    assert held.batches == [[1], [2], [3], [5]]
