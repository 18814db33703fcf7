"""Paths with parameters: which route answers, and what its code is told."""

import pytest
from starlette.requests import Request

import shoal
from shoal.errors import NameTaken
from shoal.http.requests.dispatch import PathTable
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import ask

pytestmark = pytest.mark.one_loop


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
    async with app.lifespan():
        assert (await ask(app, f"/{value}", 1)).status == 404


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
