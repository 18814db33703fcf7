"""The ASGI driver: each message is one step, for any application."""

import anyio
import pytest

from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling


async def echo(scope, receive, send):
    """Sends the body back, with the path in a header."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    where = (
        f"{scope['method']} {scope['root_path']}|{scope['path']}?{scope['query_string'].decode()}"
    )
    headers = [*scope["headers"], (b"X-Where", where.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def tick(scope, receive, send):
    """Streams until the client disconnects."""
    await send({"type": "http.response.start", "status": 200, "headers": []})

    async def stream() -> None:
        while True:
            await send({"type": "http.response.body", "body": b"tick ", "more_body": True})
            await anyio.sleep(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream)
        while (await receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()


async def test_a_request_has_what_it_was_made_with():
    answer = await ask(
        echo, "/über?a=1&b", {"n": 1}, method="PUT", headers=[("X-Mine", "Yes")], root_path="/ml"
    )
    assert (answer.status, answer.json()) == (200, {"n": 1})
    assert answer.headers["x-where"] == "PUT /ml|/über?a=1&b"
    assert (answer.headers["content-type"], answer.headers["x-mine"]) == ("application/json", "Yes")
    assert Call(echo, "/ü").scope["raw_path"] == b"/%C3%BC"


async def test_none_is_an_item_and_no_item_is_no_body():
    assert (await ask(echo, "/", None)).body == b"null"
    answer = await ask(echo, "/", method="GET")
    assert (answer.body, "content-type" in answer.headers) == (b"", False)


async def test_a_body_arrives_in_pieces():
    call = Call(echo, "/", body=b"[1,", whole=False)
    async with calling(call):
        await settle()
        assert call.is_listening
        call.give(b"2", more=True)
        await settle()
        assert (call.sent, call.status) == ([], None)
        call.give(b"]", more=False)
        await call.returned.wait()
    assert call.answer.json() == [1, 2]


async def test_a_stream_is_seen_under_way_and_ends_when_the_client_leaves():
    call = Call(tick, "/")
    async with calling(call):
        await call.until_sent(b"tick tick tick")
        assert anyio.current_time() == 2
        assert (call.status, call.is_complete) == (200, False)
        with pytest.raises(AssertionError, match="the response is not complete"):
            call.answer  # noqa: B018
        call.leave()
        await call.returned.wait()
    assert call.body == b"tick tick tick "


async def test_an_application_waits_for_a_client_that_does_not_read():
    call = Call(tick, "/", reads=False)
    async with calling(call):
        await anyio.sleep(10)
        assert call.sent == []
        call.read()
        await call.until_sent(b"tick tick")
        call.stop_reading()
        before = call.body
        await anyio.sleep(10)
        assert call.body == before


async def test_what_is_never_sent_is_not_waited_for_for_ever():
    call = Call(echo, "/", body=b"one")
    async with calling(call):
        with pytest.raises(AssertionError, match=r"has returned; it has sent .*'one'"):
            await call.until_sent(b"two")


async def test_leaving_the_block_cancels_what_is_left():
    call = Call(tick, "/")
    async with calling(call):
        await settle()
    assert call.returned.is_set()


async def test_an_answer_is_complete_before_its_client_leaves():
    messages = []

    async def app(scope, receive, send):
        await echo(scope, receive, send)
        messages.append(await receive())

    await ask(app, "/")
    assert messages == [{"type": "http.disconnect"}]


async def test_who_listens_to_the_end_is_seen():
    async def app(scope, receive, send):
        async with anyio.create_task_group() as tasks:
            await receive()
            tasks.start_soon(receive)
            await settle()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body"})

    for application, listened in ((app, True), (echo, False)):
        call = Call(application, "/")
        await call.run()
        assert (call.status, call.listened_to_the_end) == (200, listened)


START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b""}


@pytest.mark.parametrize(
    ("messages", "mistake"),
    [
        ([BODY], "one start"),
        ([START, START], "one start"),
        ([START, BODY, BODY], "after the end"),
        ([START], "not complete"),
        ([], "not complete"),
    ],
)
async def test_an_answer_that_breaks_the_protocol_fails_the_test(messages, mistake):
    async def app(scope, receive, send):
        for message in messages:
            await send(message)

    with pytest.raises(AssertionError, match=mistake):
        await ask(app, "/")


async def test_what_the_application_raises_is_raised():
    async def app(scope, receive, send):
        raise ZeroDivisionError

    call = Call(app, "/")
    with pytest.raises(ZeroDivisionError):
        await call.run()
    assert call.returned.is_set()
