"""Streams over HTTP: their two forms, what begins and ends them, and who is let go."""

import json

import anyio
import h2.events
import pytest
from live_server import Http2Client, live, read_until, request
from starlette.exceptions import HTTPException

import shoal
from handlers import ask_together, asking
from shoal.core.histogram import LEFT
from shoal.http.json.stream_forms import accepted
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling

LINES = ("accept", "application/x-ndjson")


def app_of_steps(handler, *, name="steps", options=None, **settings):
    app = shoal.App(**settings)
    app.endpoint("/steps", name=name, **(options or {}))(handler)
    return app


async def answered(steps, *values, method="POST", headers=(), **settings):
    for value in values:
        steps.step(value)
    steps.end()
    app = app_of_steps(steps, **settings)
    item = 1 if method == "POST" else ...
    async with app.lifespan():
        return await ask(app, "/steps?items=1", item, method=method, headers=headers)


async def test_server_sent_events_are_sent_as_they_are_produced(steps):
    async with asking(app_of_steps(steps), "/steps", 1) as [call]:
        await settle()
        assert call.sent == []
        steps.step("a")
        await settle()
        assert call.body == b'data: "a"\n\n'
        steps.step({"b": [1]})
        await settle()
        assert call.body == b'data: "a"\n\ndata: {"b":[1]}\n\n'
        assert not call.is_complete
        steps.end()
        await call.returned.wait()
    assert call.body.endswith(b"\n\nevent: end\ndata: {}\n\n")
    assert call.status == 200
    assert call.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert call.headers["cache-control"] == "no-store"
    assert call.headers["x-accel-buffering"] == "no"
    assert call.headers["x-request-id"]


async def test_json_lines_name_what_each_line_is(steps):
    answer = await answered(steps, {"end": True}, None, headers=[LINES])
    assert answer.headers["content-type"] == "application/x-ndjson; charset=utf-8"
    assert answer.body == b'{"item":{"end":true}}\n{"item":null}\n{"end":true}\n'


async def test_an_error_before_the_first_item_has_a_status_of_its_own(steps):
    answer = await answered(steps, ValueError("secret"))
    assert answer.status == 500
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("accept", "before", "after"),
    [("text/event-stream", b"event: error\ndata: ", b"\n\n"), (LINES[1], b'{"error":', b"}\n")],
)
async def test_an_error_in_mid_stream_is_the_last_event(steps, accept, before, after):
    answer = await answered(steps, 1, ValueError("secret"), headers=[("accept", accept)])
    assert answer.status == 200
    _, found, problem = answer.body.partition(before)
    assert found
    problem = json.loads(problem.removesuffix(after))
    assert problem["status"] == 500
    assert problem["instance"] == answer.headers["x-request-id"]
    assert b"secret" not in answer.body


async def test_an_item_that_cannot_be_written_ends_its_stream_alone():
    async def mixed(items: list[int]):
        yield [1, 1]
        yield [object() if item == 1 else "fine" for item in items]
        yield [2, 2]

    app = app_of_steps(mixed, options={"max_batch_size": 2, "batch_wait_timeout_s": 1})
    bad, good = await ask_together(app, "/steps", 1, 2)
    assert b"event: error" in bad.body
    assert b'data: "fine"' in good.body
    assert good.body.endswith(b"event: end\ndata: {}\n\n")


@pytest.mark.parametrize(
    ("headers", "heartbeat", "end"),
    [([], b":\n", b"event: end\ndata: {}\n\n"), ([LINES], b"\n", b'{"end":true}\n')],
)
async def test_silence_is_broken_by_heartbeats(steps, headers, heartbeat, end):
    async with asking(app_of_steps(steps, heartbeat_s=4), "/steps", 1, headers=headers) as [call]:
        await call.until(lambda call: call.body == heartbeat)
        assert anyio.current_time() == pytest.approx(4)
        assert call.status == 200
        await call.until(lambda call: call.body == heartbeat * 2)
        assert anyio.current_time() == pytest.approx(8)
        steps.end()
        await call.returned.wait()
    assert call.body == heartbeat * 2 + end


async def test_the_first_heartbeat_of_a_get_has_an_id_so_that_none_runs_it_again(steps):
    app = app_of_steps(steps, heartbeat_s=4)
    async with asking(app, "/steps?items=1", ..., method="GET") as [call]:
        await call.until(lambda call: call.body == b"retry: 1000\nid: 0\n\n")
        await call.until(lambda call: call.body == b"retry: 1000\nid: 0\n\n:\n")
        call.leave()
        await call.returned.wait()
        again = await ask(app, "/steps?items=1", method="GET", headers=[("last-event-id", "0")])
        assert (again.status, again.body) == (204, b"")
    assert steps.batches == [[1]]


@pytest.mark.real_time
@pytest.mark.parametrize("version", [1, 2])
async def test_the_first_heartbeat_of_a_server_has_an_id(steps, version):
    async with live(app_of_steps(steps, heartbeat_s=0.02)) as server:
        stream = await server.connect()
        if version == 1:
            await stream.send_all(request("/steps?items=1"))
            head, _, body = (await read_until(stream, b"id: 0\n\n")).partition(b"\r\n\r\n")
            assert b"content-type: text/event-stream; charset=utf-8\r\n" in head
        else:
            client = Http2Client(stream)
            client.ask(b"/steps?items=1")
            await client.flush()
            body = (await client.wait_for(h2.events.DataReceived)).data
        assert b"retry: 1000\nid: 0\n\n" in body
        await stream.aclose()


async def test_an_error_after_a_heartbeat_is_an_event(steps):
    async with asking(app_of_steps(steps, heartbeat_s=4), "/steps", 1) as [call]:
        await call.until_sent(b":\n")
        steps.step(ValueError())
        await call.returned.wait()
    assert b"event: error" in call.body


async def test_a_client_that_leaves_in_mid_stream_frees_its_slot(steps):
    app = app_of_steps(steps, options={"max_batch_size": 2, "batch_wait_timeout_s": 1})
    async with asking(app, "/steps", 1, 2) as [leaver, mate]:
        steps.step("a")
        await leaver.until_sent(b"a")
        leaver.leave()
        await leaver.returned.wait()
        await settle()
        assert sorted(request.cancelled for request in steps.requests) == [False, True]
        assert not steps.closed
        steps.step("b")
        steps.end()
        await mate.returned.wait()
    assert not leaver.is_complete
    assert b"b" not in leaver.body
    assert mate.body == b'data: "a"\n\ndata: "b"\n\nevent: end\ndata: {}\n\n'


async def test_a_client_that_leaves_the_queue_never_reaches_the_generator(steps):
    app = app_of_steps(steps, options={"max_batch_size": 1})
    first, second = (Call(app, "/steps", item=item) for item in (1, 2))
    async with app.lifespan(), calling(first) as tasks:
        await settle()
        tasks.start_soon(second.run)
        await settle()
        second.leave()
        await second.returned.wait()
        steps.end()
        await first.returned.wait()
    assert steps.batches == [[1]]
    assert second.status == LEFT


async def test_a_client_that_stops_reading_in_mid_stream_is_given_up_in_time(steps):
    async with asking(app_of_steps(steps, send_timeout_s=3), "/steps", 1) as [call]:
        steps.step("a")
        await call.until_sent(b"a")
        await anyio.sleep(5)
        call.stop_reading()
        steps.step("b")
        await call.returned.wait()
        assert anyio.current_time() == pytest.approx(8)
        await settle()
        assert steps.closed
    assert not call.is_complete


async def test_a_heartbeat_that_is_not_read_is_the_last(steps):
    async with asking(app_of_steps(steps, send_timeout_s=3, heartbeat_s=20), "/steps", 1) as [call]:
        steps.step("a")
        await call.until_sent(b"a")
        call.stop_reading()
        await call.returned.wait()
        assert anyio.current_time() == pytest.approx(23)


async def test_a_connection_that_is_lost_in_a_send_frees_the_slot(steps):
    app = app_of_steps(steps)

    async def send(message):
        raise OSError("gone")

    async def run(scope, receive, _send):
        await app(scope, receive, send)

    call = Call(run, "/steps", item=1)
    async with app.lifespan(), calling(call):
        steps.step("a")
        await call.returned.wait()
        await settle()
        assert steps.closed


EVENTS, NDJSON, ARRAY = "text/event-stream", "application/x-ndjson", "application/json"


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", EVENTS),
        ("*/*", EVENTS),
        (EVENTS, EVENTS),
        (ARRAY, ARRAY),
        ("application/json, text/plain, */*", ARRAY),
        ("application/json;q=0.9, */*", EVENTS),
        ("application/json, text/event-stream", EVENTS),
        ("application/json;q=1, text/event-stream;q=0.5", ARRAY),
        ("application/*", NDJSON),
        ("text/*", EVENTS),
        ("text/html,application/xhtml+xml,*/*;q=0.8", EVENTS),
        (NDJSON, NDJSON),
        ("Application/X-NDJSON; q=0.5", NDJSON),
        ("application/ndjson", "application/ndjson"),
        ("application/x-ndjson, */*", NDJSON),
        ("text/event-stream, application/x-ndjson", NDJSON),
        ("text/event-stream;q=0.9, application/x-ndjson;q=0.8", EVENTS),
        ("text/event-stream;q=0, */*;q=0.1", NDJSON),
        ("application/x-ndjson;q=0", None),
        ("text/html", None),
        ("application/x-ndjson;q=rubbish", EVENTS),
        (";;,,q=", EVENTS),
    ],
)
def test_the_most_accepted_form_is_chosen(accept, media_type):
    assert accepted(accept.encode()) == (media_type and media_type.encode())


async def test_no_accepted_form_is_refused_before_the_call(steps):
    answer = await answered(steps, headers=[("accept", "text/html")])
    assert answer.status == 406
    assert answer.json()["type"] == "urn:shoal:problem:not-acceptable"
    assert steps.batches == []


@pytest.mark.parametrize("values", [[], [1], [1, "a", {"b": [None]}]])
async def test_a_stream_is_one_json_array_for_who_accepts_json(steps, values):
    answer = await answered(steps, *values, headers=[("accept", ARRAY)])
    assert (answer.status, answer.headers["content-type"]) == (200, ARRAY)
    assert answer.json() == values


async def test_an_array_that_fails_is_no_json(steps):
    answer = await answered(steps, 1, ValueError("secret"), headers=[("accept", ARRAY)])
    assert (answer.status, answer.body) == (200, b"[1")


@pytest.mark.parametrize(
    ("second", "last"),
    [("b", b'data: "b"\n\nid: 3\nevent: end\ndata: {}\n\n'), (ValueError(), b"event: error\n")],
)
async def test_events_of_a_get_have_ids_and_the_time_of_the_retry(steps, second, last):
    answer = await answered(steps, "a", second, method="GET")
    assert answer.body.startswith(b'retry: 1000\nid: 1\ndata: "a"\n\nid: 2\n' + last)
    assert second != "b" or answer.body.endswith(last)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_reconnection_does_not_run_the_handler_again(steps, method):
    again = [("last-event-id", "3"), ("accept", EVENTS)]
    answer = await answered(steps, method=method, headers=again)
    assert (answer.status, answer.body) == (204, b"")
    assert steps.batches == []


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_head_of_a_stream_runs_no_handler_and_has_the_headers_of_get(accept, app):
    ran = []

    async def steps(items: list[int]):
        ran.append(items)
        yield items

    app.endpoint("/m", name="m", methods=["GET", "POST"])(steps)
    headers = [("accept", accept)]
    async with app.lifespan():
        head = await ask(app, "/m", 1, method="HEAD", headers=headers)
        assert (head.status, head.body, ran) == (200, b"", [])
        whole = await ask(app, "/m", 1, headers=headers)
    del head.headers["x-request-id"], whole.headers["x-request-id"]
    assert head.headers == whole.headers


async def test_an_empty_id_is_as_none(steps):
    answer = await answered(steps, method="GET", headers=[("last-event-id", "")])
    assert (answer.status, steps.batches) == (200, [[1]])


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("accept", [EVENTS, NDJSON])
async def test_no_reader_of_lines_cuts_an_item_or_an_error(steps, method, accept):
    text = "caf\u00e9 a\x85b\u2028c\u2029d"
    values = text, HTTPException(409, {text: [text]})
    answer = await answered(steps, *values, method=method, headers=[("accept", accept)])
    assert answer.headers["content-type"] == f"{accept}; charset=utf-8"
    lines = [line.removeprefix("data: ") for line in answer.body.decode().splitlines()]
    first, second = (json.loads(line) for line in lines if line.startswith(('"', "{")))
    assert first == ({"item": text} if accept == NDJSON else text)
    assert second.get("error", second)["detail"] == {text: [text]}


async def test_an_id_says_nothing_about_another_form(steps):
    answer = await answered(steps, headers=[("last-event-id", "3"), LINES])
    assert answer.body == b'{"end":true}\n'


@pytest.mark.parametrize(("method", "first"), [("POST", b""), ("GET", b"retry: 1000\nid: 1\n")])
async def test_events_end_with_done_where_that_is_chosen(steps, method, first):
    answer = await answered(steps, method=method, sse_done=True)
    assert answer.body == first + b"data: [DONE]\n\n"
