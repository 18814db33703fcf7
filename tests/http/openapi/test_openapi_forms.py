"""What the OpenAPI document says of bodies and results, and that a served application keeps to it.

What schemathesis sends to an application finds nothing that its document does not have.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from described_server import described_server
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from test_openapi import document

import shoal

pytestmark = [pytest.mark.one_loop, pytest.mark.slow]

JSON, MSGPACK = "application/json", "application/msgpack"
BINARY = {"type": "string", "format": "binary"}


async def described(handler, *, path="/x", method="post", **options):
    """How a handler is described, with the whole document."""
    app = shoal.App()
    app.endpoint(path, name="x", methods=("GET", "POST"), **options)(handler)
    found = await document(app)
    [methods] = found["paths"].values()
    return methods[method], found


def places(operation):
    """The parameters by source and name, without those of all endpoints."""
    return {(one["in"], one["name"]): one for one in operation["parameters"] if "name" in one}


class Comment(BaseModel):
    text: str
    replies: "list[Comment]" = []
    limit: Annotated[int, Field(ge=0)] = 1


async def of_comment(comments: list[Comment]) -> list[int]:
    return []


def decode(request: Request) -> Comment:
    return Comment(text=request.headers["x-text"])


def encode(result: int) -> PlainTextResponse:
    return PlainTextResponse(str(result))


async def test_an_item_that_is_decoded_by_a_function_may_be_any_body():
    post, found = await described(of_comment, path="/x/{user:int}", decode=decode)
    assert post["requestBody"]["content"] == {"*/*": {"schema": BINARY}}
    assert "required" not in post["requestBody"]
    assert set(places(post)) == {("path", "user")}
    assert "Comment" not in found["components"]["schemas"]
    get, _ = await described(of_comment, method="get", decode=decode)
    assert (set(places(get)), "requestBody" in get) == (set(), False)


async def test_a_result_that_is_encoded_by_a_function_may_be_anything():
    post, found = await described(of_comment, encode=encode)
    content = post["responses"]["200"]["content"]
    assert content["*/*"] == {}
    assert content[JSON] == {"schema": {}}
    assert found["components"]["schemas"]["Comment"]["required"] == ["text"]


@pytest.mark.parametrize("raw", [bytes, Request])
async def test_a_raw_body_may_be_of_any_media_type(raw):
    def of_raw(body: raw) -> int:
        return 1

    post, _ = await described(of_raw, path="/x/{user}")
    assert set(post["requestBody"]["content"]) == {"application/octet-stream", "*/*"}
    assert set(places(post)) == {("path", "user")}


async def test_the_time_limit_is_a_header_of_seconds():
    from jsonschema import Draft202012Validator

    _, found = await described(of_comment)
    schema = found["components"]["parameters"]["X-Request-Timeout"]["schema"]
    fits = Draft202012Validator(schema).is_valid
    assert [fits(one) for one in ("2.5", "10", "1e3", "-1", "")] == [True, True, *[False] * 3]


def as_bytes(item: int) -> bytes: ...
def as_bytes_or_text(item: int) -> bytes | str: ...
def as_array(item: int) -> np.ndarray: ...
def as_anything(item: int) -> Any: ...
def as_number(item: int) -> int: ...


OCTETS = "application/octet-stream"
AS_JSON = {JSON, MSGPACK, "application/x-ndjson"}


@pytest.mark.parametrize(
    ("handler", "media_types"),
    [
        (as_bytes, {OCTETS}),
        (as_bytes_or_text, {*AS_JSON, OCTETS}),
        (as_array, {*AS_JSON, "application/x-npy"}),
        (as_anything, {*AS_JSON, OCTETS}),
        (as_number, AS_JSON),
    ],
)
async def test_a_result_has_the_media_types_that_it_can_be_sent_as(handler, media_types):
    post, _ = await described(handler, path="/x")
    content = post["responses"]["200"]["content"]
    assert set(content) == media_types
    for name in media_types - AS_JSON:
        assert content[name]["schema"] == BINARY


async def test_the_items_of_a_stream_are_json_even_if_they_are_bytes():
    async def pieces(items: list[int]) -> AsyncIterator[list[bytes]]:
        yield [b"" for _ in items]

    post, _ = await described(pieces, path="/x")
    content = post["responses"]["200"]["content"]
    assert set(content) == {JSON, "text/event-stream", "application/x-ndjson"}


async def test_the_result_of_unknown_code_may_be_any_json(app):
    app.backend("far", "no.such:code")
    app.route("far", backend="far", path="/far")
    content = (await document(app))["paths"]["/far"]["post"]["responses"]["200"]["content"]
    assert content[JSON] == {"schema": {}}
    assert set(content) > {JSON, MSGPACK, OCTETS, "text/event-stream"}


async def test_without_its_package_msgpack_is_not_described(monkeypatch):
    for module in ("json.payload", "json.endpoint", "openapi.document"):
        monkeypatch.setattr(f"shoal.http.{module}.has_msgpack", lambda: False)
    post, _ = await described(of_comment)
    assert MSGPACK not in post["requestBody"]["content"]
    assert MSGPACK not in post["responses"]["200"]["content"]


HERE = Path(__file__).parent
needs_schemathesis = pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed"
)
# Left out: that what violates a schema is refused, since JSON is converted as pydantic does it, and
# that what fits is accepted, since a schema can't say that nested lists are an array.
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "unsupported_method"),
)
# What it checks formats with takes seconds to import, for formats that no schema here has.
PROGRAM = """
import runpy, sys
sys.modules["rfc3987_syntax"] = None
runpy.run_module("schemathesis.cli", run_name="__main__", alter_sys=True)
"""
# A shorter limit is answered with 504 as it should be, which a check takes for a server's error.
CONFIG = '[parameters]\n"header.X-Request-Timeout" = "30"\n'
# Described as the other methods of these paths are, and as GET is in other paths.
ALIKE = "^(get_(move|kind|raw|array|anything|nothing|times)|put_note)"


@pytest.fixture(scope="module")
def url(request):
    """The address of the application, which a process of its own serves."""
    with described_server("app", "--event-loop", request.param) as address:
        yield address


def run_schemathesis(url, tmp_path, examples, phases, *options):
    """Sends cases, and returns how many there were."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG, encoding="utf-8")
    command = [
        *(sys.executable, "-c", PROGRAM, "--config-file", str(config)),
        *("run", f"{url}/-/openapi.json"),
        *("--checks", ",".join(CHECKS), "--phases", phases, "--max-examples", str(examples)),
        *("--generation-deterministic", "--no-color"),
        "--continue-on-failure",
        *options,
    ]
    paths = os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return int(re.search(r"([\d,]+) generated", done.stdout)[1].replace(",", ""))


@pytest.mark.real_time
@needs_schemathesis
@pytest.mark.parametrize("url", ["trio"], indirect=True)
def test_a_few_hundred_cases_find_nothing_undocumented(url, tmp_path):
    alike = ("--exclude-operation-id-regex", ALIKE)
    assert run_schemathesis(url, tmp_path, 1, "coverage", *alike) > 300


@pytest.mark.real_time
@needs_schemathesis
@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("url", ["trio", "asyncio"], indirect=True)
def test_two_thousand_cases_find_nothing_undocumented(url, tmp_path):
    assert run_schemathesis(url, tmp_path, 60, "examples,coverage,fuzzing,stateful") >= 2000
