"""The OpenAPI document: valid for every form of handler, complete, and as the endpoints are now."""

import ast
import inspect
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from described_app import app as described
from pydantic import BaseModel, FiniteFloat, GetCoreSchemaHandler
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

import shoal
from shoal.asgi.http_options import HttpOptions
from shoal.http.openapi.document import MOST_ENDPOINTS, Document, document_of
from shoal.http.openapi.served import LONGEST_TEXT, Documented, ServedEndpoint, text_of
from shoal.http.requests.problem import KINDS
from shoal.testing.asgi import ask

pytestmark = [pytest.mark.one_loop, pytest.mark.slow]

SOURCES = Path(inspect.getfile(shoal)).parent / "http"

AS_JSON = {"application/json", "application/msgpack", "application/x-ndjson"}


async def read_document(app, **asked):
    answer = await ask(app, "/-/openapi.json", method="GET", **asked)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


async def document(app, **asked):
    """The document of an application, which is valid."""
    from openapi_spec_validator import OpenAPIV31SpecValidator

    found = await read_document(app, **asked)
    OpenAPIV31SpecValidator(found).validate()
    return found


async def operation(handler, *, method="post", **options):
    """How a handler is described, with the whole document."""
    app = shoal.App()
    app.endpoint("/x", name="x", methods=("GET", "POST", "PUT", "DELETE"), **options)(handler)
    async with app.lifespan():
        found = await read_document(app)
    return found["paths"]["/x"][method], found


def result_of(operation):
    return operation["responses"]["200"]["content"]["application/json"]["schema"]


def names(parameters):
    return [one.get("name", one.get("$ref", "").rpartition("/")[2]) for one in parameters]


class Fish(BaseModel):
    """A fish."""

    name: str
    weight: float | None = None
    scales: list[int] = []


class Caught(BaseModel):
    fish: Fish
    length: FiniteFloat
    depth: float


class Odd:
    """A type for which pydantic has a validator, but no JSON schema."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(lambda value: value)


class Raising:
    """A type whose hook of pydantic's fails."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        raise RuntimeError("no schema")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler(str)


async def of_fish(fish: list[Fish]) -> list[Caught]:
    return []


async def of_odd(odd: list[Odd]) -> list[Odd]: ...
async def of_raising(raising: list[Raising]) -> list[Raising]: ...
async def of_bytes(items: list[bytes]) -> list[bytes]: ...
async def of_requests(requests: list[Request]) -> list[Response]: ...
async def of_arrays(items: list[np.ndarray]) -> list[np.ndarray]: ...
async def of_several(one: list[int], other: list[Fish], flag: list[bool] = True) -> list[str]: ...
async def of_errors(items: list[int]) -> list[int | ValueError]: ...
async def of_pages(items: list[int]) -> list[dict[str, int] | HTMLResponse]: ...


async def of_unknown(items):
    return items


async def steps(items: list[int]) -> AsyncIterator[list[Fish | type[StopIteration]]]:
    yield []


def plain_steps(item: int) -> Iterator[str]:
    yield ""


async def in_open_batches(batch: shoal.OpenBatch[Fish, str]) -> None:
    async for request in batch:
        request.set_result("")


class Waiting:
    """Waits for a client."""

    async def __call__(self, item: Annotated[int, "any"]) -> int:
        return item


class Called:
    """The class."""

    def __call__(self, item: int) -> int:
        return item

    __call__.__doc__ = "x" * (LONGEST_TEXT + 1)


async def documented(items: list[int]) -> list[int]:
    """Doubles.

    Each item.
    """
    return items


HANDLERS = [
    *(of_fish, of_odd, of_raising, shoal.accept_batch(of_unknown), of_bytes, of_requests),
    *(of_arrays, of_several, of_errors, of_pages, steps, plain_steps),
]


async def test_the_document_is_valid_for_every_form_of_handler(app):
    for nth, handler in enumerate(HANDLERS):
        path = f"/{nth}/{{a:int}}/{{b}}"
        app.endpoint(path, name=f"x{nth}", methods=("GET", "POST", "HEAD", "DELETE"))(handler)
    before = await document(app)  # what is declared only
    async with app.lifespan():
        assert (await ask(app, "/-/openapi.json", method="GET")).json() == before
    for nth in range(len(HANDLERS)):
        assert set(before["paths"][f"/{nth}/{{a}}/{{b}}"]) == {"get", "post", "head", "delete"}


async def test_the_document_of_all_forms_together_is_valid_on_a_served_app():
    async with described.lifespan():
        found = await document(described)
    assert found["openapi"].startswith("3.1")
    assert found["info"] == {"title": "Shapes", "version": "1.2.3"}
    ids = [one["operationId"] for path in found["paths"].values() for one in path.values()]
    assert len(ids) == len(set(ids))
    assert "judge" not in ids
    assert {"get_judge", "post_judge", "words"} <= set(ids)


async def test_items_and_results_have_the_schemas_of_their_types():
    post, found = await operation(of_fish)
    schemas = found["components"]["schemas"]
    item = post["requestBody"]["content"]["application/json"]["schema"]
    assert post["requestBody"]["required"] is True
    assert item == {"$ref": "#/components/schemas/Fish"}
    assert schemas["Fish"]["required"] == ["name"]
    assert schemas["Fish"]["description"] == "A fish."
    assert result_of(post) == {"$ref": "#/components/schemas/Caught"}
    numbers = schemas["Caught"]["properties"]
    assert numbers["length"]["type"] == "number"
    assert {"type": "null"} in numbers["depth"]["anyOf"]  # NaN is sent as null


async def test_a_get_has_the_members_of_an_item_that_text_can_stand_for_in_its_query():
    get, _ = await operation(of_fish, method="get")
    assert names(get["parameters"]) == ["name", "weight", "X-Request-ID", "X-Request-Timeout"]
    assert get["parameters"][0]["required"] is True
    assert {"type": "number"} in get["parameters"][1]["schema"]["anyOf"]
    assert "requestBody" not in get


async def test_several_parameters_are_one_object_which_has_no_other_members():
    post, found = await operation(of_several)
    item = post["requestBody"]["content"]["application/json"]["schema"]
    assert item == {"$ref": "#/components/schemas/XItem"}
    schema = found["components"]["schemas"]["XItem"]
    assert schema["required"] == ["one", "other"]
    assert schema["additionalProperties"] is False


async def test_raw_bodies_and_arrays_have_their_media_types():
    from jsonschema import Draft202012Validator

    raw, _ = await operation(of_bytes)
    assert set(raw["requestBody"]["content"]) == {"application/octet-stream", "*/*"}
    arrays, found = await operation(of_arrays)
    content = arrays["requestBody"]["content"]
    assert set(content) == {*AS_JSON, "application/x-npy"}
    assert content["application/msgpack"] == content["application/json"]
    Draft202012Validator(
        {**content["application/json"]["schema"], "components": found["components"]}
    ).validate([[1, 2.5], [True, 0]])


async def test_code_without_annotations_takes_its_whole_query():
    get, _ = await operation(shoal.accept_batch(of_unknown), method="get")
    query = get["parameters"][0]
    assert (query["style"], query["explode"], query["schema"]["type"]) == ("form", True, "object")


@pytest.mark.parametrize(
    ("handler", "item", "result"),
    [
        (of_odd, {}, {}),  # types without a schema are any JSON
        (of_raising, {}, {}),
        (of_errors, {"type": "integer"}, {"type": "integer"}),  # an error in place of a result
        (Waiting, {"type": "integer"}, {"type": "integer"}),  # its `__call__`
    ],
)
async def test_the_schemas_are_those_of_the_annotations_if_there_are_any(handler, item, result):
    post, _ = await operation(handler)
    assert post["requestBody"]["content"]["application/json"]["schema"] == item
    assert result_of(post) == result


async def test_a_response_of_the_codes_own_may_have_any_status():
    post, _ = await operation(of_pages)
    assert set(post["responses"]["200"]["content"]) == {*AS_JSON, "text/html"}
    assert post["responses"]["default"]["content"]["text/html"] == {}
    assert "content" not in (await operation(of_fish))[0]["responses"]["default"]


@pytest.mark.parametrize(
    ("handler", "item"),
    [(steps, {"$ref": "#/components/schemas/Fish"}), (plain_steps, {"type": "string"})],
)
async def test_a_stream_has_three_forms_with_the_schema_of_its_items(handler, item):
    post, _ = await operation(handler)
    content = post["responses"]["200"]["content"]
    assert set(content) == {"text/event-stream", "application/x-ndjson", "application/json"}
    assert content["application/json"]["schema"] == {"type": "array", "items": item}
    assert "204" in post["responses"]
    [line, end, error] = content["application/x-ndjson"]["schema"]["oneOf"]
    event = content["text/event-stream"]["schema"]
    assert event["properties"]["data"]["contentSchema"]["anyOf"][0] == item
    assert line["properties"]["item"] == item
    assert end["properties"]["end"] == {"const": True}
    assert error["properties"]["error"] == {"$ref": "#/components/schemas/shoal.Problem"}


async def test_an_open_batch_that_streams_has_items_of_its_result_type():
    post, _ = await operation(in_open_batches, fill="open", streams=True)
    [line, *_] = post["responses"]["200"]["content"]["application/x-ndjson"]["schema"]["oneOf"]
    assert line["properties"]["item"] == {"type": "string"}


async def test_priorities_are_a_header_where_there_are_levels():
    post, _ = await operation(of_fish, priority_levels=3)
    assert names(post["parameters"])[-1] == "X-Priority"
    assert post["parameters"][-1]["schema"]["maximum"] == 3
    assert "X-Priority" not in names((await operation(of_fish))[0]["parameters"])


@pytest.mark.parametrize(
    ("handler", "description"),
    [
        (documented, "Doubles.\n\nEach item."),
        (Called(), "x" * LONGEST_TEXT),
        (Waiting, "Waits for a client."),
        (of_fish, None),
    ],
)
async def test_the_codes_documentation_is_the_description(handler, description):
    assert (await operation(handler))[0].get("description") == description


def test_code_is_not_imported_for_its_documentation():
    assert text_of("no_such_module:name") == ""
    assert text_of("json:dumps").startswith("Serialize")


def kinds_in(source):
    """Yields the kind of each problem that is made."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        made = ast.unparse(node.func)
        kind = node.args[1 if made == "Problem" else 0]
        if made in ("Problem", "Problem.of", "Refused.of") and isinstance(kind, ast.Constant):
            yield kind.value


def test_every_problem_that_a_call_can_have_is_described():
    made = {
        kind
        for folder in ("requests", "json")
        for path in (SOURCES / folder).glob("*.py")
        for kind in kinds_in(path.read_text(encoding="utf-8"))
    }
    assert {"body-too-large", "invalid-timeout"} <= made
    assert made - {""} <= KINDS.keys()


async def test_the_problems_of_all_endpoints_are_one_response_that_lists_them():
    app = shoal.App(overload_status=429)
    app.endpoint("/x", methods=("POST",))(of_fish)
    found = await document(app)
    responses = found["paths"]["/x"]["post"]["responses"]
    assert responses.keys() == {"200", "default"}
    assert responses["default"] == {"$ref": "#/components/responses/Problem"}
    problem = found["components"]["responses"]["Problem"]
    assert problem["content"].keys() == {"application/problem+json"}
    assert "- 429 `overloaded`: The endpoint is overloaded" in problem["description"]
    for kind in KINDS:
        assert f"`{kind}`" in problem["description"]


async def test_a_problem_fits_its_schema():
    from jsonschema import Draft202012Validator

    app = shoal.App(debug=True)
    app.endpoint("/x", methods=("POST",))(of_fish)
    async with app.lifespan():
        components = (await document(app))["components"]
        refused = (await ask(app, "/x", {"name": 1})).json()
        failed = (await ask(app, "/x", {"name": "cod"})).json()
    assert (len(refused["errors"]), failed["status"]) == (1, 500)
    schema = {**components["schemas"]["shoal.Problem"], "components": components}
    for problem in (refused, failed):
        Draft202012Validator(schema).validate(problem)


async def test_statuses_of_the_codes_own_are_described_as_the_program_says(app):
    app.endpoint("/x", methods=("POST",), responses={402: "Pay first", 404: "No such fish"})(
        of_fish
    )
    responses = (await document(app))["paths"]["/x"]["post"]["responses"]
    assert responses["402"]["description"] == "Pay first"
    assert responses["404"]["description"] == "No such fish"
    assert set(responses["402"]["content"]) == {"application/problem+json"}


async def test_security_is_the_applications_unless_an_endpoint_has_its_own():
    schemes = {
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        "token": {"type": "oauth2", "flows": {}},
    }
    app = shoal.App(security_schemes=schemes, security={"key": []})
    app.endpoint("/usual", methods=("POST",))(of_fish)
    app.endpoint("/scoped", methods=("POST",), security=[{"token": ["read"]}, {"key": []}])(of_odd)
    app.endpoint("/open", methods=("POST",), security=[])(of_bytes)
    found = await document(app)
    assert found["components"]["securitySchemes"] == schemes
    usual, scoped, free = (found["paths"][path]["post"] for path in ("/usual", "/scoped", "/open"))
    assert usual["security"] == [{"key": []}]
    assert scoped["security"] == [{"token": ["read"]}, {"key": []}]
    assert free["security"] == []
    assert {"401", "403"} <= set(scoped["responses"])
    assert {"401", "403"}.isdisjoint(free["responses"])


BASIC = {"key": {"type": "http", "scheme": "basic"}}


@pytest.mark.parametrize(
    ("of_app", "of_endpoint", "says"),
    [
        ({"security_schemes": BASIC}, {"security": {"token": []}}, "the scheme 'token'.* has key"),
        ({"security_schemes": BASIC}, {"security": {"key": "read"}}, "must map schemes to lists"),
        ({"security_schemes": {"key": {"type": "basic"}}}, {}, "type of 'key' must be one of api"),
        ({"security_schemes": {"key": "basic"}}, {}, "security_schemes must be a mapping"),
        ({"security_schemes": {"a key": BASIC}}, {}, "a name has 1 to 64 of .*, not 'a key'"),
        ({"security_schemes": {1: BASIC}}, {}, "security_schemes must be a mapping"),
        ({"security": {"key": []}}, {}, "the scheme 'key'"),
        ({}, {"responses": {"404": "No such fish"}}, "responses maps statuses to texts"),
        ({}, {"responses": {200: "Fine"}}, "a status is from 300 to 599, not 200"),
    ],
)
def test_a_wrong_description_is_refused(of_app, of_endpoint, says):
    with pytest.raises((TypeError, ValueError), match=says):
        shoal.App(**of_app).endpoint("/x", **of_endpoint)


async def test_the_document_follows_the_endpoints(app):
    app.endpoint("/fish", name="fish")(of_fish)
    async with app.lifespan():
        assert [*(await document(app))["paths"]] == ["/fish"]
        await app.controller.create_endpoint("held", backend=None, route="/held")
        held = (await document(app))["paths"]["/held"]["post"]
        assert "not known here" in held["requestBody"]["description"]
        await app.controller.set_traffic("held", {"fish": 1.0})
        post = (await document(app))["paths"]["/held"]["post"]
        assert post["requestBody"]["content"].keys() == AS_JSON
        await app.controller.delete_endpoint("fish")
        assert [*(await document(app))["paths"]] == ["/held"]


async def test_the_document_is_made_once_for_the_same_endpoints(monkeypatch, app):
    made = []
    monkeypatch.setattr(
        "shoal.http.openapi.document.document_of",
        lambda *args: made.append(args) or document_of(*args),
    )
    app.endpoint("/fish", name="fish")(of_fish)
    async with app.lifespan():
        first = await document(app)
        assert await document(app) == first
        assert len(made) == 1


def test_the_document_has_a_bounded_number_of_endpoints():
    def of(number):
        return ServedEndpoint(
            name=f"e{number}", path=f"/{number}", methods=("POST",), documented=Documented()
        )

    body = Document(HttpOptions()).as_json([of(n) for n in range(MOST_ENDPOINTS + 5)], "")
    assert len(json.loads(body)["paths"]) == MOST_ENDPOINTS


async def test_paths_that_openapi_cannot_tell_apart_are_one(app):
    app.endpoint("/x/{id:int}", name="one", methods=("GET",))(of_fish)
    app.endpoint("/x/{name}", name="two", methods=("GET", "PUT"))(of_bytes)
    found = (await document(app))["paths"]
    assert [*found] == ["/x/{id}"]
    assert found["/x/{id}"]["get"]["summary"] == "one"
    put = found["/x/{id}"]["put"]
    assert put["summary"] == "two"
    assert put["parameters"][0]["name"] == "id"
    assert put["parameters"][0]["schema"]["type"] == "string"


async def test_the_document_says_where_the_application_is_mounted(app):
    app.endpoint("/x")(of_fish)
    assert (await document(app))["servers"] == [{"url": "/"}]
    found = await document(app, root_path='/a "b/')
    assert found["servers"] == [{"url": "/a%20%22b"}]


async def test_it_may_be_turned_off():
    app = shoal.App(openapi=False)
    for page in ("openapi.json", "docs", "docs/start.js"):
        assert (await ask(app, f"/-/{page}", method="GET")).status == 404


@pytest.mark.real_time
async def test_the_code_of_another_process_is_described_as_far_as_it_is_known(app):
    app.backend("far", "serving.plain_code:double", placement="process")
    app.route("far", backend="far", path="/far")
    unknown = (await document(app))["paths"]["/far"]["post"]
    assert "not known here" in unknown["requestBody"]["description"]
    async with app.lifespan():
        known = (await document(app))["paths"]["/far"]
    assert known["post"]["requestBody"]["content"].keys() == AS_JSON
    assert known["get"]["parameters"][0]["name"] == "query"
