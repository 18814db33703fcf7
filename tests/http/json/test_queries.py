"""Requests without a body: their query, by the code's annotations."""

import dataclasses
import json
from contextlib import asynccontextmanager

import pytest
from pydantic import BaseModel
from starlette.requests import Request

import shoal
from serving import plain_code
from shoal.http.app.app import App
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import ask

# Plain code runs in threads, and in a process.
pytestmark = [pytest.mark.one_loop, pytest.mark.real_time]


class Comment(BaseModel):
    author: str
    score: float = 0.5


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


# Ray Serve 1.x's examples, as they are there.
by_lambda = lambda request: request.query_params["name"]  # noqa: E731


def greet(request):
    return "hello " + request.query_params["name"]


class Greeter:
    def __init__(self):
        self.count = 0

    def __call__(self, request):
        self.count += 1
        return {"count": self.count, "name": request.query_params.get("name")}


def of_dict(data):
    return "hello " + data["name"]


def anything(data):
    return data


@shoal.accept_batch
def of_lists(requests):
    return [request.query_params["name"].upper() for request in requests]


def typed(number: int):
    return number + 1


def several(text: str, times: int = 2):
    return text * times


def untyped(left, right):
    return left + right


def model(comment: Comment):
    return comment.score


def point(at: Point):
    return [at.x, at.y]


def usual(number: int = 7):
    return number


def raw(body: bytes):
    return len(body)


async def whole(request: Request):
    return [request.method, request.query_params["name"], request.headers["x-mine"]]


def nothing():
    return "pong"


@asynccontextmanager
async def up(code, **config):
    app = App()
    async with Controller() as client, app.answering(client):
        await client.create_backend("b", code, config=config)
        await client.create_endpoint("e", backend="b", route="/e")
        yield app


async def get(app, query="", **more):
    return await ask(app, f"/e?{query}", method="GET", **more)


@pytest.mark.parametrize(
    ("code", "query", "answer"),
    [
        (by_lambda, "name=cod", "cod"),
        (greet, "name=d%C3%A5ce", "hello dåce"),
        (Greeter, "name=cod", {"count": 1, "name": "cod"}),
        (Greeter, "", {"count": 1, "name": None}),
        (of_dict, "name=cod", "hello cod"),
        (anything, "a=1&b=2&a=3", {"a": "3", "b": "2"}),
        (anything, "", {}),
        (of_lists, "name=cod", "COD"),
        (typed, "number=3", 4),
        (several, "text=ab", "abab"),
        (several, "text=ab&times=3", "ababab"),
        (untyped, "left=1&right=2", "12"),
        (model, "author=cod", 0.5),
        (model, "author=cod&score=0.25", 0.25),
        (point, "x=1&y=2", [1, 2]),
        (usual, "", 7),
        (usual, "number=8", 8),
        (raw, "name=cod", 0),
        (whole, "name=cod", ["GET", "cod", "yes"]),
        (nothing, "", "pong"),
    ],
)
async def test_a_get_reaches_the_code_with_its_query(code, query, answer):
    async with up(code) as app:
        told = await get(app, query, headers=[("x-mine", "yes")])
        assert (told.status, told.json()) == (200, answer)


async def test_it_reaches_code_in_a_process():
    async with up("serving.plain_code:greet", placement="process") as app:
        assert (await get(app, "name=cod")).json() == "hello cod"


async def test_code_in_a_process_is_told_where_a_call_came_from():
    async with up("serving.plain_code:told", placement="process") as app:
        handle = await app.controller.get_handle("e")
        for _ in range(2):
            assert await handle.call(1) == {"context": "python", "endpoint": "e"}
        told = (await ask(app, "/e", 1, headers=[("x-request-id", "r1")])).json()
        assert (told["context"], told["endpoint"], told["request_id"]) == ("http", "e", "r1")


@pytest.mark.parametrize("placement", ["task", "process"])
async def test_code_that_takes_starlettes_request_is_called_without_data(placement):
    async with Controller() as client:
        await client.create_backend("b", plain_code.asked, config={"placement": placement})
        await client.create_endpoint("e", backend="b")
        handle = await client.get_handle("e")
        assert await handle.remote() == ["GET", {}, None, ""]
        handle = handle.options(http_method="PUT", http_headers={"X-Mine": "yes"})
        assert await handle.remote() == ["PUT", {}, "yes", ""]


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_with_a_body_the_code_gets_that(method):
    async with up(anything) as app:
        assert (await ask(app, "/e?a=1", [1], method=method)).json() == [1]


async def test_a_post_without_a_body_is_no_json():
    async with up(anything) as app:
        assert (await ask(app, "/e?a=1", method="POST")).status == 400


@pytest.mark.parametrize(
    ("code", "query", "where", "form"),
    [
        (typed, "", "number: Field required", "?number=...; send JSON by POST"),
        (typed, "number=x", "number: Input should be a valid integer", "?number=..."),
        (typed, "number=1&more=2", "more: ", "?number=..."),
        (several, "times=1", "text: Field required", "?text=...&times=..."),
        (model, "score=1", "author: Field required", "?name=value"),
    ],
)
async def test_a_query_that_does_not_fit_is_refused_with_how_to_write_it(code, query, where, form):
    async with up(code) as app:
        answer = await get(app, query)
        assert answer.status == 422
        problem = json.loads(answer.body)
        assert problem["type"] == "urn:shoal:problem:invalid-item"
        assert problem["detail"].startswith(where)
        assert form in problem["detail"]
        assert problem["errors"]
