"""Values of an item that come from headers, the path, the query and cookies."""

import dataclasses
import json
from typing import Annotated, Literal
from uuid import UUID

import fastapi
import httpx
import pytest
from live_server import live
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    SimpleUser,
)
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from typing_extensions import TypedDict

import shoal
import shoal.http
from shoal.http import Cookie, Header, Path, Query, Upload
from shoal.testing.asgi import ask

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


class Comment(BaseModel):
    text: str
    user: Annotated[int, Path()]
    tenant: Annotated[str, Header(alias="X-Tenant")]
    limit: Annotated[int, Query(), Field(ge=0)] = 10
    tags: Annotated[list[str], Query("tag")] = []
    accept_language: Annotated[list[str], Header()] = []
    session: Annotated[str | None, Cookie()] = None


@dataclasses.dataclass
class Point:
    x: Annotated[int, Path()]
    y: int = 0
    z: Annotated[float, Query()] = 0.5


class Row(TypedDict, total=False):
    x: Annotated[int, Path()]
    y: int


class FromFastApi(BaseModel):
    text: str
    user: Annotated[int, fastapi.Path()]
    tenant: Annotated[str, fastapi.Header(alias="X-Tenant", min_length=2)]
    x_y: Annotated[str | None, fastapi.Header(convert_underscores=False)] = None
    limit: Annotated[int, fastapi.Query(ge=0)] = 10
    session: Annotated[str | None, fastapi.Cookie()] = None


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    text: str
    tenant: Annotated[str, Header()] = Field("none", alias="tenantName")


class Checked(BaseModel):
    low: Annotated[int, Query()]
    high: int

    @model_validator(mode="before")
    @classmethod
    def sees_all(cls, data):
        assert set(data) == {"low", "high"}
        return data

    @model_validator(mode="after")
    def in_order(self):
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


class OnlyMarked(BaseModel):
    tenant: Annotated[str, Header()]


class Photo(BaseModel):
    image: Upload
    title: str
    album: Annotated[UUID, Path()]


def whole(item):
    return item


def app_of(path, handler, **options):
    app = shoal.App(**options)
    app.endpoint(path, methods=("GET", "POST"))(handler)
    return app


def listed(annotation):
    """A handler of items with this annotation that returns them."""

    def handler(items):
        return list(items)

    handler.__annotations__ = {"items": list[annotation]}
    return handler


async def told(app, path, item=None, **more):
    async with app.lifespan():
        if item is None:
            return await ask(app, path, method="GET", **more)
        return await ask(app, path, item, **more)


USUAL = [("x-tenant", "t"), ("cookie", "a=b; session=s"), ("accept-language", "de")]


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", [Comment, FromFastApi])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_model_is_made_from_all_parts_of_a_request(kind, method):
    app = app_of("/users/{user}", listed(kind))
    query = "limit=3&tag=a&tag=b"
    if method == "POST":
        answer = await told(app, f"/users/7?{query}", {"text": "x"}, headers=USUAL)
    else:
        answer = await told(app, f"/users/7?text=x&{query}", headers=USUAL)
    expected = {"text": "x", "user": 7, "tenant": "t", "limit": 3, "session": "s"}
    if kind is Comment:
        expected |= {"tags": ["a", "b"], "accept_language": ["de"]}
        assert (answer.status, answer.json()) == (200, expected)
    else:
        assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["header", "x-tenant"])
        headers = [("x-tenant", "tt"), ("x_y", "z"), *USUAL[1:]]
        app = app_of("/users/{user}", listed(kind))
        answer = await told(app, f"/users/7?{query}", {"text": "x"}, headers=headers)
        assert answer.json() == {"X-Tenant": "tt", "x_y": "z"} | {
            key: value for key, value in expected.items() if key != "tenant"
        }


@pytest.mark.one_loop
async def test_what_is_missing_has_its_default():
    app = app_of("/users/{user:int}", listed(Comment))
    answer = await told(app, "/users/7", {"text": "x"}, headers=[("x-tenant", "t")])
    made = answer.json()
    assert (made["limit"], made["tags"], made["session"]) == (10, [], None)


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("path", "item", "headers", "locs"),
    [
        ("/users/a?limit=-1", {}, [], ["body.text", "path.user", "header.x-tenant", "query.limit"]),
        ("/users/1?limit=x", {"text": 1}, USUAL, ["body.text", "query.limit"]),
        ("/users/1?tag=1", [], USUAL, ["body"]),
        ("/users/1", {"text": "x", "tenant": "mine"}, [], ["body.tenant"]),
        ("/users/1", {"text": "x", "user": 2}, USUAL, ["body.user"]),
        ("/users/a?limit=x", None, USUAL, ["query.text", "path.user", "query.limit"]),
    ],
)
async def test_an_error_says_which_part_of_the_request_is_wrong(path, item, headers, locs):
    answer = await told(app_of("/users/{user}", listed(Comment)), path, item, headers=headers)
    assert (answer.status, answer.headers["content-type"]) == (422, "application/problem+json")
    errors = answer.json()["errors"]
    assert [".".join(error["loc"]) for error in errors] == locs
    assert answer.json()["detail"].startswith(f"{locs[0]}: ")


@pytest.mark.one_loop
@pytest.mark.parametrize("name", ["tenant", "tenantName"])
async def test_a_body_never_sets_what_a_header_sets(name):
    for headers in ([], [("tenant", "theirs")]):
        app = app_of("/e", listed(Strict))
        answer = await told(app, "/e", {"text": "x", name: "mine"}, headers=headers)
        assert answer.status == 422
        answer = await told(app_of("/e", listed(Strict)), f"/e?text=x&{name}=mine")
        assert answer.json() == {"text": "x", "tenantName": "none"}
    app = app_of("/e", listed(Strict))
    answer = await told(app, "/e", {"text": "x"}, headers=[("tenant", "theirs")])
    assert answer.json() == {"text": "x", "tenantName": "theirs"}


@pytest.mark.one_loop
async def test_validators_of_a_model_see_the_values():
    assert (await told(app_of("/e", listed(Checked)), "/e?low=1", {"high": 2})).status == 200
    answer = await told(app_of("/e", listed(Checked)), "/e?low=3", {"high": 2})
    assert (answer.status, "low is above high" in answer.json()["detail"]) == (422, True)


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", [Point, Row])
async def test_dataclasses_and_typed_dicts_have_marks_too(kind):
    more = {"z": 1.5} if kind is Point else {}
    app = app_of("/at/{x:int}", listed(kind))
    assert (await told(app, "/at/3?z=1.5", {"y": 2})).json() == {"x": 3, "y": 2} | more
    app = app_of("/at/{x:int}", listed(kind))
    assert (await told(app, "/at/3?z=1.5&y=2")).json() == {"x": 3, "y": 2} | more


@pytest.mark.one_loop
async def test_an_item_without_a_body_has_none_to_read():
    app = app_of("/e", listed(OnlyMarked))
    assert (await told(app, "/e", headers=[("tenant", "t")])).json() == {"tenant": "t"}
    app = app_of("/e", listed(OnlyMarked))
    async with app.lifespan():
        answer = await ask(app, "/e", method="POST", headers=[("tenant", "t")])
        assert answer.json() == {"tenant": "t"}


def raw_and_query(image: list[bytes], size: list[Annotated[int, Query()]] = 5):
    return [[len(one), n] for one, n in zip(image, size, strict=True)]


def model_and_header(point: list[Point], tenant: list[Annotated[str, Header()]]):
    return [[p.x, p.y, t] for p, t in zip(point, tenant, strict=True)]


def two_and_header(tenant: list[Annotated[str, Header()]], left: list[int], right: list[int] = 2):
    return [[t, a, b] for t, a, b in zip(tenant, left, right, strict=True)]


def only_header(tenant: list[Annotated[str, Header()]] = "none"):
    return tenant


def of_fastapi(text: list[str], n: list[Annotated[Literal[1, 2], fastapi.Query(alias="number")]]):
    return [[a, b] for a, b in zip(text, n, strict=True)]


def one_at_a_time(text: str, tenant: Annotated[str, Header()]):
    return [text, tenant]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("handler", "path", "item", "made"),
    [
        (raw_and_query, "/3?size=2", [1], [3, 2]),
        (raw_and_query, "/3", [1], [3, 5]),
        (raw_and_query, "/3?size=2", None, [0, 2]),
        (model_and_header, "/3", {"y": 2}, [3, 2, "t"]),
        (model_and_header, "/3?y=2", None, [3, 2, "t"]),
        (two_and_header, "/3", {"left": 1}, ["t", 1, 2]),
        (two_and_header, "/3?left=1&right=3", None, ["t", 1, 3]),
        (only_header, "/3", None, "t"),
        (only_header, "/3", {}, "t"),
        (one_at_a_time, "/3", "x", ["x", "t"]),
        (one_at_a_time, "/3?text=x", None, ["x", "t"]),
    ],
)
async def test_parameters_have_marks_and_the_others_are_the_body(handler, path, item, made):
    app = app_of("/{x:int}", handler)
    answer = await told(app, path, item, headers=[("tenant", "t")])
    assert (answer.status, answer.json()) == (200, made)


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("handler", "path", "item", "loc"),
    [
        (raw_and_query, "/3?size=x", [1], ["query", "size"]),
        (two_and_header, "/3", {"left": 1}, ["header", "tenant"]),
        (of_fastapi, "/3?number=x", "a", ["query", "number"]),
    ],
)
async def test_a_parameter_that_is_wrong_is_named(handler, path, item, loc):
    answer = await told(app_of("/{x:int}", handler), path, item)
    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, loc)


async def test_a_form_and_the_path_make_one_item_by_a_real_client():
    def named(photos: list[Photo]) -> list:
        return [[str(one.album), one.title, one.image.filename] for one in photos]

    album = "2dd1fb2e-4d22-4a5c-a1f2-ff8c0b8f7a10"
    app = app_of("/albums/{album:uuid}", named)
    async with (
        live(app) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as asking,
    ):
        files = {"image": ("a.png", b"123", "image/png")}
        answer = await asking.post(f"/albums/{album}", data={"title": "cod"}, files=files)
        assert answer.json() == [album, "cod", "a.png"]
        answer = await asking.post(f"/albums/{album}", data={"album": album}, files=files)
        assert answer.json()["errors"][0]["loc"] == ["body", "album"]


@pytest.mark.one_loop
async def test_equal_bodies_with_different_marked_values_share_no_result():
    seen = []

    def counted(text: list[str], tenant: list[Annotated[str, Header()]]) -> list[str]:
        seen.extend(tenant)
        return list(tenant)

    app = shoal.App()
    app.endpoint("/e", cache=shoal.Cache(max_size=9, ttl_s=60))(counted)
    async with app.lifespan():
        answers = [await ask(app, "/e", "x", headers=[("tenant", name)]) for name in "aba"]
    assert [answer.json() for answer in answers] == ["a", "b", "a"]
    assert seen == ["a", "b"]


class ByHeader(AuthenticationBackend):
    async def authenticate(self, conn):
        if "x-user" in conn.headers:
            return AuthCredentials(["read"]), SimpleUser(conn.headers["x-user"])
        return None


@pytest.mark.one_loop
async def test_metadata_has_the_caller_that_middleware_has_found_out():
    def callers(items: list[int]) -> list:
        found = [request.metadata for request in shoal.current_batch().requests]
        return [[one["user"].display_name, one["auth"].scopes] for one in found]

    middleware = [Middleware(AuthenticationMiddleware, backend=ByHeader())]
    app = app_of("/e", callers, middleware=middleware)
    async with app.lifespan():
        answer = await ask(app, "/e", 1, headers=[("x-user", "cod")])
        assert answer.json() == ["cod", ["read"]]
        assert (await ask(app, "/e", 1)).json() == ["", []]


@pytest.mark.one_loop
async def test_metadata_has_no_caller_without_such_middleware():
    def callers(items: list[int]) -> list:
        [one] = [request.metadata for request in shoal.current_batch().requests]
        assert {"user", "auth"} <= set(one)
        return [[one["user"], one["auth"]]]

    async with (app := app_of("/e", callers)).lifespan():
        assert (await ask(app, "/e", 1)).json() == [None, None]


def test_marks_can_be_compared_and_written():
    assert Header("X-A") == Header("X-A") != Query("X-A")
    json.dumps(repr(Header("X-A")))


def test_the_names_for_annotations_are_in_one_place():
    marks = {"Cookie", "Header", "MediaType", "Path", "Query", "Upload"}
    assert marks <= set(shoal.http.__all__)
    assert all(getattr(shoal.http, name).__name__ == name for name in shoal.http.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Body'"):
        shoal.http.Body  # noqa: B018


async def test_items_with_files_and_marks_reach_code_in_a_process():
    app = shoal.App()
    app.backend("b", "marked_code:described", placement="process")
    app.route("e", backend="b", path="/at/{x:int}")
    body = (
        b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nabc\r\n--b--\r\n'
    )
    headers = [("content-type", "multipart/form-data; boundary=b"), ("tenant", "t")]
    async with app.lifespan():
        answer = await ask(app, "/at/3", body=body, headers=headers)
    assert (answer.status, answer.json()) == (200, ["a", 3, 3, "t"])


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("route", "text"), [("int", "5"), ("float", "0.5"), ("uuid", str(UUID(int=7)))]
)
async def test_text_from_the_path_is_text_whatever_the_type_in_the_route(route, text):
    class Seen(BaseModel):
        user: Annotated[str | None, Path()]

    def of_field(one: Seen) -> str:
        return one.user

    def of_parameter(user: Annotated[str, Path()]) -> str:
        return user

    app = shoal.App()
    app.endpoint(f"/field/{{user:{route}}}", name="field")(of_field)
    app.endpoint(f"/parameter/{{user:{route}}}", name="parameter")(of_parameter)
    async with app.lifespan():
        for path, item in ((f"/field/{text}", {}), (f"/parameter/{text}", None)):
            answer = await ask(app, path, item)
            assert (answer.status, answer.json()) == (200, text)


def split(value):
    return value.split(",") if isinstance(value, str) else value


class Listed(BaseModel):
    all: Annotated[list[int], Path()]


class Split(BaseModel):
    all: Annotated[list[int], Path(), BeforeValidator(split)]


def elsewhere(comment: Comment) -> str:
    return comment.text


def of_another_name(user: Annotated[int, Path("id")]) -> int:
    return user


def beside(point: Point, user: Annotated[str, Query()]) -> str:
    return user


@pytest.mark.parametrize(
    ("path", "handler", "words"),
    [
        ("/comments", elsewhere, "'user' is marked.*'user'.*none at all; write {user} in the path"),
        ("/comments/{users}", elsewhere, "has only users"),
        ("/comments/{user:int}/{user_id}", of_another_name, "'id'.*has only user, user_id"),
        ("/points/{user}", beside, "'x'"),
    ],
)
def test_a_mark_that_names_no_parameter_of_the_path_is_refused(path, handler, words):
    app = shoal.App()
    with pytest.raises(ValueError, match=words):
        app.post(path)(handler)
    assert not app.openapi()["paths"]


def of_two(user: str, text: str) -> str:
    return user + text


def of_one(user: int | None = None) -> int | None:
    return user


async def of_many(user: list[int]) -> list[int]:
    return user


def of_whole(user: Comment) -> str:
    return user.text


def of_bytes(user: bytes) -> int:
    return len(user)


def of_query(user: Annotated[str, Query()], text: str) -> str:
    return user + text


@pytest.mark.parametrize("handler", [of_two, of_one, of_many])
def test_a_parameter_with_the_name_of_one_of_the_path_is_marked(handler):
    app = shoal.App()
    words = (
        r"'user' has the name of a parameter of the path /x/\{user:int\}.*Annotated\[.*, Path\(\)\]"
    )
    with pytest.raises(ValueError, match=words):
        app.endpoint("/x/{user:int}")(handler)
    app.endpoint("/x/{other}")(handler)


@pytest.mark.parametrize("handler", [of_whole, of_bytes, of_query])
def test_it_need_not_be_where_it_is_clear_whence_it_comes(handler):
    shoal.App().endpoint("/x/{user:int}")(handler)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Annotated[list[str], Cookie()], "'several' is a list, and a cookie has one value"),
        (Annotated[set[str] | None, Cookie("x")], "a cookie has one value"),
        (Annotated[tuple[int, ...], Path()], "a parameter of the path has one value"),
        (Annotated[list[str], fastapi.Cookie(min_length=1)], "a cookie has one value"),
    ],
)
def test_a_list_of_what_has_one_value_is_refused(annotation, words):
    def handler(several):
        return several

    handler.__annotations__ = {"several": annotation}
    app = shoal.App()
    with pytest.raises(TypeError, match=words):
        app.post("/of/{several}")(handler)
    with pytest.raises(TypeError, match="a parameter of the path has one value"):
        app.get("/of/{all}")(of_list)


def of_list(item: Listed) -> list[int]:
    return item.all


@pytest.mark.one_loop
async def test_a_validator_may_make_a_list_of_one_value():
    app = shoal.App()

    @app.get("/sum/{all}")
    def add(item: Split) -> int:
        return sum(item.all)

    async with app.lifespan():
        assert (await ask(app, "/sum/1,2,3", method="GET")).json() == 6


@pytest.mark.one_loop
async def test_a_list_takes_each_header_and_leaves_commas_alone():
    app = shoal.App()

    @app.get("/languages")
    def languages(accept_language: Annotated[list[str], Header()]) -> list[str]:
        return accept_language

    headers = [("accept-language", "de, en"), ("accept-language", "fr")]
    async with app.lifespan():
        answer = await ask(app, "/languages", method="GET", headers=headers)
        assert answer.json() == ["de, en", "fr"]
        assert (await ask(app, "/languages", method="GET")).status == 422


class Marks(BaseModel):
    text: Annotated[str, fastapi.Form()]


@pytest.mark.parametrize(
    ("annotation", "default", "words"),
    [
        (Annotated[int, fastapi.Depends(int)], ..., r"Depends\(\) of FastAPI.*callers could set"),
        (Annotated[int, fastapi.Security(int)], ..., r"Security\(\) of FastAPI.*callers could set"),
        (Annotated[str, fastapi.Body()], ..., r"Body\(\) of FastAPI.*comes from the body"),
        (Annotated[str, fastapi.Form()], ..., r"Form\(\) of FastAPI"),
        (Annotated[bytes, fastapi.File()], ..., r"File\(\) of FastAPI.*shoal.http.Upload"),
        (Marks, ..., r"'text' is marked with Form\(\) of FastAPI"),
        (fastapi.UploadFile, ..., r"'one' is an UploadFile.*shoal.http.Upload"),
        (list[fastapi.UploadFile], ..., "'one' is an UploadFile"),
        (
            int,
            fastapi.Depends(int),
            r"'one' has Depends\(\) as its default.*Annotated\[..., Depends",
        ),
        (int, fastapi.Query(5), r"'one' has Query\(\) as its default"),
        (int, Query(), r"'one' has Query\(\) as its default"),
    ],
)
@pytest.mark.parametrize("others", [False, True])
def test_what_only_fastapi_obeys_is_refused(annotation, default, words, others):
    def alone(one=default):
        return one

    def beside(text: str, one=default):
        return one

    handler = beside if others else alone
    handler.__annotations__["one"] = annotation
    if default is ...:
        handler.__defaults__ = None
    with pytest.raises(TypeError, match=words):
        shoal.App().post("/x")(handler)


@pytest.mark.one_loop
async def test_a_dependency_is_never_what_a_caller_says():
    def trusting(user: Annotated[str, fastapi.Depends(str)]) -> str:
        return user

    app = shoal.App()
    app.backend("trusting", trusting)
    app.route("trusting", backend="trusting", path="/x")
    async with app.lifespan():
        assert (await ask(app, "/x?user=admin", method="GET")).status == 500
        assert (await ask(app, "/x", "admin")).status == 500
        assert (await ask(app, "/x", {"user": "admin"})).status == 500
