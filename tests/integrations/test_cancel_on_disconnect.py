"""`cancel_on_disconnect` in FastAPI and in Starlette, with clients that leave at any time."""

import functools
from typing import Annotated

import anyio
import pytest
from fastapi import Depends, FastAPI, File, Form, Request, UploadFile
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route

import shoal
from serving.scenes import deployed
from shoal.asgi.extensions import DISCONNECT
from shoal.integrations.starlette import cancel_on_disconnect, exception_handlers, lifespan
from shoal.testing import ScriptedHandler, settle
from shoal.testing.asgi import Call, ask, calling

FORM = [("content-type", "application/x-www-form-urlencoded")]
MULTIPART = [("content-type", "multipart/form-data; boundary=x")]
FILE = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\neel\r\n--x--\r\n'


def in_fastapi(batched):
    api = FastAPI(lifespan=lifespan)

    @api.post("/json")
    @cancel_on_disconnect
    async def of_json(text: Annotated[list[str], Depends(texts)]) -> str:
        return await batched(text[0])

    @api.post("/request")
    @cancel_on_disconnect
    async def of_request(request: Request) -> str:
        return await batched(await request.json())

    @api.post("/form")
    @cancel_on_disconnect
    async def of_form(text: Annotated[str, Form()]) -> str:
        return await batched(text)

    @api.post("/file")
    @cancel_on_disconnect
    async def of_file(image: Annotated[UploadFile, File()]) -> str:
        return await batched((await image.read()).decode())

    return api


async def texts(request: Request) -> list[str]:
    return [await request.json()]


def in_starlette(batched):
    @cancel_on_disconnect
    async def whole(request):
        return JSONResponse(await batched(await request.json()))

    @cancel_on_disconnect
    async def in_pieces(request):
        pieces = [piece async for piece in request.stream()]
        return JSONResponse(await batched(b"".join(pieces).decode().strip('"')))

    class Endpoint(HTTPEndpoint):
        @cancel_on_disconnect
        async def post(self, request):
            return JSONResponse(await batched(await request.json()))

    async def dispatch(request, call_next):
        return await call_next(request)

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=dispatch)]
    routes = [
        Route("/whole", whole, methods=["POST"]),
        Route("/pieces", in_pieces, methods=["POST"]),
        Route("/class", Endpoint),
        Route("/middleware", whole, methods=["POST"], middleware=middleware),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


WAYS = [
    (in_fastapi, "/json", {"item": "eel"}),
    (in_fastapi, "/request", {"item": "eel"}),
    (in_fastapi, "/form", {"body": b"text=eel", "headers": FORM}),
    (in_fastapi, "/file", {"body": FILE, "headers": MULTIPART}),
    (in_starlette, "/whole", {"item": "eel"}),
    (in_starlette, "/pieces", {"item": "eel"}),
    (in_starlette, "/class", {"item": "eel"}),
    (in_starlette, "/middleware", {"item": "eel"}),
]


@pytest.mark.parametrize("within_lifespan", [True, False])
@pytest.mark.parametrize(("site", "path", "request_"), WAYS, ids=lambda one: str(one)[:12])
async def test_a_client_that_leaves_cancels_its_call(site, path, request_, within_lifespan):
    handler = ScriptedHandler()
    app = site(shoal.batch(handler))
    call, answered = Call(app, path, **request_), Call(app, path, **request_)
    opened = lifespan() if within_lifespan else shoal.open_batchers()
    async with opened, calling(call) as tasks:
        batch = await handler.next_batch()
        assert batch.items == ["eel"]
        call.leave()
        await call.returned.wait()
        await settle()
        assert batch.cancelled
        tasks.start_soon(answered.run)
        batch = await handler.next_batch()
        await anyio.sleep(1)
        assert answered.is_listening
        batch.answer_each(str.upper)
        await answered.returned.wait()
    assert call.status in (499, None)  # what middleware of Starlette's does not send
    assert (answered.status, answered.answer.json()) == (200, "EEL")


def site_of(handler, **options):
    @cancel_on_disconnect
    async def route(request):
        return JSONResponse(await batched(await request.json()))

    batched = shoal.batch(handler, **options)
    return Starlette(routes=[Route("/", route, methods=["POST"])], lifespan=lifespan)


async def test_five_clients_that_have_left_never_reach_the_handler():
    handler = ScriptedHandler()
    app = site_of(handler)
    first, *left = [Call(app, "/", item=number) for number in range(6)]
    async with lifespan(), calling(first) as tasks:
        batch = await handler.next_batch()
        for call in left:
            tasks.start_soon(call.run)
        await settle()
        for call in left:
            call.leave()
        for call in left:
            await call.returned.wait()
        batch.answer_each(str)
        await first.returned.wait()
        await handler.no_batch()
    assert first.answer.json() == "0"


async def test_a_call_of_a_handle_is_cancelled_and_its_errors_are_explained():
    began = anyio.Event()

    async def hold(texts: list[str]) -> list[str]:
        began.set()
        await anyio.sleep_forever()
        return texts

    @cancel_on_disconnect
    async def route(request):
        return JSONResponse(await handle.call(await request.json()))

    routes = [Route("/", route, methods=["POST"])]
    app = Starlette(routes=routes, exception_handlers=exception_handlers())
    call = Call(app, "/", item="eel")
    async with shoal.start() as client:
        handle = await deployed(client, "hold", hold, config={"max_queued_requests": 0})
        async with calling(call):
            await began.wait()
            refused = await ask(app, "/", "second")
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            call.leave()
            await call.returned.wait()
            await settle()
            backend = (await client.status()).backends["hold"]
            assert [replica.ongoing for replica in backend.replicas] == [0]
    assert call.status == 499


async def test_others_in_the_batch_get_their_results():
    handler = ScriptedHandler()
    app = site_of(handler, max_batch_size=2, batch_wait_timeout_s=None)
    calls = [Call(app, "/", item=number) for number in range(2)]
    async with lifespan(), calling(*calls):
        batch = await handler.next_batch()
        calls[0].leave()
        await calls[0].returned.wait()
        batch.answer_each(str)
        await calls[1].returned.wait()
    assert (calls[0].status, calls[1].answer.json()) == (499, "1")


async def test_a_client_that_leaves_within_its_body_makes_no_call():
    app = site_of(handler := ScriptedHandler())
    call = Call(app, "/", body=b'"e', whole=False)
    async with lifespan(), calling(call):
        await settle()
        call.leave()
        await call.returned.wait()
        await handler.no_batch()
    assert call.status == 499


async def test_nothing_waits_in_receive_when_the_response_begins():
    """Servers and middleware may fail otherwise."""
    app = site_of(handler := ScriptedHandler())
    listening = []

    async def noting(scope, receive, send):
        async def note(message):
            listening.append(call.is_listening)
            await send(message)

        await app(scope, receive, note)

    call = Call(noting, "/", item=1)
    async with lifespan(), calling(call):
        batch = await handler.next_batch()
        await anyio.sleep(1)
        assert call.is_listening
        batch.answer_each(str)
        await call.returned.wait()
    assert listening == [False, False]


async def test_a_body_that_arrives_late_is_the_endpoints():
    app = site_of(handler := ScriptedHandler())
    call = Call(app, "/", body=b'"e', whole=False)
    async with lifespan(), calling(call):
        await anyio.sleep(1)
        call.give(b'el"', more=False)
        batch = await handler.next_batch()
        assert batch.items == ["eel"]
        batch.answer_each(str)
        await call.returned.wait()


async def test_one_task_watches_all_clients_of_a_lifespan():
    app = site_of(handler := ScriptedHandler())
    first, *calls = [Call(app, "/", item=number) for number in range(6)]
    async with lifespan(), calling(first) as tasks:
        batch = await handler.next_batch()
        before = len(anyio.get_running_tasks())
        for call in calls:
            tasks.start_soon(call.run)
        await settle()
        assert len(anyio.get_running_tasks()) == before + len(calls)
        batch.answer_each(str)
        (await handler.next_batch()).answer_each(str)
        for call in calls:
            await call.returned.wait()


async def test_clients_are_watched_after_the_end_of_a_lifespan():
    app = site_of(handler := ScriptedHandler())
    for first, second in ((lifespan(), lifespan()), (lifespan(), shoal.open_batchers())):
        async with first:
            pass
        async with second:
            async with lifespan():
                pass
            call = Call(app, "/", item=1)
            async with calling(call):
                batch = await handler.next_batch()
                call.leave()
                await call.returned.wait()
                await settle()
                assert batch.cancelled


async def test_a_client_that_left_at_once_is_noticed_after_50_ms():
    app = site_of(handler := ScriptedHandler())
    call = Call(app, "/", item=1)
    call.leave()
    async with lifespan(), calling(call):
        batch = await handler.next_batch()
        await call.returned.wait()
        assert anyio.current_time() <= 0.05
        await settle()
        assert batch.cancelled


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_server_that_reports_a_disconnect_is_not_asked(leaves):
    app = site_of(handler := ScriptedHandler())
    call = Call(app, "/", item=1)
    callbacks = []
    call.scope["extensions"] = {DISCONNECT: {"when_left": callbacks.append}}
    async with lifespan(), calling(call):
        batch = await handler.next_batch()
        await anyio.sleep(1)
        assert not call.is_listening
        if leaves:
            callbacks[0]()
        else:
            batch.answer_each(str)
        await call.returned.wait()
        await settle()
        assert batch.cancelled == leaves
    assert callbacks[1:] == [None]
    assert call.status == (499 if leaves else 200)


async def test_the_cancellation_of_a_stopping_server_passes():
    app = site_of(handler := ScriptedHandler())
    call = Call(app, "/", item=1)
    async with lifespan():
        async with calling(call):
            batch = await handler.next_batch()
            await anyio.sleep(1)
        assert batch.cancelled
    assert call.status is None


@pytest.mark.parametrize("error", [LookupError("x"), BaseExceptionGroup("x", [OSError("y")])])
async def test_an_error_of_the_endpoint_is_raised_as_it_is(error):
    @cancel_on_disconnect
    async def fail(request):
        raise error

    app = Starlette(routes=[Route("/", fail)])
    for opened in (lifespan(), shoal.open_batchers()):
        async with opened:
            with pytest.raises(type(error)) as raised:
                await ask(app, "/", method="GET")
            assert raised.value is error


async def test_a_receive_that_fails_counts_as_a_disconnect(caplog):
    app = site_of(handler := ScriptedHandler())
    call = Call(app, "/", item=1)

    async def receive():
        if handler.batches:
            raise OSError("the connection broke")
        return {"type": "http.request", "body": b"1"}

    async with lifespan(), anyio.create_task_group() as tasks:
        tasks.start_soon(app, call.scope, receive, call._send)
        batch = await handler.next_batch()
        await anyio.sleep(1)
        assert batch.cancelled
    assert "its client can't be watched" in caplog.text


async def test_openapi_and_errors_of_fastapi_are_unchanged():
    def site(decorated):
        api = FastAPI()

        @api.post("/{album}")
        @decorated
        async def add(album: int, text: Annotated[str, Form()], width: int = 3) -> str:
            return f"{text} of {width} in {album}"

        return api

    plain, watched = site(lambda endpoint: endpoint), site(cancel_on_disconnect)
    assert watched.openapi() == plain.openapi()
    answer = await ask(watched, "/2?width=5", body=b"text=a", headers=FORM)
    assert answer.json() == "a of 5 in 2"
    wrong = await ask(watched, "/x", body=b"text=a", headers=FORM)
    assert (wrong.status, len(wrong.json()["detail"])) == (422, 1)


async def test_a_request_is_found_by_an_annotation_that_only_type_checkers_can_resolve():
    api = FastAPI()

    async def route(request) -> dict[str, str]:
        return {"path": request.url.path}

    route.__annotations__ = {"request": Request, "return": "Unknown[str]"}
    watched = cancel_on_disconnect(route)
    assert list(watched.__annotations__) == ["request", "return"]
    route.__annotations__ = {"request": "fastapi.Request", "return": "Unknown[str]"}
    assert not hasattr(cancel_on_disconnect(route), "__signature__")
    route.__annotations__ = {"request": Request}
    api.get("/")(cancel_on_disconnect(route))
    assert (await ask(api, "/", method="GET")).json() == {"path": "/"}


def test_a_function_that_runs_in_a_thread_is_refused():
    def route(request): ...

    for wrong in (route, functools.partial(route), Route("/", route), None):
        with pytest.raises(TypeError, match="@cancel_on_disconnect takes an async function"):
            cancel_on_disconnect(wrong)


async def test_a_call_without_a_request_says_so():
    @cancel_on_disconnect
    async def route(text: str) -> str:
        return text

    with pytest.raises(TypeError, match="called without a Starlette Request"):
        await route(text="a")
