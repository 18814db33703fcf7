"""Calls that an App makes for the server itself, and that fail."""

from typing import Annotated

import anyio
import pytest
from held_app import answers_counted, counted, kind_of, served, statistics
from pydantic import BeforeValidator
from server_in_memory import serving
from starlette.responses import Response

from base_exceptions import Panic, cancellation
from shoal.core.histogram import outcome_of
from shoal.testing import settle

BOUNDED = {"max_batch_size": 1, "max_concurrent_batches": 1, "max_queued_requests": 1}


@pytest.mark.parametrize("queued", [False, True])
async def test_a_call_that_is_late_is_answered_with_504(held, queued, app):
    limited = {"request_timeout_s": 5, "max_batch_size": 1, "max_concurrent_batches": 1}
    app.endpoint("/held", name="held", **limited)(held)
    app.endpoint("/other", name="other")(held)
    async with served(app) as server:
        before, client = server.connect(), server.connect()
        if queued:
            before.ask("/held", 1)
            await anyio.sleep(1)
        client.ask("/held", 2)
        await settle()
        await anyio.sleep(4.9)
        assert client.answers == []
        await anyio.sleep(0.2)
        (answer,) = client.answers
        assert (answer[0], kind_of(answer)) == (504, "deadline-exceeded")
        assert client.wire.is_open
        await held.let_go()
        assert server.counts() == (1 + queued,) * 2
        assert statistics(app).expired == 1 + queued
        assert counted(app) == (1 + queued, 1 + queued)
        assert await answers_counted(app) == {"timeout": 1 + queued}


async def test_a_call_that_finds_the_queue_full_is_refused_at_once(held, app):
    app.endpoint("/held", name="held", **BOUNDED)(held)
    async with served(app) as server:
        clients = [await server.ask("/held", 1) for _ in range(4)]
        assert [client.statuses for client in clients] == [[], [], [503], [503]]
        assert [kind_of(client.answers[0]) for client in clients[2:]] == ["overloaded"] * 2
        assert server.counts() == (4, 2)
        await held.let_go()
        assert server.counts() == (4, 4)
        assert counted(app) == (4, 2)
        assert await answers_counted(app) == {"ok": 2, "unavailable": 2}


async def test_a_call_that_makes_room_for_another_is_answered(held, app):
    app.endpoint("/held", name="held", overload="shed_oldest", **BOUNDED)(held)
    async with served(app) as server:
        clients = [await server.ask("/held", 1) for _ in range(3)]
        assert [client.statuses for client in clients] == [[], [503], []]
        await held.let_go()
        assert [client.statuses for client in clients] == [[200], [503], [200]]


class Unwritable:
    """A result that raises when it is written."""

    def __init__(self, error):
        self._error = error

    def tolist(self):
        raise self._error


class UnwritableResponse(Response):
    """A response that does."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    @property
    def raw_headers(self):
        raise self._error

    @raw_headers.setter
    def raw_headers(self, _headers):
        pass


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError, 500), (Panic, 500), (KeyboardInterrupt, 503), (SystemExit, 503)],
)
async def test_a_handler_that_raises_fails_its_call(error, status, app):
    @app.endpoint("/fail", name="fail")
    async def fail(items: list[bool]) -> list[str]:
        if any(items):
            raise error
        return ["fine"] * len(items)

    await fails_once(app, status)


@pytest.mark.parametrize("error", [ValueError, Panic, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("result", [Unwritable, UnwritableResponse])
async def test_whatever_a_result_raises_when_it_is_written_its_call_fails_alone(result, error, app):
    @app.endpoint("/fail", name="fail")
    async def fail(items: list[bool]) -> list[object]:
        return [result(error()) if item else "fine" for item in items]

    await fails_once(app, 500)


OF_CHECKS = [RuntimeError, StopIteration, GeneratorExit, Panic, KeyboardInterrupt, SystemExit]


@pytest.mark.parametrize("kind", [*OF_CHECKS, cancellation])
async def test_whatever_the_check_of_an_item_raises_its_call_fails_alone(kind, app):
    error = await cancellation() if kind is cancellation else kind()

    def check(item):
        if item:
            raise error
        return item

    async def fail(items) -> list[str]:
        return ["fine"] * len(items)

    fail.__annotations__["items"] = list[Annotated[bool, BeforeValidator(check)]]
    app.endpoint("/fail", name="fail")(fail)
    async with served(app) as server:
        clients = await server.ask_together("/fail", False, True, False)
        assert [client.statuses for client in clients] == [[200], [500], [200]]
        assert server.counts() == (3, 3)
        assert counted(app, "fail") == (3, 1)
        assert await answers_counted(app, "fail") == {"ok": 2, "failed": 1}


async def test_an_error_that_comes_too_late_for_another_answer_is_told_once(held_app, held, caplog):
    def broken(_data):
        raise RuntimeError("not this time")

    async with served(held_app) as server:
        client, other = await server.ask_together("/held", 1, 1)
        client.wire.send = broken
        await held.let_go()
        assert (client.statuses, other.statuses) == ([], [200])
        assert server.counts() == (2, 2)
    assert [record.name for record in caplog.records] == ["shoal.http", "shoal.server"]


async def fails_once(app, status):
    """Has a call fail, and the next ones succeed, once the backend is there again."""
    async with served(app, keep_alive_timeout_s=60) as server:
        client, other = server.connect(), server.connect()
        for asker, item in ((client, True), (other, False), (client, False)):
            asker.ask("/fail", item)
            await settle()
            await anyio.sleep(10)
        assert (client.statuses, other.statuses) == ([status, 200], [200])
        assert server.counts() == (3, 3)
        assert counted(app, "fail") == (3, 1)
        assert await answers_counted(app, "fail") == {"ok": 2, outcome_of(status): 1}


async def test_a_call_that_waits_for_a_backend_is_told_that_its_endpoint_was_deleted(held, app):
    app.endpoint("/held", name="held")(held)
    async with served(app) as server:
        await app.controller.create_endpoint("later", backend=None, route="/later")
        client = await server.ask("/later", 1)
        await app.controller.delete_endpoint("later")
        await settle()
        assert client.statuses == [404]
        assert kind_of(client.answers[0]) == "not-found"
        assert server.counts() == (1, 1)


@pytest.mark.parametrize("force", [False, True])
async def test_calls_of_a_backend_that_is_deleted_are_answered(held, force, app):
    app.endpoint("/held", name="held", max_batch_size=1, graceful_shutdown_timeout_s=5)(held)
    async with served(app) as server:
        clients = [await server.ask("/held", 1) for _ in range(2)]
        await app.controller.delete_endpoint("held")
        await app.controller.delete_backend("held", force=force)
        await settle()
        assert [client.statuses for client in clients] == [[503]] * 2
        assert [kind_of(client.answers[0]) for client in clients] == ["closed"] * 2
        assert server.counts() == (2, 2)


async def test_calls_of_an_application_that_closes_are_answered(held_app, held):
    is_open, close = anyio.Event(), anyio.Event()

    async def run():
        async with held_app.lifespan():
            is_open.set()
            await close.wait()

    async with anyio.create_task_group() as tasks, serving(held_app) as server:
        tasks.start_soon(run)
        await is_open.wait()
        client = await server.ask("/held", 1)
        close.set()
        await settle()
        assert client.statuses == []
        await held.let_go()
        late = await server.ask("/held", 2)
        assert (client.statuses, late.statuses) == ([200], [503])
        assert server.counts() == (2, 2)
