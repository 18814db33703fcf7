"""One OpenAPI document for an application and for one that is mounted in it."""

from __future__ import annotations

import copy
import json
import re

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

import shoal
from shoal.http import merged_openapi


def reference(name, kind="schemas"):
    return {"$ref": f"#/components/{kind}/{name}"}


def operation(name, schema="Item", **more):
    content = {"application/json": {"schema": reference(schema)}}
    return {"operationId": name, "responses": {"200": {"content": content}}, **more}


def document(operations, schemas=None, **more):
    paths = {path: {"post": one} for path, one in operations.items()}
    return {"openapi": "3.1.0", "paths": paths, "components": {"schemas": schemas or {}}, **more}


OUTER = document(
    {"/hello": operation("hello")},
    {"Item": {"type": "string"}, "Same": {"type": "null"}},
    info={"title": "outer"},
)
INNER = document(
    {"/embed": operation("embed"), "/hello": operation("hello", "Other")},
    {"Item": {"type": "array", "items": reference("Other")}, "Other": {}, "Same": {"type": "null"}},
    info={"title": "inner"},
)


def test_paths_are_below_the_prefix():
    made = merged_openapi(OUTER, INNER, "/ml/")
    assert list(made["paths"]) == ["/hello", "/ml/embed", "/ml/hello"]
    assert made["info"] == {"title": "outer"}
    assert list(merged_openapi(OUTER, INNER, "/")["paths"]) == ["/hello", "/embed"]


def test_what_has_the_same_name_and_is_something_else_gets_another():
    made = merged_openapi(OUTER, INNER, "/ml")
    schemas = made["components"]["schemas"]
    assert set(schemas) == {"Item", "Same", "Other", "ml.Item"}
    assert schemas["Item"] == {"type": "string"}
    assert schemas["ml.Item"] == {"type": "array", "items": reference("Other")}
    [content] = made["paths"]["/ml/embed"]["post"]["responses"]["200"]["content"].values()
    assert content["schema"] == reference("ml.Item")
    names = [item["post"]["operationId"] for item in made["paths"].values()]
    assert names == ["hello", "embed", "ml.hello"]


def test_what_refers_to_something_else_is_something_else():
    outer = document({}, {"Item": {"type": "string"}, "Items": {"items": reference("Item")}})
    inner = document({}, {"Item": {"type": "null"}, "Items": {"items": reference("Item")}})
    schemas = merged_openapi(outer, inner, "/ml")["components"]["schemas"]
    assert schemas["Items"] == {"items": reference("Item")}
    assert schemas["ml.Items"] == {"items": reference("ml.Item")}


def test_the_given_documents_stay_as_they_are():
    before = copy.deepcopy((OUTER, INNER))
    merged_openapi(OUTER, INNER, "/ml")
    assert before == (OUTER, INNER)


def test_security_for_all_is_said_of_each_operation():
    key = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    bearer = {"type": "http", "scheme": "bearer"}
    outer = {**OUTER, "security": [{"auth": []}]}
    outer["components"] = {**OUTER["components"], "securitySchemes": {"auth": bearer}}
    inner = {**copy.deepcopy(INNER), "security": [{"auth": ["read"]}]}
    inner["components"]["securitySchemes"] = {"auth": key}
    inner["paths"]["/hello"]["post"]["security"] = []
    made = merged_openapi(outer, inner, "/ml")
    assert made["components"]["securitySchemes"] == {"auth": bearer, "ml.auth": key}
    assert made["paths"]["/ml/embed"]["post"]["security"] == [{"ml.auth": ["read"]}]
    assert made["paths"]["/ml/hello"]["post"]["security"] == []
    assert "security" not in made["paths"]["/hello"]["post"]
    without = merged_openapi(outer, INNER, "/ml")
    assert without["paths"]["/ml/embed"]["post"]["security"] == []


def test_tags_are_kept_once():
    outer = {**OUTER, "tags": [{"name": "a"}]}
    inner = {**INNER, "tags": [{"name": "a", "description": "x"}, {"name": "b"}]}
    assert merged_openapi(outer, inner, "/ml")["tags"] == [{"name": "a"}, {"name": "b"}]


def test_documents_of_fastapi_are_merged_whole():
    class Item(BaseModel):
        name: str

    def site(field):
        made = FastAPI()
        kind = type("Item", (Item,), {"__annotations__": {field: int}})

        def show(item):
            return item

        show.__annotations__ = {"item": kind, "return": kind}
        made.post("/show")(show)
        return made.openapi()

    made = merged_openapi(site("a"), site("b"), "/ml")
    pointers = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(made))
    schemas = made["components"]["schemas"]
    assert {*pointers} <= {*schemas}
    assert schemas["Item"]["required"] == ["name", "a"]
    assert schemas["ml.Item"]["required"] == ["name", "b"]


def test_a_prefix_is_a_path():
    with pytest.raises(ValueError, match="prefix must be a path such as \"/ml\", not 'ml'"):
        merged_openapi(OUTER, INNER, "ml")


@pytest.mark.anyio
async def test_the_docs_page_of_fastapi_shows_both():
    class Fish(BaseModel):
        name: str

    key = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    models = shoal.App(security_schemes={"key": key}, security={"key": []})

    async def weigh(fishes):
        return [len(fish.name) for fish in fishes]

    weigh.__annotations__ = {"fishes": list[Fish], "return": list[int]}
    models.endpoint("/weigh", methods=("POST",))(weigh)
    site = FastAPI(lifespan=models.lifespan, title="Fish")

    @site.get("/hello")
    async def hello() -> str:
        return "hello"

    site.mount("/ml", models)
    site.openapi = lambda: merged_openapi(FastAPI.openapi(site), models.openapi(), "/ml")
    transport = httpx.ASGITransport(app=site)
    async with (
        site.router.lifespan_context(site),
        httpx.AsyncClient(transport=transport, base_url="http://site") as client,
    ):
        assert "/openapi.json" in (await client.get("/docs")).text
        made = (await client.get("/openapi.json")).json()
        assert made["info"]["title"] == "Fish"
        assert list(made["paths"]) == ["/hello", "/ml/weigh"]
        assert made["paths"]["/ml/weigh"]["post"]["security"] == [{"key": []}]
        assert "security" not in made["paths"]["/hello"]["get"]
        pointers = re.findall(r'"#/components/([^/"]+)/([^"]+)"', json.dumps(made))
        assert ("schemas", "Fish") in pointers
        assert all(name in made["components"][kind] for kind, name in pointers)
        # What is added while it runs is shown as well.
        assert models.controller is not None
        await models.controller.create_endpoint("late", backend="weigh", route="/late")
        assert "/ml/late" in (await client.get("/openapi.json")).json()["paths"]
        assert (await client.post("/ml/weigh", json={"name": "eel"})).json() == 3


def test_an_application_that_is_not_open_has_the_document_of_what_it_declares():
    app = shoal.App(openapi=False, title="Closed")

    @app.post("/length")
    async def length(text: str) -> int:
        return len(text)

    assert app.openapi()["info"]["title"] == "Closed"
    assert list(app.openapi()["paths"]) == ["/length"]
