"""Declaring, opening, answering, draining, breaking and mounting an `App`."""

import functools
import logging
import threading
from datetime import date

import anyio
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

import shoal
from handlers import app_of, ask_once, ask_together, asking, double
from shoal.asgi.lifespan import AppLifespan
from shoal.batching.running.closed_slots import ClosedSlots
from shoal.http.requests.call import HttpMetadata
from shoal.replicas.process.wire.batch import metadata_parts, received_metadata
from shoal.testing import settle
from shoal.testing.asgi import Call, ask

real_time = pytest.mark.real_time


@pytest.fixture
def doubling():
    return app_of(double)


def tripled(items: list[int]) -> list[int]:
    return [3 * item for item in items]


async def counted(items: list[int]):
    yield [shoal.END if item == 0 else item for item in items]


class Scaled:
    def __init__(self, factor: int = 5):
        self.factor = factor
        self.thread = threading.get_ident()

    def __call__(self, items: list[int]) -> list[int]:
        return [self.factor * item for item in items]

    async def method(self, items: list[int]) -> list[int]:
        return [-self.factor * item for item in items]

    @shoal.batch
    async def batched(self, items: list[int], plus: list[int] = 1) -> list[int]:
        return [self.factor * item + more for item, more in zip(items, plus, strict=True)]


def options_of(app):
    (backend,) = app.controller.backends.values()
    return backend.method_batchers["__call__"].batcher.options


@real_time
@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (double, 4),
        (tripled, 6),
        (Scaled, 10),
        (Scaled(6), 12),
        (Scaled(6).method, -12),
        (functools.partial(double), 4),
        (Scaled(7).batched, 15),
        (shoal.batch(double), 4),
        (shoal.batch(max_batch_size=3)(tripled), 6),
    ],
)
async def test_every_kind_of_handler_is_served(handler, result):
    app = app_of(handler)
    answer = await ask_once(app, "/x", {"items": 2} if result == 15 else 2)
    assert (answer.status, answer.json()) == (200, result)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.body))


async def test_a_handler_stays_what_it_was(app):
    batched = shoal.batch(double)
    assert app.endpoint("/a")(double) is double
    assert app.endpoint("/b", name="b")(batched) is batched
    assert app.endpoint("/c")(Scaled) is Scaled
    assert await double([1]) == [2]
    async with shoal.open_batchers(batched):
        assert await batched(1) == 2


async def metadata_of(*headers):
    """What a handler sees of a request with these headers."""
    seen = []

    async def noting(items: list[int]) -> list[int]:
        seen.append(shoal.current_batch().requests[0].metadata)
        return items

    await ask_once(app_of(noting), "/x", 1, headers=headers)
    return seen[0]


async def test_a_handler_sees_what_the_request_was():
    metadata = await metadata_of(("x-request-id", "abc"), ("x-mine", "yes"))
    sharded = await metadata_of(("x-serve-shard-key", "ann"))
    assert metadata["request_id"] == "abc"
    assert (metadata["method"], metadata["path"]) == ("POST", "/x")
    assert metadata["headers"]["X-Mine"] == "yes"
    assert (metadata["context"], metadata["endpoint"]) == ("http", "noting")
    names = ["endpoint", "context", "request_id", "method", "path", "path_params", "headers"]
    assert list(metadata) == [*names, "user", "auth"]
    assert list(sharded) == [*names, "user", "auth", "shard_key"]
    assert (sharded["shard_key"], sharded.get("method_name")) == ("ann", None)
    assert len(metadata) == 9
    with pytest.raises(KeyError):
        metadata["other"]


async def test_a_process_gets_all_metadata_of_a_request():
    class User:
        def __reduce__(self):
            raise RuntimeError("not this one")

    seen = await metadata_of(("x-mine", "yes"), ("X-Mine", "no"), ("x-serve-shard-key", "ann"))
    scope = seen.caller.scope
    for found in ({}, {"path_params": {"day": date(2026, 11, 29)}, "user": "ann", "auth": User()}):
        scope.update(found)
        metadata = HttpMetadata(seen["endpoint"], seen.caller)
        sent = received_metadata(*metadata_parts(metadata))
        there = {**metadata, "headers": dict(metadata["headers"])}
        if "auth" in found:
            del there["auth"]
            with pytest.raises(KeyError, match="'auth' could not be sent to this process"):
                sent["auth"]
        assert sent == there
        assert (sent["headers"]["x-mine"], sent["shard_key"]) == ("yes", "ann")


async def test_a_request_item_has_its_body_and_its_query():
    async def shown(requests: list[Request]) -> list[str]:
        return [
            f"{request.method} {request.url.path} {(await request.body()).decode()}"
            for request in requests
        ]

    app = app_of(shown, methods=["put", "PUT", "GET"])
    async with app.lifespan():
        assert (await ask(app, "/x", method="PUT", body=b"abc")).json() == "PUT /x abc"
        assert (await ask(app, "/x", method="GET")).json() == "GET /x "


async def test_a_response_in_a_slot_is_sent_as_it_is():
    ran = []

    async def background():
        ran.append(True)

    async def pages(items: list[int]) -> list[object]:
        return [HTMLResponse("<p>", 203, {"x-mine": "1"}, background=background)] * len(items)

    answer = await ask_once(app_of(pages), "/x", 1)
    assert (answer.status, answer.body) == (203, b"<p>")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-mine"] == "1"
    assert ran == [True]


@real_time
@pytest.mark.parametrize("placement", ["task", "thread"])
async def test_a_response_that_streams_is_sent_as_it_is(placement):
    closed = []

    async def pieces():
        try:
            yield "a"
            yield b"b"
        finally:
            closed.append(True)

    def streaming(items: list[int]) -> list[object]:
        headers = {"x-mine": "1", "transfer-encoding": "gzip"}
        task = BackgroundTask(closed.append, "after it")
        return [StreamingResponse(pieces(), 203, headers, "text/plain", task) for _ in items]

    answer = await ask_once(app_of(streaming, placement=placement), "/x", 1)
    assert (answer.status, answer.body) == (203, b"ab")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-mine"] == "1"
    assert "transfer-encoding" not in answer.headers
    assert closed == [True, "after it"]


async def test_a_response_that_streams_is_closed_when_its_client_leaves():
    begun, closed = anyio.Event(), anyio.Event()

    async def pieces():
        try:
            yield "a"
            begun.set()
            await anyio.sleep_forever()
        finally:
            closed.set()

    async def streaming(items: list[int]) -> list[object]:
        return [StreamingResponse(pieces()) for _ in items]

    async with asking(app_of(streaming), "/x", 1) as [call]:
        await begun.wait()
        call.leave()
        await closed.wait()


async def test_a_response_that_streams_is_closed_where_its_client_left_it():
    async def pieces():
        while True:
            yield b"a" * 2**16

    running = pieces()  # kept, so that the garbage collector does not close it

    async def streaming(items: list[int]) -> list[object]:
        return [StreamingResponse(running) for _ in items]

    async with asking(app_of(streaming), "/x", 1, reads=False) as [call]:
        await settle()
        call.leave()
        await call.returned.wait()
        assert running.ag_frame is None


@real_time
@pytest.mark.parametrize("placement", ["task", "thread"])
async def test_a_file_is_sent_as_it_is(placement, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789")

    def files(request: Request) -> object:
        return FileResponse(path)

    app = app_of(files, methods=("GET",), placement=placement)
    async with app.lifespan():
        whole = await ask(app, "/x", method="GET")
        part = await ask(app, "/x", method="GET", headers=[("Range", "bytes=2-4")])
        head = await ask(app, "/x", method="HEAD")
    assert (whole.status, whole.body) == (200, b"0123456789")
    assert (part.status, part.body, part.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "10")


@pytest.mark.parametrize("path", ["/x", "/v2/models/streaming/infer"])
async def test_where_a_response_cannot_be_the_answer_the_log_says_what_to_do(path, caplog, oip):
    async def pieces():
        yield "a"

    async def streaming(items: list[str]):
        yield [StreamingResponse(pieces()) for _ in items]

    async def at_once(items: list[str]) -> list[object]:
        return [StreamingResponse(pieces()) for _ in items]

    oip.endpoint("/x", name="streaming")(streaming if path == "/x" else at_once)
    tensor = {"name": "items", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    answer = await ask_once(oip, path, "a" if path == "/x" else {"inputs": [tensor]})
    assert answer.status == 500
    assert "a StreamingResponse can only be the one result of a call by plain HTTP" in caplog.text


async def test_a_result_that_cannot_be_sent_fails_its_caller_alone(caplog):
    async def some(items: list[int]) -> list[object]:
        return [object() if item else "fine" for item in items]

    app = app_of(some, max_batch_size=2, batch_wait_timeout_s=1)
    bad, good = await ask_together(app, "/x", 1, 0)
    assert (bad.status, good.status, good.answer.json()) == (500, 200, "fine")
    assert bad.headers["x-request-id"] in caplog.text


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [("abc-1.2_3:4", True), ("a" * 64, True), ("a" * 65, False), ("a b", False), ("", False)],
)
async def test_a_sane_request_id_comes_back_and_another_is_replaced(given, is_kept, doubling):
    async with doubling.lifespan():
        answer = await ask(doubling, "/x", 1, headers=[("x-request-id", given)])
        other = await ask(doubling, "/x", 1, headers=[("x-request-id", given)])
    assert (answer.headers["x-request-id"] == given) is is_kept
    assert (answer.headers["x-request-id"] == other.headers["x-request-id"]) is is_kept


async def test_a_path_can_have_an_endpoint_for_each_method():
    app = app_of(double, methods=("POST", "PATCH"))
    app.endpoint("/x", methods=("PUT",), name="negated")(Scaled(1).method)
    async with app.lifespan():
        assert (await ask(app, "/x", 1)).json() == 2
        assert (await ask(app, "/x", 1, method="PUT")).json() == -1
        wrong = await ask(app, "/x", 1, method="GET")
    assert wrong.status == 405
    assert sorted(wrong.headers["allow"].split(", ")) == ["OPTIONS", "PATCH", "POST", "PUT"]
    missing = await ask(app, "/nowhere", 1)
    assert missing.status == 404
    assert missing.headers["content-type"] == "application/problem+json"
    assert missing.json()["instance"] == missing.headers["x-request-id"]


async def test_the_options_of_a_batched_function_hold_under_those_of_its_endpoint():
    batched = shoal.batch(max_batch_size=3, max_queued_requests=5, stream_buffer=2)(double)
    app = app_of(batched, max_batch_size=4)
    async with app.lifespan():
        options = options_of(app)
    assert (options.max_batch_size, options.max_queued_requests) == (4, 5)
    assert options.stream_buffer == 2
    app = app_of(shoal.batch(double), max_queued_requests=None)
    async with app.lifespan():
        assert options_of(app).max_queued_requests is None


@pytest.mark.parametrize(
    ("declare", "error", "text"),
    [
        (lambda app: app.endpoint("x"), ValueError, '@app.endpoint("/x")'),
        (lambda app: app.endpoint(double), TypeError, 'write @app.endpoint("/x")'),
        (lambda app: app.get(double), TypeError, 'write @app.endpoint("/x")'),
        (lambda app: app.post(double), TypeError, 'write @app.endpoint("/x")'),
        (lambda app: app.endpoint("/{a b}"), ValueError, "{name:int}"),
        (lambda app: app.endpoint("/-/x"), ValueError, "the application's own"),
        (lambda app: app.endpoint("/x", methods="POST"), TypeError, 'methods = ["POST"]'),
        (lambda app: app.endpoint("/x", methods=("FETCH",)), ValueError, "is not a method"),
        (lambda app: app.endpoint("/x", methods=(1,)), TypeError, "not 1"),
        (lambda app: app.endpoint("/x", methods=()), ValueError, "needs a method"),
        (lambda app: app.endpoint("/x", name="a b")(double), ValueError, "can't name"),
        (lambda app: app.endpoint("/x", name=3)(double), ValueError, "can't name"),
        (lambda app: app.endpoint("/x")(lambda items: items), ValueError, 'name="..."'),
        (lambda app: app.endpoint("/taken", name="n")(double), ValueError, "is answered by"),
        (lambda app: app.endpoint("/x", name="taken")(double), ValueError, "is named 'taken'"),
        (lambda app: app.endpoint("/x")(3), TypeError, "must be a function of a list"),
        (
            lambda app: app.get("/x")(functools.partial(shoal.batch(double))),
            TypeError,
            "is batched",
        ),
        (lambda app: app.endpoint("/x")(shoal.Batcher(double).call), TypeError, "is batched"),
        (lambda app: app.endpoint("/x", max_batch=3)(double), TypeError, "is not an option"),
        (lambda app: app.endpoint("/x", max_batch_size=0)(double), ValueError, "at least 1"),
        (lambda app: app.get("/x", max_batch=0)(shoal.batch(double)), TypeError, "not an option"),
        (lambda app: app.mount("static", double), ValueError, "app.mount("),
        (lambda app: app.mount("/-", double), ValueError, "own"),
        (lambda app: app.mount("/a/../b", double), ValueError, "no request can reach"),
        (lambda app: app.endpoint("/a%20b")(double), ValueError, "no request can reach"),
        (lambda app: app.endpoint("//a")(double), ValueError, "no request can reach"),
        (lambda app: app.mount("/static", None), TypeError, "an ASGI application"),
        (lambda app: app.mount("/mounted/", double), ValueError, "mounted already"),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(declare, error, text):
    app = shoal.App()
    app.endpoint("/taken", name="taken")(double)
    app.mount("/mounted", double)
    with pytest.raises(error) as raised:
        declare(app)
    assert text in str(raised.value)


class NoCall:
    pass


class NeedsArguments:
    def __init__(self, path): ...
    def __call__(self, items: list[int]): ...


class Unresolved:
    def __call__(self, items: "list[Nowhere]"): ...  # noqa: F821


def unresolved_result(items: list[int]) -> "Nowhere":  # noqa: F821
    return items


def odd(items: list[NoCall]): ...


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (NoCall, "has no __call__"),
        (NeedsArguments, "without arguments"),
        (Unresolved, "can't be read"),
        (Unresolved(), "can't be read"),
        (odd, "can't be checked against"),
    ],
)
def test_a_handler_that_cannot_be_served_is_refused_where_it_is_declared(handler, text, app):
    with pytest.raises(TypeError) as raised:
        app.endpoint("/x")(handler)
    assert text in str(raised.value)


def test_a_batched_function_has_one_endpoint():
    app, batched = shoal.App(), shoal.batch(double)
    app.endpoint("/a")(batched)
    with pytest.raises(ValueError, match="/a serves it already"):
        app.endpoint("/b", name="b")(batched)


async def test_a_call_before_the_lifespan_is_told_which_line_opens_it(doubling):
    answer = await ask(doubling, "/x", 1)
    assert answer.status == 503
    assert "lifespan=app.lifespan" in answer.json()["detail"]


@real_time
async def test_a_call_in_another_event_loop_is_a_503(doubling):
    async with doubling.lifespan():
        answer = await anyio.to_thread.run_sync(lambda: anyio.run(lambda: ask(doubling, "/x", 1)))
    assert answer.status == 503


async def test_what_the_body_of_the_lifespan_raises_is_not_wrapped(doubling):
    with pytest.raises(KeyError, match="mine"):
        async with doubling.lifespan():
            raise KeyError("mine")


@real_time
async def test_a_class_that_fails_to_load_fails_the_start_and_says_where(caplog, doubling):
    class Broken(Scaled):
        def __init__(self):
            raise FileNotFoundError("weights.npz")

    doubling.endpoint("/broken")(Broken)
    with pytest.raises(FileNotFoundError) as raised:
        async with doubling.lifespan():
            pytest.fail("opened")
    assert "/broken could not be opened" in raised.value.__notes__[0]
    assert (await ask(doubling, "/x", 1)).status == 503
    lifespan = AppLifespan(doubling)
    await lifespan.run()
    assert "/broken could not be opened" in str(lifespan.failure)
    assert "weights.npz" in str(lifespan.failure)


async def test_batchers_close_in_reverse_order():
    inner = shoal.batch(double)

    async def outer(items: list[int]) -> list[int]:
        return await inner.map(items)

    app = app_of(inner, name="inner")
    app.endpoint("/outer", batch_wait_timeout_s=None)(outer)
    call = Call(app, "/outer", item=1)
    async with anyio.create_task_group() as tasks, app.lifespan():
        tasks.start_soon(call.run)
        await settle()
    assert (call.status, call.answer.body) == (200, b"2")


async def test_draining_turns_not_ready_and_waits_for_company_no_more():
    app = app_of(double, batch_wait_timeout_s=None)
    app.begin_drain()
    async with asking(app, "/x", 1) as [call]:
        assert (await ask(app, "/-/readyz", method="GET")).status == 200
        await settle()
        assert call.sent == []
        app.begin_drain()
        await call.returned.wait()
        assert call.answer.json() == 2
        ready = await ask(app, "/-/readyz", method="GET")
        assert (ready.status, ready.json()["status"]) == (503, "draining")
        assert (await ask(app, "/x", 2)).json() == 4


class Bug(BaseException):
    """Neither an `Exception` nor a signal: what a panic in an extension module looks like."""


@pytest.mark.parametrize("bug", [RuntimeError("a bug"), Bug("a panic")])
async def test_a_batcher_that_breaks_takes_nothing_else_along(monkeypatch, caplog, bug, doubling):
    dispatch = ClosedSlots._dispatch

    def breaking(slots, *given):
        if slots.former.options.max_batch_size == 7:
            raise bug
        return dispatch(slots, *given)

    monkeypatch.setattr(ClosedSlots, "_dispatch", breaking)
    doubling.endpoint("/broken", name="broken", max_batch_size=7)(double)
    async with doubling.lifespan():
        assert (await ask(doubling, "/-/readyz", method="GET")).status == 200
        assert (await ask(doubling, "/broken", 1)).status == 503
        await settle()
        assert (await ask(doubling, "/broken", 1)).json()["type"] == "urn:shoal:problem:closed"
        assert (await ask(doubling, "/x", 1)).json() == 2
        ready = await ask(doubling, "/-/readyz", method="GET")
        assert (ready.status, ready.json()["status"]) == (503, "not ready: broken")
        assert ready.json()["endpoints"]["broken"]["failure"] == type(bug).__name__
        assert ready.json()["endpoints"]["double"]["alive"]
        assert (await ask(doubling, "/-/healthz", method="GET")).status == 200
    assert "the batcher of broken broke" in caplog.text


async def test_the_health_routes_say_what_is_there(caplog, doubling):
    doubling.endpoint("/s", methods=("POST", "PUT"))(counted)
    doubling.mount("/static", PlainTextResponse("mounted"))
    assert (await ask(doubling, "/-/healthz", method="GET")).json() == {"status": "alive"}
    ready = await ask(doubling, "/-/readyz", method="GET")
    assert (ready.status, ready.json()["status"]) == (503, "not open")
    ready = await ask_once(doubling, "/-/readyz", method="GET")
    assert ready.status == 200
    assert ready.json()["endpoints"]["double"] == {
        "path": "/x",
        "state": "open",
        "alive": True,
        "queued": 0,
        "running": 0,
        "backends": {"double": "ready"},
    }
    ready = await ask(doubling, "/-/readyz", method="GET")
    assert (ready.status, ready.json()["status"]) == (503, "closed")
    routes = (await ask(doubling, "/-/routes", method="GET")).json()
    assert routes["mounts"] == ["/static"]
    assert routes["endpoints"][1] == {
        "path": "/s",
        "methods": ["POST", "PUT"],
        "name": "counted",
        "takes": "json",
        "streams": True,
    }
    assert (await ask(doubling, "/-/healthz")).headers["allow"] == "GET, HEAD, OPTIONS"


async def test_a_path_that_only_begins_like_the_prefix_is_not_below_it(app):
    app.endpoint("/mlops", name="ops")(double)
    app.endpoint("/", name="home")(double)
    async with app.lifespan():
        assert (await ask(app, "/mlops", 2, root_path="/ml")).json() == 4
        assert (await ask(app, "/ml", 2, root_path="/ml")).json() == 4
        assert (await ask(app, "/ml/", 2, root_path="/ml")).json() == 4
        assert (await ask(app, "/ml/mlops", 2, root_path="/ml/")).json() == 4
        # A proxy may have taken the prefix off.
        assert (await ask(app, "/mlops", 2, root_path="/api")).json() == 4
        assert (await ask(app, "/mlops", 2, root_path="/")).json() == 4


def where(name):
    async def show(request):
        return PlainTextResponse(f"{name} {request.scope['root_path']} {request.url.path}")

    return Starlette(routes=[Route("/{rest:path}", show)])


@pytest.mark.parametrize("root", ["", "/api"])
async def test_what_is_mounted_answers_the_rest(root, doubling):
    doubling.mount("/", where("all"))
    doubling.mount("/ui", where("ui"))
    doubling.mount("/ui/deep/", where("deep"))

    async def at(path):
        return (await ask(doubling, root + path, method="GET", root_path=root)).body.decode()

    assert await at("/a") == f"all {root} {root}/a"
    assert await at("/uinot") == f"all {root} {root}/uinot"
    assert await at("/ui/a") == f"ui {root}/ui {root}/ui/a"
    assert await at("/ui/deep/a") == f"deep {root}/ui/deep {root}/ui/deep/a"
    assert (await ask(doubling, f"{root}/x", method="PUT", root_path=root)).status == 405


async def test_what_a_mounted_application_refuses_with_is_answered(tmp_path, doubling):
    """As files are, by an application that counts on another around it to say so."""
    doubling.mount("/files", StaticFiles(directory=tmp_path))
    missing = await ask(doubling, "/files/missing.txt", method="GET")
    assert (missing.status, missing.json()["title"]) == (404, "Not Found")
    assert missing.headers["content-type"] == "application/problem+json"
    assert (await ask(doubling, "/files/missing.txt", method="HEAD")).status == 404
    assert (await ask(doubling, "/files/missing.txt", 1)).status == 405


async def test_a_mounted_application_that_refuses_what_it_has_begun_to_answer_fails(doubling):
    async def late(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise HTTPException(404)

    doubling.mount("/", late)
    with pytest.raises(HTTPException):
        await ask(doubling, "/y", method="GET")


async def test_a_scope_of_another_type_is_refused():
    with pytest.raises(ValueError, match="'other'"):
        await app_of(double)({"type": "other", "path": "/x"}, None, None)


async def test_an_error_after_the_answer_has_begun_reaches_the_server(caplog):
    caplog.set_level(logging.CRITICAL)

    async def late():
        raise RuntimeError("in the background")

    async def pages(items: list[int]) -> list[object]:
        return [PlainTextResponse("x", background=late)]

    with pytest.raises(RuntimeError, match="in the background"):
        await ask_once(app_of(pages), "/x", 1)


def test_a_result_whose_annotation_cannot_be_read_is_no_obstacle(app):
    assert app.endpoint("/", name="one")(unresolved_result) is unresolved_result
