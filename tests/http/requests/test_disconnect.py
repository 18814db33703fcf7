"""A client that leaves takes its request with it, and nobody else's."""

import asyncio
import gc
import weakref
from functools import partial

import anyio
import pytest
from held_app import statistics

import shoal
from handlers import app_of, asking, echo
from shoal.core.histogram import LEFT
from shoal.errors import HandlerFailed
from shoal.http.requests.disconnects import UNNOTICED_S
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling


@pytest.fixture
def app(held):
    app = shoal.App()
    app.endpoint("/held", name="held", max_batch_size=2)(held)
    return app


async def test_a_client_that_leaves_the_handler_loses_its_result_and_its_mate_does_not(app, held):
    app.endpoint("/pair", name="pair", max_batch_size=2, batch_wait_timeout_s=None)(held)
    async with asking(app, "/pair", 1, 2) as [leaver, mate]:
        await settle()
        leaver.leave()
        await leaver.returned.wait()
        assert leaver.status == LEFT
        held.go.set()
        await mate.returned.wait()
    assert sorted(held.batches[0]) == [1, 2]
    assert mate.answer.json() == 2
    assert held.cancelled == 0


async def test_a_client_that_leaves_in_the_same_tick_as_its_result_harms_nobody(app, held):
    async with asking(app, "/held", 1) as [call]:
        await settle()
        held.go.set()
        call.leave()
        await call.returned.wait()
        assert statistics(app).finished + statistics(app).cancelled == 1
        assert (await ask(app, "/held", 2)).json() == 2


async def test_a_client_that_is_gone_before_its_call_is_made_gets_no_result(app, held):
    call = Call(app, "/held", item=1)
    call.leave()
    async with app.lifespan(), calling(call):
        await call.returned.wait()
        assert call.status == LEFT
        await held.let_go()
    assert statistics(app).finished == 0


async def test_a_client_that_leaves_before_its_body_is_whole_gets_no_result(app, held):
    async with asking(app, "/held", ..., body=b"1", whole=False) as [call]:
        await settle()
        call.leave()
        await call.returned.wait()
    assert call.status == LEFT
    assert held.batches == []


def lasting(seconds):
    async def handler(items: list[int]) -> list[int]:
        await anyio.sleep(seconds)
        return items

    return handler


async def test_a_client_that_has_its_answer_by_the_second_look_is_not_waited_for():
    received = []
    app = app_of(lasting(0.75 * UNNOTICED_S), "/lasting")
    async with app.lifespan():
        call = Call(app, "/lasting", item=1)

        async def receive():
            received.append(len(call.sent))
            return await call._receive()

        await app(call.scope, receive, call._send)
        await anyio.sleep(3 * UNNOTICED_S)
    assert received == [0]


async def test_nothing_refers_to_a_client_that_was_watched_and_has_its_answer():
    app = app_of(lasting(3 * UNNOTICED_S), "/lasting")
    async with app.lifespan():
        call = Call(app, "/lasting", item=1)
        receive = partial(call._receive)
        kept = weakref.ref(receive)
        await app(call.scope, receive, call._send)
        del receive
        await anyio.sleep(3 * UNNOTICED_S)
        gc.collect()
        assert kept() is None


async def test_what_else_the_client_sends_does_not_end_its_call(app, held):
    async with asking(app, "/held", 1) as [call]:
        await settle()
        call.give(b"", more=False)
        await settle()
        held.go.set()
        await call.returned.wait()
    assert call.answer.json() == 1


async def test_a_cancelled_request_drops_its_call(app, held):
    call = Call(app, "/held", item=1)
    async with app.lifespan():
        async with calling(call):
            await settle()
        await settle()
        assert statistics(app).cancelled == 1
    assert held.cancelled == 1


@pytest.fixture
def unread(held):
    """A call whose client does not read its answer, and its application."""
    app = shoal.App(send_timeout_s=3)
    app.endpoint("/held", name="held")(held)
    held.go.set()
    return app, Call(app, "/held", item=1, reads=False)


async def test_a_client_that_does_not_take_its_answer_is_given_up_in_time(unread):
    app, call = unread
    async with app.lifespan():
        await call.run()
        assert anyio.current_time() == pytest.approx(3, abs=UNNOTICED_S)
        await anyio.sleep(10)  # the task itself goes on
    assert call.sent == []


async def test_a_client_that_does_not_take_a_page_is_given_up_as_well(unread):
    app, _ = unread
    call = Call(app, "/-/healthz", method="GET", reads=False)
    async with app.lifespan():
        await anyio.sleep(1)
        await call.run()
        assert anyio.current_time() == pytest.approx(4, abs=UNNOTICED_S)
    assert call.sent == []


async def test_a_task_that_sends_is_cancelled_by_its_server_as_well(unread):
    app, call = unread
    async with app.lifespan():
        with anyio.move_on_after(1) as scope:
            await call.run()
        assert scope.cancelled_caught
        await anyio.sleep(10)
    assert call.sent == []


async def test_an_answer_is_given_up_after_the_application_has_closed_as_well(unread):
    app, call = unread
    async with anyio.create_task_group() as tasks:
        async with app.lifespan():
            tasks.start_soon(call.run)
            await settle()
            assert not call.returned.is_set()
        with anyio.fail_after(4):
            await call.returned.wait()
    assert call.sent == []


async def test_an_answer_before_the_application_is_open_has_its_time_as_well(unread):
    _, call = unread
    await call.run()
    assert anyio.current_time() == pytest.approx(3)


def test_a_task_that_others_cancel_while_it_sends_is_not_given_up_in_silence(caplog):
    async def send(_message):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:  # as some servers do
            await asyncio.sleep(60)

    async def cancel_while_it_sends():
        app = app_of(echo, "/echo", settings={"send_timeout_s": 0.1})
        call = Call(app, "/echo", item=1)
        async with app.lifespan():
            task = asyncio.create_task(app(call.scope, call._receive, send))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(HandlerFailed, match="raised CancelledError"):
                await task

    asyncio.run(cancel_while_it_sends())
    caplog.clear()


def test_an_answer_within_the_send_of_another_does_not_take_that_ones_time():
    async def send_after_another_answer():
        app = app_of(echo, "/echo", settings={"send_timeout_s": 0.1})
        call, inner = Call(app, "/echo", item=1), Call(app, "/echo", item=2)

        async def send(_message):
            if not inner.sent:
                await inner.run()
            await asyncio.sleep(60)

        async with app.lifespan():
            await asyncio.wait_for(asyncio.shield(app(call.scope, call._receive, send)), 5)
        assert inner.answer.json() == 2

    asyncio.run(send_after_another_answer())


def test_a_task_that_was_cancelled_before_stays_so_with_an_answer_within_another():
    async def count_cancellations():
        app = app_of(echo, "/echo")
        call, inner = Call(app, "/echo", item=1), Call(app, "/echo", item=2)

        async def send(_message):
            if not inner.sent:
                await inner.run()

        async def answer():
            task = asyncio.current_task()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(0)
            await app(call.scope, call._receive, send)
            return task.cancelling()

        async with app.lifespan():
            assert await asyncio.create_task(answer()) == 1

    asyncio.run(count_cancellations())


# Clients that leave on servers which do not tell: one task notices them, and sleeps if it can


@pytest.mark.parametrize("late", [False, True])
async def test_a_client_that_leaves_is_noticed_soon(app, late):
    async with asking(app, "/held", 1) as [call]:
        await anyio.sleep(10 if late else 0)
        call.leave()
        left_at = anyio.current_time()
        await call.returned.wait()
        assert anyio.current_time() - left_at <= (0 if late else UNNOTICED_S + 1e-6)
    assert call.status == LEFT


async def test_a_short_call_never_waits_in_receive(app, held):
    async with asking(app, "/held", 1) as [call]:
        await anyio.sleep(UNNOTICED_S - 0.01)
        assert not call.is_listening
        held.go.set()
        await call.returned.wait()
        assert call.answer.json() == 1


async def test_a_receive_that_raises_ends_its_call_alone(caplog, held):
    def breaking(app):
        async def run(scope, receive, send):
            messages = iter(range(9))

            async def broken():
                if next(messages):
                    raise LookupError("no such message")
                return await receive()

            await app(scope, broken if scope["query_string"] else receive, send)

        return run

    app = app_of(held, "/held", settings={"middleware": [breaking]}, max_batch_size=8, name="held")
    bad, good = Call(app, "/held?x", item=1), Call(app, "/held", item=2)
    async with app.lifespan(), calling(bad, good):
        await bad.returned.wait()
        assert "can't be watched" in caplog.text
        await settle()
        held.go.set()
        await good.returned.wait()
        again = await ask(app, "/held", 3)
        assert (good.answer.json(), again.json()) == (2, 3)
    assert bad.status == LEFT
    caplog.clear()


async def test_nothing_wakes_while_no_call_waits(app, held, monkeypatch):
    looks = []
    sleep = anyio.sleep

    async def counted(delay_s):
        looks.append(delay_s)
        await sleep(delay_s)

    async with app.lifespan():
        monkeypatch.setattr("shoal.http.requests.disconnects.anyio.sleep", counted)
        await sleep(10)
        assert looks == []
        long = Call(app, "/held", item=1)
        async with calling(long):
            await sleep(10)  # a call that is listened to costs no looks either
            assert 0 < len(looks) <= 3
            held.go.set()
            await long.returned.wait()
