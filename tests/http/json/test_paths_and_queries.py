"""Paths with parameters, and queries of requests without a body: what their code is told."""

import dataclasses
import json
from contextlib import asynccontextmanager

import pytest
from pydantic import BaseModel
from starlette.requests import Request

import shoal
from handlers import ask_once
from serving import plain_code
from shoal.errors import NameTaken
from shoal.http.requests.dispatch import PathTable
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import ask

pytestmark = pytest.mark.one_loop
real_time = pytest.mark.real_time  # plain code runs in threads, and in a process


async def told(items: list[int]) -> list[dict]:
    return [dict(one.metadata["path_params"]) for one in shoal.current_batch().requests]


async def told_by_request(requests: list[Request]) -> list[dict]:
    return [dict(one.path_params) for one in requests]


def named(name):
    async def handler(items: list[int]) -> list[str]:
        return [name for _ in items]

    handler.__name__ = name
    return handler


@pytest.mark.parametrize("code", [told, told_by_request])
async def test_code_is_told_the_values(code, app):
    app.endpoint("/{lang}/users/{id:int}")(code)
    async with app.lifespan():
        assert (await ask(app, "/de/users/12", 1)).json() == {"lang": "de", "id": 12}
        assert (await ask(app, "/de/users/x", 1)).status == 404
        assert (await ask(app, "/de/users/", 1)).status == 404


async def test_a_path_without_parameters_comes_first_then_the_one_declared_first(app):
    for path, name in [
        ("/{a}", "any"),
        ("/{a:int}", "never"),
        ("/me", "me"),
        ("/x/{b:path}", "all"),
    ]:
        app.endpoint(path, name=name)(named(name))
    async with app.lifespan():
        assert (await ask(app, "/me", 1)).json() == "me"
        assert (await ask(app, "/7", 1)).json() == "any"
        assert (await ask(app, "/x/y/z", 1)).json() == "all"
        assert (await ask(app, "/y/z", 1)).status == 404


async def test_the_first_path_with_the_request_s_method_counts(app):
    for path, method, name in [
        ("/me", "GET", "me"),
        ("/{a}", "GET", "read"),
        ("/{b:int}", "POST", "write"),
        ("/{c:path}", "PUT", "put"),
    ]:
        app.endpoint(path, methods=(method,), name=name)(named(name))
    async with app.lifespan():
        assert (await ask(app, "/7", 1)).json() == "write"
        assert (await ask(app, "/me", 1, method="PUT")).json() == "put"
        assert (await ask(app, "/7", 1, method="GET")).json() == "read"
        assert (await ask(app, "/7", 1, method="HEAD")).status == 200
        answer = await ask(app, "/7", 1, method="PATCH")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS, POST, PUT")
        assert (await ask(app, "/me", 1)).status == 405


async def test_the_application_s_own_paths_match_no_parameters(app):
    app.endpoint("/{all:path}")(told)
    async with app.lifespan():
        assert (await ask(app, "/-/healthz", method="GET")).json() == {"status": "alive"}
        assert (await ask(app, "/-/healthz", 1)).status == 405
        assert (await ask(app, "/-/other", 1)).status == 404
        assert (await ask(app, "/x/-/other", 1)).json() == {"all": "x/-/other"}


@pytest.mark.parametrize("value", ["9" * 5000, "12\n", "-1", "1.0", ""])
async def test_a_value_that_can_not_be_converted_is_not_found(value, app):
    app.endpoint("/{id:int}")(told)
    assert (await ask_once(app, f"/{value}", 1)).status == 404


async def test_other_methods_and_a_closed_application_are_told(app):
    app.endpoint("/{id}", methods=("PUT",))(told)
    assert (await ask(app, "/1", 1, method="PUT")).status == 503
    assert (await ask(app, "/1/2", 1, method="PUT")).status == 404
    async with app.lifespan():
        answer = await ask(app, "/1", 1)
        assert (answer.status, answer.headers["allow"]) == (405, "OPTIONS, PUT")


async def test_a_path_that_differs_only_in_names_is_taken(app):
    app.endpoint("/users/{id}", methods=("GET",))(told)
    with pytest.raises(NameTaken, match="is answered by"):
        app.endpoint("/users/{name:str}")(told_by_request)
    app.endpoint("/users/{name:int}")(told_by_request)
    async with Controller() as controller, app.answering(controller):
        with pytest.raises(NameTaken, match="is answered by the endpoint"):
            await controller.create_endpoint("e", backend="told", route="/users/{n:int}")
        await controller.delete_endpoint("told_by_request")
        await controller.create_endpoint("e", backend="told", route="/users/{n:int}")
        assert (await ask(app, "/users/5", 1)).json() == {"n": 5}


class Comment(BaseModel):
    author: str
    score: float = 0.5


def of_two(user: str, text: str): ...
def of_one(user: int | None = None): ...
async def of_many(user: list[int]): ...


@pytest.mark.parametrize("handler", [of_two, of_one, of_many])
def test_a_parameter_with_the_name_of_one_of_the_path_is_refused(handler, app):
    words = r"'user' has the name of a parameter of the path /x/\{user:int\}.*decode function"
    with pytest.raises(ValueError, match=words):
        app.endpoint("/x/{user:int}")(handler)
    app.endpoint("/x/{other}")(handler)


def of_record(user: Comment): ...
def of_bytes(user: bytes): ...


@pytest.mark.parametrize("handler", [of_record, of_bytes])
def test_it_is_clear_where_a_whole_body_comes_from(handler):
    shoal.App().endpoint("/x/{user:int}")(handler)


async def test_the_parameters_of_an_outer_application_are_kept(app):
    app.endpoint("/{id}")(told)
    async with app.lifespan():

        async def outer(scope, receive, send):
            params = {"tenant": "a", "id": "outer"}
            await app({**scope, "path_params": params}, receive, send)

        assert (await ask(outer, "/7", 1)).json() == {"tenant": "a", "id": "7"}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/{}", "{name}, {name:int}"),
        ("/{a b}", "braces"),
        ("/{id", "braces"),
        ("/{id:bytes}", "{name:path}"),
        ("/{id}/{id:int}", "one name"),
        ("/x?{id}", "no query"),
    ],
)
def test_a_malformed_path_is_refused(path, words):
    with pytest.raises(ValueError, match=words.replace("{", r"\{")):
        shoal.App().endpoint(path)(told)


def test_a_mount_has_no_parameters():
    with pytest.raises(ValueError, match="braces"):
        shoal.App().mount("/{tenant}", shoal.App())


@pytest.mark.parametrize(
    ("path", "length"),
    [
        ("/{a}/x/{b}", None),
        ("/{a:path}", None),
        ("/{a}", None),
        ("/{a}-{b}", 512),
        ("/x/{a}{b:int}/y", 512),
        ("/{a:path}/{b}", 512),
        ("/{a}/{b:path}/c", 512),
    ],
)
def test_a_long_path_is_not_divided_in_all_the_ways_that_there_are(path, length):
    table = PathTable()
    table.add(path, ("GET",), object())
    for longer in (0, 1):
        text = path.replace("{b:int}", "7").replace("{a}", "A").replace("{a:path}", "A")
        text = text.replace("{b}", "b").replace("{b:path}", "b")
        text = text.replace("A", "a" * ((length or 16_384) - len(text) + 1 + longer))
        found = table.at(text, "GET")
        assert (found is None) == (length is not None and longer == 1)


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
    app = shoal.App()
    async with Controller() as client, app.answering(client):
        await client.create_backend("b", code, config=config)
        await client.create_endpoint("e", backend="b", route="/e")
        yield app


async def get(app, query="", **more):
    return await ask(app, f"/e?{query}", method="GET", **more)


@real_time
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


@real_time
async def test_it_reaches_code_in_a_process():
    async with up("serving.plain_code:greet", placement="process") as app:
        assert (await get(app, "name=cod")).json() == "hello cod"


@real_time
async def test_code_in_a_process_is_told_where_a_call_came_from():
    async with up("serving.plain_code:told", placement="process") as app:
        handle = await app.controller.get_handle("e")
        for _ in range(2):
            assert await handle.call(1) == {"context": "python", "endpoint": "e"}
        told = (await ask(app, "/e", 1, headers=[("x-request-id", "r1")])).json()
        assert (told["context"], told["endpoint"], told["request_id"]) == ("http", "e", "r1")


@real_time
@pytest.mark.parametrize("placement", ["task", "process"])
async def test_code_that_takes_starlettes_request_is_called_without_data(placement):
    async with Controller() as client:
        await client.create_backend("b", plain_code.asked, config={"placement": placement})
        await client.create_endpoint("e", backend="b")
        handle = await client.get_handle("e")
        assert await handle.remote() == ["GET", {}, None, ""]
        handle = handle.options(http_method="PUT", http_headers={"X-Mine": "yes"})
        assert await handle.remote() == ["PUT", {}, "yes", ""]


@real_time
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_with_a_body_the_code_gets_that(method):
    async with up(anything) as app:
        assert (await ask(app, "/e?a=1", [1], method=method)).json() == [1]


@real_time
async def test_a_post_without_a_body_is_no_json():
    async with up(anything) as app:
        assert (await ask(app, "/e?a=1", method="POST")).status == 400


@real_time
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
