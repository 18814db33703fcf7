"""What the OpenAPI document says of marks, forms of bodies, and forms of results."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import BaseModel, Field
from starlette.requests import Request
from test_openapi import document

import shoal
from shoal.http import Cookie, Header, MediaType, Path, Query, Upload

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop, pytest.mark.slow]

JSON, MSGPACK, FORM = "application/json", "application/msgpack", "multipart/form-data"
BINARY = {"type": "string", "format": "binary"}


async def described(handler, *, path="/x/{user}", method="post"):
    """How a handler is described, with the whole document."""
    app = shoal.App()
    app.endpoint(path, name="x", methods=("GET", "POST"))(handler)
    found = await document(app)
    [methods] = found["paths"].values()
    return methods[method], found


def places(operation):
    """The parameters by source and name, without those of all endpoints."""
    return {(one["in"], one["name"]): one for one in operation["parameters"] if "name" in one}


class Comment(BaseModel):
    text: str
    replies: "list[Comment]" = []
    user: Annotated[int, Path()]
    tenant: Annotated[str, Header(alias="X-Tenant")]
    limit: Annotated[int | None, Query(), Field(ge=0)] = None
    tags: Annotated[list[str], Query("tag")] = []
    session: Annotated[str, Cookie()] = Field(alias="SID")


MARKS = {
    ("path", "user"): (True, {"title": "User", "type": "integer"}),
    ("header", "x-tenant"): (True, {"title": "Tenant", "type": "string"}),
    ("query", "limit"): (False, {"title": "Limit", "type": "integer", "minimum": 0}),
    ("query", "tag"): (
        False,
        {"title": "Tags", "type": "array", "items": {"type": "string"}, "default": []},
    ),
    ("cookie", "session"): (True, {"title": "Sid", "type": "string"}),
}


async def of_comment(comments: list[Comment]) -> list[str]:
    return []


async def test_marked_fields_are_parameters_and_not_in_the_body():
    post, found = await described(of_comment)
    assert {at: (one["required"], one["schema"]) for at, one in places(post).items()} == MARKS
    content = post["requestBody"]["content"]
    assert set(content) == {JSON, MSGPACK}
    schema = content[JSON]["schema"]
    assert set(schema["properties"]) == {"text", "replies"}
    assert schema["required"] == ["text"]
    assert post["requestBody"]["required"] is True
    # A record inside of the item has all of its fields in the body.
    inner = found["components"]["schemas"]["Comment"]
    assert set(inner["properties"]) > {"text", "user"}
    assert {"415", "422"} <= set(post["responses"])


async def test_a_request_without_a_body_has_the_other_fields_in_the_query():
    get, found = await described(of_comment, method="get")
    assert set(places(get)) == {*MARKS, ("query", "text")}
    assert "requestBody" not in get
    assert "Comment" not in found["components"]["schemas"] or "post" in found["paths"]["/x/{user}"]


def of_parameters(
    text: str,
    user: Annotated[int, Path()],
    x_tenant: Annotated[str, Header()] = "none",
    tag: Annotated[tuple[int, ...], Query()] = (),
) -> str:
    return text


async def test_marked_parameters_are_no_members_of_the_body():
    post, _ = await described(of_parameters)
    found = places(post)
    assert {at: one["required"] for at, one in found.items()} == {
        ("path", "user"): True,
        ("header", "x-tenant"): False,
        ("query", "tag"): False,
    }
    assert found["path", "user"]["schema"]["type"] == "integer"
    assert found["query", "tag"]["schema"]["items"] == {"type": "integer"}
    assert post["requestBody"]["content"][JSON]["schema"] == {"type": "string"}
    get, _ = await described(of_parameters, method="get")
    assert set(places(get)) == {*found, ("query", "text")}


async def test_without_other_values_there_is_no_body():
    def all_marked(user: Annotated[str, Path()], tag: Annotated[int, Query()]) -> str:
        return user

    post, _ = await described(all_marked)
    assert "requestBody" not in post
    assert set(places(post)) == {("path", "user"), ("query", "tag")}
    assert "422" in post["responses"]
    assert "415" not in post["responses"]


async def test_a_body_whose_members_are_all_optional_may_be_missing():
    class Seen(BaseModel):
        user: Annotated[int, Path()]
        text: str = ""

    def seen(one: Seen) -> str:
        return one.text

    assert (await described(seen))[0]["requestBody"]["required"] is False


@pytest.mark.parametrize("raw", [bytes, Request])
async def test_a_raw_body_may_be_beside_marks(raw):
    def with_mark(body: raw, user: Annotated[str, Path()]) -> str:
        return user

    post, _ = await described(with_mark)
    assert set(post["requestBody"]["content"]) == {"application/octet-stream", "*/*"}
    assert "422" in post["responses"]


async def test_the_type_of_a_path_parameter_is_the_route_s_with_the_code_s():
    def at_most(user: Annotated[int, Path(), Field(le=9)]) -> int:
        return user

    post, _ = await described(at_most, path="/x/{user:int}")
    schema = {"type": "integer", "minimum": 0, "maximum": 9}
    assert places(post)["path", "user"]["schema"].items() >= schema.items()


async def test_a_path_mark_without_such_a_parameter_in_the_route_is_left_out():
    app = shoal.App()
    app.backend("x", of_comment)
    app.route("x", backend="x", path="/x")
    async with app.lifespan():
        post = app.openapi()["paths"]["/x"]["post"]
    # OpenAPI allows no other path parameters.
    assert {source for source, _ in places(post)} == {"header", "query", "cookie"}
    assert "user" not in post["requestBody"]["content"][JSON]["schema"]["properties"]


async def test_a_mark_replaces_the_common_parameter_of_its_header():
    def timed(x_request_timeout: Annotated[float, Header()]) -> float:
        return x_request_timeout

    post, _ = await described(timed, path="/x")
    assert ("header", "x-request-timeout") in places(post)
    refs = [one["$ref"].rpartition("/")[2] for one in post["parameters"] if "$ref" in one]
    assert refs == ["X-Request-ID"]


async def test_the_time_limit_is_a_header_of_seconds():
    from jsonschema import Draft202012Validator

    _, found = await described(of_parameters)
    schema = found["components"]["parameters"]["X-Request-Timeout"]["schema"]
    fits = Draft202012Validator(schema).is_valid
    assert [fits(one) for one in ("2.5", "10", "1e3", "-1", "")] == [True, True, *[False] * 3]


class Photo(BaseModel):
    image: Upload
    pages: list[bytes] = Field(default=[], alias="page")
    preview: bytes | None = None
    title: str
    tenant: Annotated[str, Header()]


@dataclasses.dataclass
class Plain:
    image: bytes
    title: str = ""


def of_plain(one: Plain) -> str:
    return one.title


def of_photo(photo: Photo) -> str:
    return photo.title


def of_upload(image: Upload) -> int:
    return len(image.data)


def of_uploads(images: tuple[Upload, ...], title: str) -> int:
    return len(images)


PAGES = {"type": "array", "items": BINARY}


@pytest.mark.parametrize(
    ("handler", "files", "others"),
    [
        (of_photo, {"image": BINARY, "page": PAGES, "preview": BINARY}, {"title"}),
        (of_plain, {"image": BINARY}, {"title"}),
        (of_upload, {"image": BINARY}, set()),
        (of_uploads, {"images": PAGES}, {"title"}),
    ],
)
async def test_files_are_bytes_in_a_form(handler, files, others):
    post, _ = await described(handler, path="/x")
    content = post["requestBody"]["content"]
    assert set(content) == {JSON, MSGPACK, FORM}
    properties = content[FORM]["schema"]["properties"]
    assert {name: properties[name] for name in files} == files
    assert set(properties) - set(files) == others


async def test_without_files_there_is_no_form():
    post, _ = await described(of_parameters)
    assert FORM not in post["requestBody"]["content"]


def as_bytes(item: int) -> bytes: ...


def as_picture(item: int) -> Annotated[bytes, MediaType("image/png")]: ...


async def as_pictures(items: list[int]) -> list[Annotated[bytes, MediaType("image/png")]]: ...


def as_bytes_or_text(item: int) -> bytes | str: ...


def as_array(item: int) -> np.ndarray: ...


def as_anything(item: int) -> Any: ...


def as_number(item: int) -> int: ...


OCTETS = "application/octet-stream"


@pytest.mark.parametrize(
    ("handler", "media_types"),
    [
        (as_bytes, {OCTETS}),
        (as_picture, {"image/png"}),
        (as_pictures, {"image/png"}),
        (as_bytes_or_text, {JSON, MSGPACK, OCTETS}),
        (as_array, {JSON, MSGPACK, "application/x-npy"}),
        (as_anything, {JSON, MSGPACK, OCTETS}),
        (as_number, {JSON, MSGPACK}),
    ],
)
async def test_a_result_has_the_media_types_that_it_can_be_sent_as(handler, media_types):
    post, _ = await described(handler, path="/x")
    content = post["responses"]["200"]["content"]
    assert set(content) == media_types
    for name in media_types - {JSON, MSGPACK}:
        assert content[name]["schema"] == BINARY


async def test_the_items_of_a_stream_are_json_even_if_they_are_bytes():
    async def pieces(items: list[int]) -> AsyncIterator[list[bytes]]:
        yield [b"" for _ in items]

    post, _ = await described(pieces, path="/x")
    content = post["responses"]["200"]["content"]
    assert set(content) == {JSON, "text/event-stream", "application/x-ndjson"}


async def test_the_result_of_unknown_code_may_be_any_json():
    app = shoal.App()
    app.backend("far", "no.such:code")
    app.route("far", backend="far", path="/far")
    content = (await document(app))["paths"]["/far"]["post"]["responses"]["200"]["content"]
    assert content[JSON] == {"schema": {}}
    assert set(content) > {JSON, MSGPACK, OCTETS, "text/event-stream"}


async def test_no_component_is_left_that_nothing_refers_to():
    class Only(BaseModel):
        user: Annotated[int, Path()]
        text: str

    def only(one: Only) -> str:
        return one.text

    _, found = await described(only)
    assert set(found["components"]["schemas"]) == {"shoal.Problem"}


@pytest.mark.parametrize("extra", ["msgpack", "multipart"])
async def test_a_form_whose_package_is_missing_is_not_described(monkeypatch, extra):
    for module in ("payload", "json_codec"):
        monkeypatch.setattr(
            f"shoal.http.requests.{module}.has_{extra}", lambda: False, raising=False
        )
    monkeypatch.setattr(f"shoal.http.openapi.answers.has_{extra}", lambda: False, raising=False)
    post, _ = await described(of_photo, path="/x")
    missing = MSGPACK if extra == "msgpack" else FORM
    assert missing not in post["requestBody"]["content"]
    assert (MSGPACK in post["responses"]["200"]["content"]) is (extra == "multipart")
