"""`shoal.integrations.starlette`, in FastAPI and in Starlette; not its watching of clients."""

import json
import logging
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, WebSocketRoute

import shoal
from shoal import errors
from shoal.asgi.extensions import DISCONNECT
from shoal.integrations.error_responses import ErrorResponses
from shoal.integrations.starlette import (
    ResultStreamResponse,
    exception_handlers,
    lifespan,
    operator_pages,
)
from shoal.testing import ScriptedHandler, ScriptedStreams, settle
from shoal.testing.asgi import Call, ask, calling

BOTH = ["SystemExit", "KeyboardInterrupt"]


def site(batched, *, stream=False, **options):
    """A site with one route that calls a batched function, and the pages."""

    async def route(request):
        if stream:
            return ResultStreamResponse(batched(request.query_params.get("text", "")))
        return JSONResponse(await batched(await request.json()))

    routes = [Route("/", route, methods=["GET", "POST"]), Mount("/-", operator_pages())]
    handlers = exception_handlers(**options)
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


def running(app):
    return app.router.lifespan_context(app)


def raising(error):
    @shoal.batch(max_batch_size=8)
    async def fail(items: list[Any]) -> list[Any]:
        raise error

    return fail


async def test_requests_share_a_batch():
    handler = ScriptedHandler()
    app = site(shoal.batch(handler, max_batch_size=2, batch_wait_timeout_s=None))
    calls = [Call(app, "/", item=number) for number in (1, 2)]
    async with running(app), calling(*calls):
        batch = await handler.next_batch()
        assert sorted(batch.items) == [1, 2]
        batch.answer_each(lambda number: -number)
        for call in calls:
            await call.returned.wait()
    assert sorted(call.answer.json() for call in calls) == [-2, -1]


async def test_the_lifespan_runs_within_one_of_the_users():
    @asynccontextmanager
    async def own(app):
        async with lifespan(app):
            yield {"name": "prices"}

    @shoal.batch
    async def length(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    async def route(request):
        return JSONResponse(await length("eel"))

    app = Starlette(lifespan=own, routes=[Route("/", route)])
    async with running(app) as state:
        assert state == {"name": "prices"}
        assert (await ask(app, "/", method="GET")).json() == 3


@pytest.mark.parametrize("ending", BOTH)
async def test_a_handler_that_would_end_the_program_fails_its_batch_only(ending):
    endings = {"SystemExit": SystemExit(3), "KeyboardInterrupt": KeyboardInterrupt()}
    calls = []

    @shoal.batch
    async def fail_once(items: list[int]) -> list[int]:
        calls.append(items)
        if len(calls) == 1:
            raise endings[ending]
        return items

    app = site(fail_once)
    async with running(app):
        answer = await ask(app, "/", 1)
        assert (answer.status, answer.json()["type"]) == (500, "urn:shoal:problem:internal")
        assert ending not in answer.body.decode()
        assert (await ask(app, "/", 2)).json() == 2


ERRORS = [
    errors.Overloaded("full"),
    errors.BatcherClosed("closed"),
    errors.ShutDown("shut down"),
    errors.BackendUnavailable("none"),
    errors.ReplicaDied("killed", replica="embed#3", last_lines="a secret"),
    errors.ItemTooLarge("too large"),
    errors.NoSuchModel("a secret"),
    errors.DeadlineExceeded("late"),
    errors.HandlerTimeout("slow"),
    errors.SlowReader("slow"),
    errors.HandlerFailed("a secret"),
    errors.Unfinished("a secret"),
    errors.WrongBatchSize("a secret", expected=2, got=1),
    errors.WrongResultType("a secret"),
    errors.WouldDeadlock("a secret"),
    errors.HttpProblem("a secret", status=418),
    errors.NoSuchName("a secret"),
    errors.NotAllowed("a secret"),
]


def test_the_table_has_every_kind_of_error_that_endpoints_know():
    from shoal.http.requests import problem

    known = {one for one in vars(problem).values() if isinstance(one, type)}
    known = {one for one in known if issubclass(one, errors.ShoalError)}
    # An endpoint whose handler raises RetryLater calls it again.
    assert known <= {errors.RetryLater, *(type(error) for error in ERRORS)}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_error_has_the_response_of_shoals_own_endpoints(error):
    """By Shoal's endpoint, by the route, and by `ErrorResponses`."""
    id_ = ("x-request-id", "id-of-client")
    fail = raising(error)
    own = shoal.App()
    own.endpoint("/")(fail)
    async with own.lifespan():
        wanted = await ask(own, "/", 1, headers=[id_])
    app = site(fail)
    async with running(app):
        answer = await ask(app, "/", 1, headers=[id_])
    assert answer == wanted
    assert answer.status >= 400
    assert "secret" not in answer.body.decode()
    status, headers, body = ErrorResponses().of(error, request_id="id-of-client")
    assert (status, body) == (wanted.status, wanted.body)
    assert {**headers, "content-length": str(len(body))} == wanted.headers


async def test_a_full_queue_has_the_status_and_the_retry_after_of_the_options():
    handler = ScriptedHandler()
    batched = shoal.batch(handler, max_batch_size=1, max_queued_requests=0)
    app = site(batched, overload_status=429, retry_after_s=7)
    first = Call(app, "/", item=1)
    async with running(app), calling(first):
        batch = await handler.next_batch()
        answer = await ask(app, "/", 2)
        batch.answer_each(str)
        await first.returned.wait()
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["type"] == "urn:shoal:problem:overloaded"


async def test_debug_shows_the_traceback():
    app = site(raising(errors.HandlerFailed("why it failed")), debug=True)
    async with running(app):
        answer = await ask(app, "/", 1)
    assert "why it failed" in answer.json()["traceback"][-1]


@pytest.mark.parametrize("given", [None, "", "a b", "ä", "x" * 65, "a\nb"])
def test_a_malformed_request_id_is_replaced(given):
    response = ErrorResponses().of(errors.Overloaded("full"), request_id=given)
    assert response.headers["x-request-id"] == json.loads(response.body)["instance"] != given


def test_wrong_options_are_refused():
    with pytest.raises(TypeError):
        exception_handlers(overload=429)
    with pytest.raises(ValueError, match="overload_status must be 503 or 429, not 500"):
        exception_handlers(overload_status=500)
    with pytest.raises(ValueError, match="retry_after_s"):
        ErrorResponses(retry_after_s=0)


@pytest.mark.parametrize("kind", [errors.HandlerFailed, LookupError])
async def test_all_callers_of_a_failed_batch_share_one_log_record(kind, caplog):
    async def route(request):
        return JSONResponse(await fail(await request.json()))

    @shoal.batch(max_batch_size=3, batch_wait_timeout_s=None)
    async def fail(items: list[int]) -> list[int]:
        raise kind("the reason")

    handlers = exception_handlers(LookupError)
    app = Starlette(lifespan=lifespan, routes=[Route("/", route, methods=["POST"])])
    app.exception_handlers.update(handlers)
    calls = [Call(app, "/", item=number) for number in range(3)]
    with caplog.at_level(logging.ERROR):
        async with running(app), calling(*calls):
            for call in calls:
                await call.returned.wait()
    assert [call.status for call in calls] == [500] * 3
    (record,) = [one for one in caplog.records if one.name == "shoal.http"]
    assert record.getMessage().startswith("route: request ")
    instances = [call.answer.json()["instance"] for call in calls]
    assert any(instance in record.getMessage() for instance in instances)
    assert "the reason" in str(record.exc_info[1])
    assert all(b"the reason" not in call.body for call in calls)


async def test_an_exception_of_the_handler_is_the_applications_to_handle():
    """Of Starlette: an HTTPException has its status, any other ends in a 500."""
    app = site(raising(HTTPException(418, "no tea")))
    async with running(app):
        answer = await ask(app, "/", 1)
        assert (answer.status, answer.body) == (418, b"no tea")
    app = site(raising(LookupError("of the handler")))
    async with running(app):
        with pytest.raises(LookupError, match="of the handler"):
            await ask(app, "/", 1)


class Socket:
    """The server of one WebSocket."""

    def __init__(self, *messages):
        self.to_app = [{"type": "websocket.connect"}, *messages]
        self.sent = []

    async def run(self, app):
        scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b""}
        await app(scope, self.receive, self.send)
        return self.sent

    async def receive(self):
        return self.to_app.pop(0)

    async def send(self, message):
        self.sent.append(message)


@pytest.mark.parametrize(
    ("error", "accepts", "code", "reason"),
    [
        (errors.Overloaded("full"), True, 1013, "The endpoint is overloaded"),
        (errors.Overloaded("full"), False, 1013, "The endpoint is overloaded"),
        (errors.HandlerFailed("a secret"), True, 1011, "The call failed"),
        (errors.ItemTooLarge("too large"), True, 1011, "The item is too large"),
    ],
)
async def test_a_failed_websocket_is_closed_with_the_reason(error, accepts, code, reason):
    async def route(socket):
        if accepts:
            await socket.accept()
        raise error

    routes = [WebSocketRoute("/", route)]
    sent = await Socket().run(Starlette(routes=routes, exception_handlers=exception_handlers()))
    assert sent[-1] == {"type": "websocket.close", "code": code, "reason": reason}


@pytest.mark.parametrize("left", [True, False])
async def test_a_closed_websocket_is_left_alone(left):
    async def route(socket):
        await socket.accept()
        if left:
            await socket.receive()
        else:
            await socket.close()
        raise errors.Overloaded("full")

    messages = [{"type": "websocket.disconnect", "code": 1001}]
    app = Starlette(routes=[WebSocketRoute("/", route)], exception_handlers=exception_handlers())
    sent = await Socket(*messages).run(app)
    assert [one["type"] for one in sent] == ["websocket.accept", "websocket.close"][: 2 - left]


def streaming(app, **options):
    return Call(app, "/", method="GET", **options)


JSON_LINES = [("accept", "application/x-ndjson")]


@pytest.mark.parametrize(
    ("accept", "body"),
    [
        ("text/event-stream", b"retry: 1000\nid: 1\ndata: 1\n\nid: 2\nevent: end\ndata: {}\n\n"),
        ("application/x-ndjson", b'{"item":1}\n{"end":true}\n'),
        ("application/json", b"[1]"),
    ],
)
async def test_a_stream_has_the_form_that_the_client_accepts(accept, body):
    @shoal.batch
    async def one(items: list[str]):
        yield [1] * len(items)

    app = site(one, stream=True)
    async with running(app):
        answer = await ask(app, "/", method="GET", headers=[("accept", accept)])
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["content-type"].startswith(accept)
        refused = await ask(app, "/", method="GET", headers=[("accept", "image/png")])
        assert (refused.status, refused.json()["type"]) == (406, "urn:shoal:problem:not-acceptable")
        head = await ask(app, "/", method="HEAD", headers=[("accept", accept)])
        assert (head.status, head.body) == (200, b"")


async def test_items_are_sent_as_they_arrive_with_heartbeats_in_silence():
    handler = ScriptedStreams()
    app = site(shoal.batch(handler), stream=True)
    call = streaming(app, headers=JSON_LINES)
    async with running(app), calling(call):
        batch = await handler.next_batch()
        assert call.status is None
        batch.step(["a"])
        await call.until_sent(b'{"item":"a"}\n')
        await anyio.sleep(20)
        assert call.body == b'{"item":"a"}\n\n'
        batch.end()
        await call.returned.wait()
    assert call.body == b'{"item":"a"}\n\n{"end":true}\n'


async def test_a_stream_that_fails_has_an_error_status_at_first_and_ends_with_one_later():
    overloaded = "urn:shoal:problem:overloaded"
    app = site(raising_stream(0), stream=True)
    async with running(app):
        first = await ask(app, "/", method="GET")
    assert (first.status, first.headers["retry-after"]) == (503, "1")
    assert first.json()["type"] == overloaded
    app = site(raising_stream(1), stream=True)
    async with running(app):
        later = await ask(app, "/", method="GET", headers=JSON_LINES)
    item, error = later.body.splitlines()
    assert (later.status, item) == (200, b'{"item":0}')
    assert json.loads(error)["error"]["type"] == overloaded


def raising_stream(after):
    @shoal.batch
    async def fail(items: list[str]):
        for number in range(after):
            yield [number] * len(items)
        raise errors.Overloaded("full")

    return fail


@pytest.mark.parametrize("within_lifespan", [True, False])
@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_stream_ends_when_its_client_disconnects(has_begun, within_lifespan):
    done = []
    handler = ScriptedStreams()
    batched = shoal.batch(handler)

    async def route(request):
        return ResultStreamResponse(batched("x"), background=BackgroundTask(done.append, 1))

    app = Starlette(routes=[Route("/", route)])
    call = streaming(app)
    opened = lifespan() if within_lifespan else shoal.open_batchers()
    async with opened, calling(call):
        batch = await handler.next_batch()
        if has_begun:
            batch.step(["a"])
            await call.until_sent(b"a")
        call.leave()
        await call.returned.wait()
        await settle()
        assert batch.cancelled
    assert done == [1]
    assert call.status == (200 if has_begun else 499)


async def test_a_client_that_does_not_read_its_stream_is_left():
    handler = ScriptedStreams()
    app = site(shoal.batch(handler), stream=True)
    call = streaming(app, reads=False)
    async with running(app), calling(call):
        batch = await handler.next_batch()
        batch.step(["a"])
        await call.returned.wait()
        assert anyio.current_time() == pytest.approx(10, abs=0.1)
        await settle()
        assert batch.cancelled


async def test_a_stream_that_a_stopping_server_ends_says_so():
    """As Shoal's server does: it calls the callback, and can still send the response."""
    handler = ScriptedStreams()
    app = site(shoal.batch(handler), stream=True)
    call = streaming(app)
    callbacks = []
    offered = {"when_left": callbacks.append, "is_cut_off": lambda: True, "send": None}
    call.scope["extensions"] = {DISCONNECT: offered}
    async with running(app), calling(call):
        batch = await handler.next_batch()
        callbacks[0]()
        await call.returned.wait()
        await settle()
        assert batch.cancelled
    assert (call.status, call.answer.json()["type"]) == (503, "urn:shoal:problem:closed")


async def test_middleware_may_be_around_a_stream():
    @shoal.batch
    async def one(items: list[str]):
        yield [1] * len(items)

    async def route(request):
        return ResultStreamResponse(one("x"))

    async def dispatch(request, call_next):
        return await call_next(request)

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=dispatch)]
    app = Starlette(routes=[Route("/", route)], middleware=middleware, lifespan=lifespan)
    async with running(app):
        answer = await ask(app, "/", method="GET", headers=JSON_LINES)
    assert answer.body == b'{"item":1}\n{"end":true}\n'


async def test_readiness_follows_the_lifespan():
    handler = ScriptedHandler()
    app = site(shoal.batch(handler, max_batch_size=1))
    name = "ScriptedHandler"
    call = Call(app, "/", item=1)
    refused = await ask(app, "/-/readyz", method="GET")
    assert (refused.status, refused.json()) == (503, {"status": "not open", "batchers": {}})
    leave = anyio.Event()

    async def run():
        async with running(app):
            await leave.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await settle()
        assert (await ask(app, "/-/readyz", method="GET")).json()["batchers"] == {}
        tasks.start_soon(call.run)
        batch = await handler.next_batch()
        ready = await ask(app, "/-/readyz", method="GET")
        state = {"state": "open", "queued": 0, "running": 1}
        assert (ready.status, ready.json()["status"]) == (200, "ready")
        assert ready.json()["batchers"] == {name: state}
        assert ready.headers["cache-control"] == "no-store"
        leave.set()
        await settle()
        draining = await ask(app, "/-/readyz", method="GET")
        assert (draining.status, draining.json()["status"]) == (503, "draining")
        assert (await ask(app, "/-/healthz", method="GET")).json() == {"status": "alive"}
        batch.answer_each(str)
    assert call.answer.json() == "1"
    assert (await ask(app, "/-/readyz", method="GET")).status == 503


class Model:
    @shoal.batch
    async def predict(self, items: list[int]) -> list[int]:
        return items


async def test_metrics_have_each_open_batcher():
    models = Model(), Model()
    app = site(shoal.batch(lambda items: items))
    async with running(app):
        for _ in range(3):
            await models[0].predict(1)
        await models[1].predict(1)
        answer = await ask(app, "/-/metrics", method="GET")
        assert answer.headers["content-type"].startswith("text/plain")
        finished = {
            sample.labels["backend"]: sample.value
            for family in text_string_to_metric_families(answer.body.decode())
            for sample in family.samples
            if sample.name == "shoal_requests_total" and sample.labels["outcome"] == "finished"
        }
        assert finished == {"Model.predict": 3, "Model.predict#2": 1}
        wanted = [("accept", "application/openmetrics-text; version=1.0.0")]
        answer = await ask(app, "/-/metrics", method="GET", headers=wanted)
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert (await ask(app, "/-/metrics", method="POST")).status == 405
