"""What `test_serve_with_workers.py` serves: endpoints and a mounted site, behind a middleware."""

import json
import os

import anyio.lowlevel
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

import shoal

READ = ("type", "scheme", "http_version", "method", "path", "query_string", "client")


def guarded(inner):
    """Refuses requests without the key, and tells of others what it has read of them."""

    async def guard(scope, receive, send):
        if "x-key" not in Headers(scope=scope):
            refusal = JSONResponse({"title": "Send a key"}, 401, {"x-by": "guard"})
            await refusal(scope, receive, send)
            return
        read = {name: scope.get(name) for name in READ}
        read |= {"query_string": scope["query_string"].decode(), "process": os.getpid()}

        async def tell(message):
            if message["type"].endswith((".start", ".accept")):
                message.setdefault("headers", [])
                MutableHeaders(scope=message)["x-read"] = json.dumps(read)
            await send(message)

        await inner(scope, receive, tell)

    return guard


async def about(request):
    """What a page needs to know of its request."""
    told = {
        "url": str(request.url),
        "name": request.path_params["name"],
        "agent": request.headers["user-agent"],
        "body": (await request.body()).decode(),
    }
    return JSONResponse(told, 202, {"x-own": "page"})


async def parts(_request):
    async def written():
        for part in ("a", "b", "c"):
            yield part
            await anyio.lowlevel.checkpoint()

    return StreamingResponse(written(), media_type="text/plain")


async def failing(_request):
    raise ValueError("a secret")


async def squares(socket):
    """Speaks as endpoints do, so that their client can talk to it."""
    await socket.accept("shoal.v1")
    async for message in socket.iter_json():
        result = [socket.url.path, socket.url.scheme, message["item"] ** 2]
        await socket.send_json({"id": message["id"], "result": result})


app = shoal.App(middleware=[guarded])


@app.endpoint("/double", max_batch_size=4)
async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


@app.endpoint("/count")
async def count(items: list[int]):
    for step in range(max(items)):
        yield [step if step < item else shoal.END for item in items]


routes = [
    Route("/about/{name}", about, methods=["GET", "POST"]),
    Route("/parts", parts),
    Route("/failing", failing),
    WebSocketRoute("/squares", squares),
]
app.mount("/site", Starlette(routes=routes))
