"""The tasks of connections, in which an application is called, without sockets."""

import gc
import logging
import sys
import weakref
from contextvars import ContextVar

import anyio
import pytest
from server_in_memory import asked, serving

from base_exceptions import Panic, cancellation
from shoal.loops.this_loop import parking_of_this_loop
from shoal.testing import settle


async def answer(send, body=b""):
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


class Counting:
    """Answers at once; at ``/hold`` once it is let go. Notes who makes the calls."""

    def __init__(self):
        self.calls = 0
        self.running = 0
        self.by = []
        self.go = anyio.Event()

    async def __call__(self, scope, receive, send):
        self.calls += 1
        self.running += 1
        self.by.append(anyio.get_current_task().id)
        try:
            if scope["path"] == "/hold":
                await self.go.wait()
            await answer(send, scope["path"].encode())
        finally:
            self.running -= 1


@pytest.fixture
def app():
    return Counting()


async def test_a_call_that_waits_does_not_delay_those_behind_it(app):
    async with serving(app) as server:
        held, others = server.connect(), [server.connect() for _ in range(5)]
        held.ask("/hold")
        for other in others:
            other.ask("/")
        await settle()
        assert [other.answers for other in others] == [[(200, b"/")]] * 5
        assert held.answers == []
        app.go.set()
        await settle()
        assert held.answers == [(200, b"/hold")]


async def test_a_client_that_pipelines_does_not_keep_the_event_loop_from_others(app):
    parking = parking_of_this_loop()
    most = 0
    async with serving(app) as server:
        one = asked("/")
        flood = server.connect()
        flood.say(one * 3000)
        while app.calls < 3000:
            before = app.calls
            await parking.one_pass()
            most = max(most, app.calls - before)
        assert flood.statuses == [200] * 3000
    assert most <= 4  # on trio a pass is two ticks


async def test_a_context_variable_that_a_call_leaves_is_not_met_by_the_next():
    user = ContextVar("user", default="nobody")
    met = []

    async def app(scope, receive, send):
        met.append(user.get())
        user.set(scope["path"])
        await answer(send)

    async with serving(app) as server:
        clients = [server.connect() for _ in range(20)]
        for client in clients:
            client.ask("/someone")
        await settle()
        clients[0].ask("/another")
        await settle()
        assert server.counts() == (21, 21)
    assert met == ["nobody"] * 21


async def test_a_context_variable_that_can_not_be_compared_is_left_to_no_other_call(caplog):
    class Array:
        """Refuses to be compared as a whole, as numpy's does."""

        def __eq__(self, _other):
            raise ValueError("the truth value of an array is ambiguous")

        __hash__ = None

    variable = ContextVar("variable")
    first = Array()
    variable.set(first)
    met = []

    async def app(scope, receive, send):
        met.append(variable.get())
        variable.set(Array())
        await answer(send)

    async with serving(app) as server:
        clients = [server.connect() for _ in range(3)]
        for client in clients:
            client.ask("/")
        await settle()
        assert [client.statuses for client in clients] == [[200]] * 3
    assert [one is first for one in met] == [True] * 3
    assert caplog.records == []


async def test_a_cancel_scope_that_a_call_leaves_open_is_not_met_by_the_next():
    async def app(scope, receive, send):
        await anyio.lowlevel.checkpoint()
        if scope["path"] == "/leave":
            scope_left = anyio.CancelScope()
            scope_left.__enter__()
            scope_left.cancel()
        await answer(send)

    async with serving(app) as server:
        clients = [server.connect() for _ in range(6)]
        for _ in range(2):
            for client in clients:
                client.ask("/leave" if client in clients[::2] else "/")
            await settle()
        assert [client.statuses for client in clients] == [[200, 200]] * 6
        assert server.counts() == (12, 12)


async def test_a_cancel_scope_that_a_call_leaves_open_does_not_cost_a_slow_client_its_answer():
    async def app(scope, receive, send):
        with anyio.CancelScope() as waiting:
            waiting.cancel()  # it does not wait until its client has read the answer
            await answer(send)
        scope_left = anyio.CancelScope()
        scope_left.__enter__()
        scope_left.cancel()

    async with serving(app) as server:
        client = server.connect()
        client.wire.takes = False
        client.ask("/")
        await settle()
        client.ask("/")
        await settle()
        client.read_on()
        await settle()
        assert client.statuses == [200, 200]
        assert server.counts() == (2, 2)


async def test_a_call_that_a_cancel_scope_left_open_cancels_fails_alone(caplog):
    async def app(scope, receive, send):
        if scope["path"] == "/leave":
            scope_left = anyio.CancelScope()
            scope_left.__enter__()
            scope_left.cancel()
            await anyio.lowlevel.checkpoint()
        await answer(send)

    await fails_alone(app, "/leave")
    assert {record.getMessage() for record in caplog.records} >= {
        "the application has ended a connection"
    }


@pytest.mark.parametrize("is_cancellation", [False, True])
async def test_a_call_that_raises_what_is_no_exception_fails_alone(is_cancellation):
    async def app(scope, receive, send):
        if scope["path"] == "/raise":
            raise (await cancellation()) if is_cancellation else Panic()
        await answer(send)

    await fails_alone(app, "/raise")


async def fails_alone(app, path):
    """One call fails; those beside it, behind it and after it are answered."""
    async with serving(app) as server:
        clients = [server.connect() for _ in range(6)]
        for client in clients:
            client.ask(path if client in clients[1::3] else "/")
        await settle()
        assert [client.statuses for client in clients] == [[200], [], [200]] * 2
        assert [client.releases for client in clients] == [0, 1, 0] * 2
        clients[0].ask("/")
        await settle()
        assert clients[0].statuses == [200, 200]
        assert server.counts() == (7, 7)


async def test_a_task_does_not_start_in_the_context_of_a_call():
    user = ContextVar("user", default="nobody")
    met = []
    go = anyio.Event()

    async def app(scope, receive, send):
        met.append(user.get())
        user.set(scope["path"])
        await answer(send)  # after which the connection goes on without it
        await go.wait()

    async with serving(app) as server:
        server.connect().say(asked("/someone") * 3)
        await settle()
        assert met == ["nobody"] * 3
        go.set()


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_task_that_is_cancelled_after_its_call_does_not_end_the_service():
    tasks = []

    async def app(scope, receive, send):
        if scope["path"] == "/self":
            import asyncio

            tasks.append(asyncio.current_task())
        await answer(send)

    async with serving(app) as server:
        for _ in range(3):
            first, second = server.connect(), server.connect()
            first.ask("/self")
            await settle()
            second.ask("/")
            tasks[-1].cancel()
            await settle()
            assert second.statuses == [200]
            third = server.connect()
            third.ask("/")
            await settle()
            assert third.statuses == [200]


async def goes_on_after_its_answer(scope, receive, send):
    await answer(send, scope["path"].encode())
    if scope["path"] == "/slow":
        await anyio.sleep(60)


@pytest.mark.parametrize("pipelines", [False, True])
async def test_a_client_need_not_wait_for_what_an_application_does_after_its_answer(pipelines):
    async with serving(goes_on_after_its_answer) as server:
        client = server.connect()
        client.ask("/slow")
        if not pipelines:
            await settle()
        client.ask("/next")
        await settle()
        assert client.answers == [(200, b"/slow"), (200, b"/next")]
        assert server.counts() == (2, 1)


async def test_a_last_answer_ends_its_connection_though_the_application_goes_on():
    async with serving(goes_on_after_its_answer) as server:
        client = server.connect()
        client.ask("/slow", headers=["Connection: close"])
        await settle()
        assert client.answers == [(200, b"/slow")]
        assert not client.wire.is_open
        assert (server.counts(), client.releases) == ((1, 0), 0)  # its place is still taken
        await anyio.sleep(60)
        await settle()
        assert (server.counts(), client.releases) == ((1, 1), 1)


async def test_a_connection_drains_though_the_application_goes_on():
    async with serving(goes_on_after_its_answer) as server:
        client = server.connect()
        client.ask("/slow")
        await settle()
        server.shared.drain()
        for connection in tuple(server.shared.connections):
            connection.drain()
        await anyio.sleep(1)
        assert not client.wire.is_open
        assert server.counts() == (1, 0)


async def test_a_task_in_a_call_ends_after_it(app):
    async with serving(app) as server:
        server.connect().ask("/hold")
        await settle()
        server.abort()
        await settle()
        assert server.counts() == (1, 0)
        app.go.set()
    assert server.counts() == (1, 1)


async def test_nothing_refers_to_a_request_while_its_connection_is_idle(monkeypatch):
    # pytest keeps the errors that are logged, and so their frames.
    monkeypatch.setattr(logging.getLogger("shoal.server"), "disabled", True)

    class Item:
        pass

    items = []

    async def app(scope, receive, send):
        scope["item"] = item = Item()
        items.append(weakref.ref(item))
        if scope["path"] == "/wait":
            await anyio.lowlevel.checkpoint()
        if scope["path"] == "/fail":
            raise RuntimeError("its own mistake")
        await answer(send)

    gc.disable()
    try:
        async with serving(app) as server:
            for path in ("/", "/wait", "/fail"):
                server.connect().ask(path)
            await settle()
            assert server.counts() == (3, 3)
            assert [item() for item in items] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("cuts", [False, True], ids=["whole", "head and body"])
async def test_each_request_is_read_once_at_whatever_moment_it_comes(steps, changes, cuts):
    user = ContextVar("user", default="nobody")

    async def app(scope, receive, send):
        if changes:
            user.set(scope["path"])
        await answer(send, (await receive())["body"])

    async with serving(app) as server:
        client = server.connect()
        await settle()
        for number in range(5):
            head, end, body = asked("/", number).partition(b"\r\n\r\n")
            for piece in (head + end, body) if cuts else (head + end + body,):
                client.say(piece)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
        await settle()
        assert client.answers == [(200, b"%d" % number) for number in range(5)]


async def test_an_idle_connection_keeps_nothing_of_the_body_that_it_has_read():
    async def app(_scope, receive, send):
        assert len((await receive())["body"]) == 50_000
        await answer(send)

    async with serving(app) as server:
        client = server.connect()
        for _ in range(2):  # the head of the second is the same as that of the first
            data = bytes(asked("/", method="POST", body=b"x" * 50_000))
            before = sys.getrefcount(data)
            client.say(data)
            await settle()
            assert sys.getrefcount(data) == before
        assert client.statuses == [200, 200]


async def test_an_application_that_ignores_the_disconnect_lets_other_tasks_run():
    has_run = []

    async def other():
        has_run.append(True)

    async def app(_scope, receive, _send):
        async with anyio.create_task_group() as tasks:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.start_soon(other)
            for _ in range(3):
                await receive()
            has_run.append(False)

    async with serving(app) as server:
        client = await server.ask("/")
        client.leave()
        await settle()
    assert has_run == [True, False]
