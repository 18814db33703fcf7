"""``decode=`` makes the item of an HTTP request, and ``encode=`` the response of a result."""

from __future__ import annotations

import gzip
import io
import logging
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from live_server import live
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

import shoal
from handlers import ask_once, ask_together, asking
from shoal.cli import main
from shoal.serving.app_file.file import read_app_file
from shoal.testing import settle
from shoal.testing.asgi import ask
from socket_in_memory import opened

if TYPE_CHECKING:
    from starlette.datastructures import UploadFile
    from starlette.requests import Request

MIB = 2**20
FORM = ("content-type", "multipart/form-data; boundary=b")
GZIP = ("content-encoding", "gzip")
TOKENS = {"secret": "ann"}


async def same(items: list[Any]) -> list[Any]:
    return items


async def steps(items: list[Any]):
    yield items
    yield [[2, item] for item in items]


def served(handler=same, path="/x", settings=None, **options):
    app = shoal.App(**(settings or {}))
    app.endpoint(path, name="x", **options)(handler)
    return app


def form(*parts: tuple[str, str, bytes]) -> bytes:
    pieces = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data
        for name, more, data in parts
    ]
    return b"\r\n".join([*pieces, b"--b--\r\n"])


def counts(app):
    endpoint = app.controller.endpoints["x"]
    return endpoint.requests, endpoint.errors


async def test_a_function_reads_headers_the_query_and_the_path():
    def decode(request: Request) -> dict:
        return {
            "tenant": request.headers["x-tenant"],
            "limit": int(request.query_params.get("limit", 10)),
            "user": request.path_params["user"],
            "session": request.cookies["session"],
            "method": request.method,
        }

    app = served(path="/users/{user:int}", decode=decode, methods=("PUT",))
    headers = [("x-tenant", "sea"), ("cookie", "session=s")]
    answer = await ask_once(app, "/users/7?limit=3", headers=headers, method="PUT")
    expected = {"tenant": "sea", "limit": 3, "user": 7, "session": "s", "method": "PUT"}
    assert (answer.status, answer.json()) == (200, expected)


def user_of(request: Request) -> str:
    user = TOKENS.get(request.headers.get("authorization", "").removeprefix("Bearer "))
    if user is None:
        raise HTTPException(401, "Send a token", {"WWW-Authenticate": "Bearer"})
    return user


async def test_a_token_is_checked_before_the_call():
    app = served(decode=user_of)
    async with app.lifespan():
        right = await ask(app, "/x", headers=[("authorization", "Bearer secret")])
        wrong = await ask(app, "/x", headers=[("authorization", "Bearer other")])
        assert (right.json(), wrong.status) == ("ann", 401)
        assert (wrong.json()["detail"], wrong.headers["www-authenticate"]) == (
            "Send a token",
            "Bearer",
        )
        assert counts(app) == (2, 0)  # a refusal is no failure


async def test_a_function_is_asynchronous_if_it_likes():
    async def decode(request: Request) -> Any:
        await anyio.sleep(3)
        return [await request.json(), len(await request.body())]

    compressed = {"body": gzip.compress(b'"a"'), "headers": [GZIP]}
    assert (await ask_once(served(decode=decode), "/x", **compressed)).json() == ["a", 3]


@dataclass
class Picture:
    """A class of which JSON knows nothing."""

    pixels: memoryview


class Decoder:
    async def __call__(self, request: Request) -> Picture:
        return Picture(memoryview(await request.body()))


@pytest.mark.one_loop
async def test_an_object_with_an_asynchronous_call_makes_items_of_any_class():
    async def sizes(pictures: list[Picture]) -> list[int]:
        return [len(one.pixels) for one in pictures]

    assert (await ask_once(served(sizes, decode=Decoder()), "/x", body=b"abc")).json() == 3


@pytest.mark.one_loop
async def test_a_parameter_of_the_path_may_have_the_name_of_one_of_the_code():
    async def greet(user: list[str], text: list[str]) -> list[str]:
        return [f"{a}: {b}" for a, b in zip(user, text, strict=True)]

    async def decode(request: Request) -> tuple[str, str]:
        return request.path_params["user"], await request.json()

    assert (await ask_once(served(greet, path="/{user}", decode=decode), "/ann", "hi")).json() == (
        "ann: hi"
    )


class Comment(BaseModel):
    text: str


async def of_json(request: Request) -> Any:
    return await request.json()


async def of_form(request: Request) -> Any:
    return [*(await request.form())]


async def of_model(request: Request) -> str:
    return Comment.model_validate({**request.query_params}).text


@pytest.mark.one_loop
@pytest.mark.filterwarnings("ignore:.*Request.stream")  # earlier Starlettes leave it open
@pytest.mark.parametrize(
    ("decode", "body", "headers", "status", "kind"),
    [
        (of_json, b"{", [], 400, "invalid-json"),
        (of_json, b'"\xff"', [], 400, "invalid-json"),
        (of_model, b"", [], 422, "invalid-item"),
        (of_form, b"--b\r\n\r\nx", [FORM], 400, "invalid-form"),
        (of_json, gzip.compress(b"1", mtime=0)[:-1], [GZIP], 400, "invalid-content-coding"),
        (of_json, b"1", [("content-encoding", "br")], 415, "unsupported-content-coding"),
        (of_json, gzip.compress(bytes(8 * MIB), mtime=0), [GZIP], 413, "body-too-large"),
        (of_json, bytes(MIB + 1), [], 413, "body-too-large"),
    ],
)  # fmt: skip
async def test_a_request_that_can_not_be_decoded_is_refused(decode, body, headers, status, kind):
    app = served(decode=decode, settings={"max_body_bytes": MIB})
    async with app.lifespan():
        answer = await ask(app, "/x", body=body, headers=headers)
        assert (answer.status, answer.json()["type"]) == (status, f"urn:shoal:problem:{kind}")
        assert decode is not of_model or answer.json()["errors"][0]["loc"] == ["text"]
        assert counts(app)[1] == 0


@pytest.mark.parametrize(
    "error",
    [ValueError, KeyError, SystemExit, partial(shoal.errors.HttpProblem, status=404)],
    ids=["ValueError", "KeyError", "SystemExit", "HttpProblem"],
)
@pytest.mark.parametrize("option", ["decode", "encode"])
async def test_another_error_is_logged_and_counted(error, option, caplog):
    def broken(_given: Any) -> Any:
        raise error("sesame")

    app = served(**{option: broken})
    async with app.lifespan():
        answer = await ask(app, "/x", 1)
        assert (answer.status, answer.json()["type"]) == (500, "urn:shoal:problem:internal")
        assert b"sesame" not in answer.body
        [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert answer.headers["x-request-id"] in record.getMessage()
        assert counts(app) == (1, 1)
        assert (await ask(app, "/x", 1)).status == 500  # and it still serves


@pytest.mark.one_loop
@pytest.mark.parametrize("option", ["decode", "encode"])
async def test_a_batcher_s_own_errors_have_their_statuses(option):
    def busy(_given: Any) -> Any:
        raise shoal.errors.Overloaded("another service is busy")

    answer = await ask_once(served(**{option: busy}), "/x", 1)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.one_loop
@pytest.mark.parametrize("made", [("a",), ("a", "b", "c"), "ab"])
async def test_a_wrong_number_of_values_fails_only_its_own_request(made, caplog):
    async def two(left: list[str], right: list[str]) -> list[str]:
        return [a + b for a, b in zip(left, right, strict=True)]

    found = iter([made, ("a", "b")])
    app = served(two, decode=lambda _: next(found), max_batch_size=2, batch_wait_timeout_s=9)
    calls = await ask_together(app, "/x", ..., ...)
    assert sorted(call.status for call in calls) == [200, 500]
    wanted = "decode must return a tuple of 2 values, one for each parameter of the code, not "
    assert wanted in caplog.text


async def test_a_function_that_does_not_return_has_the_time_of_the_call():
    async def decode(_request: Request) -> Any:
        await anyio.sleep_forever()

    app = served(decode=decode, request_timeout_s=5)
    async with app.lifespan():
        began = anyio.current_time()
        answer = await ask(app, "/x")
        assert (answer.status, anyio.current_time() - began) == (504, pytest.approx(5))
        answer = await ask(app, "/x", headers=[("x-request-timeout", "2")])
        assert (answer.status, anyio.current_time() - began) == (504, pytest.approx(7))
        assert answer.json()["type"] == "urn:shoal:problem:deadline-exceeded"


async def test_the_time_of_the_function_is_taken_from_that_of_the_call():
    async def decode(_request: Request) -> int:
        await anyio.sleep(3)
        return 1

    async def slow(items: list[int]) -> list[int]:
        await anyio.sleep_forever()
        return items

    app = served(slow, decode=decode, request_timeout_s=5)
    async with app.lifespan():
        began = anyio.current_time()
        assert (await ask(app, "/x")).status == 504
        assert anyio.current_time() - began == pytest.approx(5)


@pytest.mark.parametrize("handler", [same, steps])
async def test_a_client_that_leaves_cancels_the_function(handler):
    ended = anyio.Event()

    async def decode(_request: Request) -> Any:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    app = served(handler, decode=decode)
    async with asking(app, "/x", ...) as [call]:
        await settle()
        call.leave()
        await ended.wait()
        await call.returned.wait()
        assert call.status == 499
        assert counts(app) == (1, 0)


@pytest.mark.real_time
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("handler", [same, steps])
async def test_uploads_are_closed_after_the_response(handler, fails):
    seen: list[UploadFile] = []

    async def decode(request: Request) -> int:
        fields = await request.form()
        seen.extend([fields["small"], fields["large"]])
        if fails:
            raise HTTPException(402)
        return 1

    def encode(item: Any) -> Any:
        assert not any(one.file.closed for one in seen)
        return item

    parts = [("small", '; filename="a"', b"1"), ("large", '; filename="b"', bytes(2 * MIB))]
    app = served(handler, decode=decode, encode=encode)
    answer = await ask_once(app, "/x", body=form(*parts), headers=[FORM])
    assert answer.status == (402 if fails else 200)
    assert [one.file.closed for one in seen] == [True, True]


@pytest.mark.parametrize(
    "encode",
    [
        lambda result: Response("".join(result), 201, {"x-made": "1"}, "text/css"),
        lambda result: StreamingResponse(iter(result), 201, {"x-made": "1"}, "text/css"),
    ],
    ids=["whole", "streaming"],
)
async def test_a_response_is_made_of_a_result(encode):
    answer = await ask_once(served(encode=encode), "/x", ["a", "b"])
    assert (answer.status, answer.body, answer.headers["x-made"]) == (201, b"ab", "1")
    assert answer.headers["content-type"] == "text/css; charset=utf-8"


async def test_a_response_is_made_of_a_result_and_its_request():
    def encode(result: int, request: Request) -> Response:
        if "html" in request.headers.get("accept", ""):
            return PlainTextResponse(f"<p>{result}</p>", media_type="text/html")
        return JSONResponse({"result": result, "at": request.url.path})

    app = served(encode=encode)
    async with app.lifespan():
        assert (await ask(app, "/x", 1)).json() == {"result": 1, "at": "/x"}
        assert (await ask(app, "/x", 1, headers=[("accept", "text/html")])).body == b"<p>1</p>"


@pytest.mark.one_loop
async def test_a_result_may_be_sent_as_any_other():
    app = served(encode=lambda result: {"result": result})
    async with app.lifespan():
        assert (await ask(app, "/x", 1)).json() == {"result": 1}
        body = gzip.compress(b"2")
        headers = [("content-encoding", "gzip"), ("content-type", "application/json")]
        assert (await ask(app, "/x", body=body, headers=headers)).json() == {"result": 2}
        assert (await ask(app, "/x", body=b"{", headers=headers[1:])).status == 400
        packed = await ask(app, "/x", 1, headers=[("accept", "application/msgpack")])
        assert packed.headers["content-type"] == "application/msgpack"


@pytest.mark.parametrize(
    ("accept", "body"),
    [
        ("text/event-stream", b'data: "<1>"\n\ndata: "<[2, 1]>"\n\nevent: end\ndata: {}\n\n'),
        ("application/x-ndjson", b'{"item":"<1>"}\n{"item":"<[2, 1]>"}\n{"end":true}\n'),
    ],
)
async def test_each_item_of_a_stream_is_encoded(accept, body):
    for encode in (
        lambda item: f"<{item}>",
        lambda item, request: f"{request.headers['x-before']}{item}>",
    ):
        headers = [("accept", accept), ("x-before", "<")]
        answer = await ask_once(served(steps, encode=encode), "/x", 1, headers=headers)
        assert (answer.status, answer.body) == (200, body)


@pytest.mark.one_loop
async def test_a_stream_that_can_not_be_encoded_ends_with_an_error():
    def encode(item: Any) -> Any:
        if item != 1:
            raise ValueError("sesame")
        return item

    app = served(steps, encode=encode)
    async with app.lifespan():
        answer = await ask(app, "/x", 1, headers=[("accept", "application/x-ndjson")])
        first, last = answer.body.splitlines()
        assert first == b'{"item":1}'
        assert b'"status":500' in last
        assert b"sesame" not in last
        assert counts(app) == (1, 1)


@pytest.mark.one_loop
async def test_a_response_is_no_item_of_a_stream():
    app = served(steps, encode=lambda _item: PlainTextResponse("a"))
    assert (await ask_once(app, "/x", 1)).status == 500


@pytest.mark.one_loop
async def test_head_has_the_headers_alone():
    app = served(decode=lambda _: 1, encode=lambda _: Response(b"abc", 203))
    answer = await ask_once(app, "/x", method="HEAD")
    assert (answer.status, answer.headers["content-length"], answer.body) == (203, "3", b"")


@pytest.mark.real_time
@pytest.mark.parametrize("workers", [None, 1])
async def test_a_large_file_goes_through_a_server(workers):
    async def decode(request: Request) -> bytes:
        async with request.form() as fields:
            return await fields["file"].read()

    def encode(result: bytes, request: Request) -> Response:
        return Response(result[::-1], headers={"x-name": request.query_params["name"]})

    app = served(decode=decode, encode=encode)
    data = bytes(range(256)) * 8 * 1024
    async with (
        live(app, workers) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
    ):
        for _ in range(2):
            answer = await client.post("/x?name=a", files={"file": io.BytesIO(data)})
            assert answer.content == data[::-1]
            assert answer.headers["x-name"] == "a"
        assert (await client.post("/x", content=b"{")).status_code == 500
        assert (await client.get("/-/healthz")).status_code == 200


@pytest.mark.real_time
async def test_a_server_that_ends_cuts_a_function_off():
    began, ended = anyio.Event(), anyio.Event()

    async def decode(_request: Request) -> Any:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async def post(port: int) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            answers.append(await client.post(f"http://127.0.0.1:{port}/x"))

    answers: list[httpx.Response] = []
    async with (
        anyio.create_task_group() as tasks,
        live(served(decode=decode), graceful_timeout_s=0.1) as server,
    ):
        tasks.start_soon(post, server.port)
        await began.wait()
        server.stop.set()
        await ended.wait()
    assert [one.status_code for one in answers] == [503]
    assert answers[0].json()["type"] == "urn:shoal:problem:closed"


@pytest.mark.one_loop
async def test_other_protocols_can_not_say_what_only_the_function_may():
    async def told(prompts: list[str], users: list[str] = "") -> list[str]:
        return users

    async def decode(request: Request) -> tuple[str, str]:
        return await request.json(), user_of(request)

    app = served(told, decode=decode, settings={"protocols": ["openai", "oip"]})
    async with app.lifespan():
        completion = {"model": "x", "prompt": "a", "users": "root"}
        answer = await ask(app, "/v1/completions", completion)
        assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert (await ask(app, "/v1/models", method="GET")).json()["data"] == []
        rows = [
            {"name": name, "shape": [1], "datatype": "BYTES", "data": ["root"]}
            for name in ("prompts", "users")
        ]
        answer = await ask(app, "/v2/models/x/infer", {"inputs": rows})
        assert answer.status == 400
        async with opened(app, "/x") as socket:
            socket.say(id=1, item={"prompts": "a", "users": "root"})
            error = (await socket.read())["error"]
            assert (error["status"], error["title"]) == (
                415,
                "The media type is not supported",
            )
        assert (await ask(app, "/x", "a")).status == 401


@pytest.mark.one_loop
async def test_the_list_of_routes_and_the_document_name_a_request():
    app = served(decode=of_json, encode=lambda result: result)
    async with app.lifespan():
        [route] = (await ask(app, "/-/routes", method="GET")).json()["endpoints"]
        [methods] = app.openapi()["paths"].values()
    assert route["takes"] == "request"
    assert [*methods["post"]["requestBody"]["content"]] == ["*/*"]
    assert "*/*" in methods["post"]["responses"]["200"]["content"]


def of_nothing() -> None: ...


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"decode": 5}, TypeError, r"decode must be a function or its import path, not 5; write"),
        ({"decode": "no path"}, ValueError, r"decode: .*no path"),
        ({"decode": of_nothing}, TypeError, r"decode must take a Request, and .*of_nothing"),
        ({"encode": []}, TypeError, r"encode must be a function or its import path, not \[\]"),
        ({"encode": "os"}, ValueError, r"encode: 'os'"),
        ({"encode": of_nothing}, TypeError, r"encode must take a result, or a result and its Req"),
        ({"encode": of_json}, TypeError, r"encode must be a plain function, and .*of_json.* is as"),
        ({"encode": lambda a, b, c: a}, TypeError, r"encode must take a result, or a result and"),
    ],
    ids=range(8),
)
async def test_a_wrong_value_is_refused_where_it_is_given(options, kind, words):
    with pytest.raises(kind, match=words):
        served(**options)
    with pytest.raises(kind, match=words):
        shoal.BackendConfig(**options)


CODE = """
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse


def user(request):
    if "x-user" not in request.headers:
        raise HTTPException(401)
    return request.headers["x-user"]


async def text(request):
    return (await request.body()).decode()


def shout(result):
    return PlainTextResponse(result.upper())


async def same(items: list[str]) -> list[str]:
    return items


nothing = 5
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that has functions for both options."""
    (tmp_path / "converting.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield "converting"
    sys.modules.pop("converting", None)


FILE = """
[backends.b]
code = "converting:same"
decode = "converting:{decode}"
encode = "converting:{encode}"

[endpoints.x]
route = "/x"
backend = "b"
"""


@pytest.mark.one_loop
@pytest.mark.real_time
async def test_a_file_names_both_functions(module, tmp_path):
    (tmp_path / "app.toml").write_text(FILE.format(decode="user", encode="shout"))
    async with (app := shoal.App.of_file(read_app_file("app.toml"))).lifespan():
        answer = await ask(app, "/x", headers=[("x-user", "ann")])
        assert (answer.status, answer.body) == (200, b"ANN")
        assert (await ask(app, "/x", "ann")).status == 401


@pytest.mark.parametrize(
    ("decode", "encode", "words"),
    [
        ("user", "shout", ""),
        ("absent", "shout", "app.toml:4: backends.b.decode: 'converting:absent': converting has"),
        ("user", "absent", "app.toml:5: backends.b.encode: 'converting:absent': converting has"),
        (
            "nothing",
            "shout",
            "backends.b.decode: decode='converting:nothing' must name a function, not 5",
        ),
    ],
)
def test_check_names_the_line_of_a_wrong_path(module, tmp_path, capsys, decode, encode, words):
    (tmp_path / "app.toml").write_text(FILE.format(decode=decode, encode=encode))
    assert main(["check", "app.toml"]) == (2 if words else 0)
    assert words in capsys.readouterr().err


@pytest.mark.real_time
async def test_a_change_of_a_running_backend_is_obeyed(module, app):
    app.backend("b", "converting:same")
    app.route("x", backend="b", path="/x")
    async with app.lifespan():
        client = app.controller
        assert (await ask(app, "/x", "a")).json() == "a"
        await client.update_backend_config("b", {"decode": "converting:text"})
        assert (await ask(app, "/x", "a")).json() == '"a"'
        await client.update_backend_config("b", {"encode": "converting:shout"})
        assert (await ask(app, "/x", "a")).body == b'"A"'
        with pytest.raises(ValueError, match="converting has no attribute 'absent'"):
            await client.update_backend_config("b", {"decode": "converting:absent"})
        assert (await ask(app, "/x", "a")).body == b'"A"'
        await client.update_backend_config("b", {"decode": None, "encode": None})
        assert (await ask(app, "/x", "a")).json() == "a"


@pytest.mark.real_time
async def test_a_protocol_that_has_called_a_backend_is_refused_once_it_decodes(module, oip):
    oip.backend("b", "converting:same")
    oip.route("x", backend="b", path="/x")
    tensor = {"name": "items", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    async with oip.lifespan():
        assert (await ask(oip, "/v2/models/x/infer", {"inputs": [tensor]})).status == 200
        await oip.controller.update_backend_config("b", {"decode": "converting:text"})
        assert (await ask(oip, "/v2/models/x/infer", {"inputs": [tensor]})).status == 400


@pytest.mark.real_time
async def test_a_state_file_keeps_import_paths(module, tmp_path):
    config = {"decode": "converting:user", "encode": "converting:shout"}
    async with shoal.start(state=tmp_path / "state.db") as client:
        await client.create_backend("b", "converting:same", config=config)
        with pytest.raises(shoal.errors.NotDurable, match="decode"):
            await client.create_backend("c", "converting:same", config={"decode": user_of})
    async with shoal.start(state=tmp_path / "state.db") as client:
        assert (await client.get_backend_config("b")).given() == config


@pytest.mark.one_loop
async def test_each_backend_of_an_endpoint_has_its_own_functions(app):
    app.backend("a", same, decode=lambda request: request.headers["x-a"])
    app.backend("b", same, encode=lambda result: ["b", result])
    app.route("x", backend="a", path="/x")
    app.traffic("x", {"a": 0.5, "b": 0.5})
    async with app.lifespan():
        found = [
            (await ask(app, "/x", 1, headers=[("x-a", "a"), ("x-serve-shard-key", str(n))])).json()
            for n in range(20)
        ]
    assert {str(one) for one in found} == {"a", "['b', 1]"}
    assert [*map(str, found)].count("a") in range(3, 18)


@pytest.mark.real_time
async def test_functions_run_in_the_server_for_code_in_a_process(module, app):
    app.backend("b", "converting:same", placement="process", decode=user_of, encode=len)
    app.route("x", backend="b", path="/x")
    async with app.lifespan():
        answer = await ask(app, "/x", headers=[("authorization", "Bearer secret")])
        assert (answer.status, answer.json()) == (200, 3)
        assert (await ask(app, "/x")).status == 401
