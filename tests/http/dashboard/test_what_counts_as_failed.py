"""Which requests count as failed: what the code or the server could not do, in every protocol.

An answer that code has chosen on purpose is no failure, unless its status is one of the server's.
"""

import math

import anyio
import pytest
from held_app import served
from starlette.exceptions import HTTPException
from test_dashboard import messages_of, state_of, watched

import shoal
from shoal.testing import settle
from shoal.testing.asgi import Call, ask
from socket_in_memory import Offered, opened

pytestmark = pytest.mark.one_loop

ROW = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}]}
EMBED = {"model": "m", "input": "a"}
ACCEPTS = ("application/json", "application/msgpack", "application/x-npy")


def counts(app):
    endpoint = app.controller.endpoints["m"]
    return endpoint.requests, endpoint.errors


def app_with(handler, **options):
    app = shoal.App(protocols=["oip", "openai"], dashboard=True, **options)
    app.endpoint("/m", name="m")(handler)
    return app


def answering_with(result):
    async def handler(items: list) -> list:
        return [result] * len(items)

    return handler


async def posted(app, path, asked, accept="*/*"):
    async with served(app) as server:
        client = await server.ask(path, asked, headers=[f"Accept: {accept}"])
        return int(client.wire.sent.split()[1]), counts(app)


@pytest.mark.parametrize("result", [math.nan, [math.inf], -math.inf])
@pytest.mark.parametrize(
    "asked", [EMBED, {**EMBED, "encoding_format": "base64"}, {**EMBED, "input": ["a", "b"]}]
)
async def test_an_embedding_that_is_not_finite_is_a_failure(result, asked):
    vector = result if isinstance(result, list) else [1.0, result]
    found = await posted(app_with(answering_with(vector)), "/v1/embeddings", asked)
    assert found == (500, (1, 1))


async def raising(items: list) -> list:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/m", 1),
        ("/v2/models/m/infer", ROW),
        ("/v1/completions", {"model": "m", "prompt": "a"}),
        ("/v1/embeddings", EMBED),
        ("/v1/embeddings", {**EMBED, "input": ["a", "b"]}),
    ],
)
async def test_a_call_that_raises_is_a_failure(path, asked):
    assert await posted(app_with(raising), path, asked) == (500, (1, 1))


@pytest.mark.parametrize("accept", ACCEPTS)
@pytest.mark.parametrize(
    ("path", "asked"), [("/m", 1), ("/v2/models/m/infer", ROW)], ids=["json", "oip"]
)
async def test_a_result_that_can_not_be_written_is_a_failure(path, asked, accept):
    found = await posted(app_with(answering_with(object())), path, asked, accept)
    assert found == (500, (1, 1))


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_an_item_of_a_stream_that_can_not_be_written_is_a_failure(accept):
    async def items(items: list):
        yield [1]
        yield [object()]

    found = await posted(app_with(items), "/m", 1, accept)
    assert found == (200, (1, 1))


@pytest.mark.parametrize("path", ["/m", "/v2/models/m/infer"])
@pytest.mark.parametrize(
    ("options", "status", "errors"),
    [({"max_body_bytes": 1}, 413, 0), ({"max_incomplete_bytes": 1}, 503, 1)],
)
async def test_a_request_is_counted_before_its_body_is_read(path, options, status, errors):
    app = app_with(answering_with(1), **options)
    async with app.lifespan():
        call = Call(app, path, body=b"[1", whole=False)
        call.give(b"]", more=False)
        await call.run()
        assert (call.status, counts(app)) == (status, (1, errors))


async def test_a_request_with_failing_lines_is_one_failure():
    app = app_with(raising)
    async with app.lifespan():
        lines = [("content-type", "application/x-ndjson")]
        answer = await ask(app, "/m", body=b"1\n2\n{\n", headers=lines)
        assert answer.body.count(b'"error"') == 3
        assert counts(app) == (1, 1)


async def test_a_request_of_several_choices_is_one_request():
    asked = {"model": "m", "prompt": "a", "n": 3}
    assert await posted(app_with(raising), "/v1/completions", asked) == (500, (1, 1))


async def test_a_request_on_a_websocket_that_is_refused_is_counted():
    go, offered = anyio.Event(), Offered()

    async def waiting(items: list) -> list:
        await go.wait()
        return items

    app = app_with(waiting)
    async with app.lifespan(), opened(app, "/m", offered) as socket:
        socket.say(id=1, item=1)
        await settle()
        offered.draining()
        assert (await socket.ask(id=2, item=2))["error"]["status"] == 503
        assert counts(app) == (2, 1)
        go.set()
        assert (await socket.read())["result"] == 1


async def stream_with_an_object(items: list):
    yield [object() for _ in items]


@pytest.mark.parametrize("handler", [answering_with(object()), stream_with_an_object])
async def test_a_result_that_no_websocket_can_carry_is_a_failure(handler):
    app = app_with(handler)
    async with app.lifespan(), opened(app, "/m") as socket:
        assert (await socket.ask(id=1, item=1))["error"]["status"] == 500
        assert counts(app) == (1, 1)


@pytest.mark.real_time
async def test_an_answer_that_code_in_a_process_has_chosen_is_given(app):
    app.backend("m", "serving.plain_code:refuse", placement="process")
    app.route("m", backend="m", path="/m")
    async with app.lifespan():
        answer = await ask(app, "/m", item=1)
    assert (answer.status, answer.json()["detail"]) == (418, "tea")
    assert answer.headers["x-tea"] == "green"


@pytest.mark.parametrize(
    ("status", "errors"), [(404, 0), (422, 0), (429, 0), (304, 0), (500, 1), (503, 1)]
)
async def test_an_answer_that_code_has_chosen_is_no_failure_below_500(status, errors):
    async def refusing(items: list) -> list:
        raise HTTPException(status)

    app = app_with(refusing)
    async with app.lifespan():
        assert (await ask(app, "/m", item=1)).status == status
        assert counts(app) == (1, errors)
        async with opened(app, "/m") as socket:
            assert (await socket.ask(id=1, item=1))["error"]["status"] == status
        assert counts(app) == (2, 2 * errors)
        async with watched(app) as watching:
            # Equal failures are shown together.
            failures = state_of(messages_of(watching))["failures"]
        shown = [(one["error"], one["count"]) for one in failures]
        assert shown == [("HTTPException", 2)] * errors
        (statistics,) = app.controller.backends["m"].statistics()
        assert (statistics.failed, statistics.declined) == (2 * errors, 2 - 2 * errors)
        metrics = (await ask(app, "/-/metrics", method="GET")).body.decode()
        for outcome in ("failed", "declined"):
            count = getattr(statistics, outcome)
            where = f'backend="m",method="__call__",outcome="{outcome}"'
            assert f"shoal_requests_total{{{where}}} {count}" in metrics
        status = (await app.controller.status()).backends["m"]
        assert (status.requests, status.errors) == (2, 2 * errors)


async def test_failures_beside_a_chosen_answer_are_shown():
    app = shoal.App(dashboard=True)

    @app.endpoint("/m", name="m", max_batch_size=2, batch_wait_timeout_s=60, isolate_errors=True)
    async def mixed(items: list[int]) -> list[int]:
        if len(items) > 1:
            raise HTTPException(404)
        raise HTTPException(404) if items == [1] else KeyError

    async with app.lifespan():
        async with anyio.create_task_group() as tasks:
            for item in (1, 2):
                tasks.start_soon(ask, app, "/m", item)
        async with watched(app) as watching:
            (failure,) = state_of(messages_of(watching))["failures"]
    assert (failure["error"], failure["count"]) == ("KeyError", 1)


class Empty(Exception):
    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("as_result", [True, False])
async def test_an_error_that_is_false_is_a_failure_like_others(as_result, caplog):
    async def handler(items: list) -> list:
        if as_result:
            return [Empty("no") for _ in items]
        raise Empty("no")

    app = app_with(handler)
    async with app.lifespan():
        assert (await ask(app, "/m", item=1)).status == 500
        assert counts(app) == (1, 1)
        async with watched(app) as watching:
            (failure,) = state_of(messages_of(watching))["failures"]
    assert failure["error"] == "Empty"
    assert "batch 1 failed: Empty, 1 of 1 requests" in caplog.text
    assert caplog.text.count("raise Empty") == (not as_result)


async def test_the_last_failure_is_shown_first():
    async def handler(items: list[int]) -> list:
        return [KeyError() if item else IndexError() for item in items]

    app = app_with(handler)
    async with app.lifespan():
        for item in (0, 1):
            await ask(app, "/m", item)
        async with watched(app) as watching:
            failures = state_of(messages_of(watching))["failures"]
    assert [one["error"] for one in failures] == ["KeyError", "IndexError"]


class Silent(HTTPException):
    """Its detail can't be read."""

    def __init__(self):
        self.status_code = 404

    @property
    def detail(self):
        raise KeyError("detail")


async def test_a_chosen_answer_that_can_not_be_read_is_a_failure():
    async def refusing(items: list) -> list:
        raise Silent

    app = app_with(refusing)
    async with app.lifespan():
        assert (await ask(app, "/m", item=1)).status == 500
        assert counts(app) == (1, 1)
        async with opened(app, "/m") as socket:
            assert (await socket.ask(id=1, item=1))["error"]["status"] == 500
        assert counts(app) == (2, 2)


class Falsy(Exception):
    def __bool__(self):
        return False


class Mute(Exception):
    def __str__(self):
        raise SystemExit(3)


class Breaks(shoal.policies.WholeQueuePolicy):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def choose(self, queue, now, pressure):
        if queue:
            raise self.error("no rule")
        return shoal.policies.Wait(None)


@pytest.mark.parametrize(("error", "text"), [(Falsy, "no rule"), (Mute, "<Mute>")])
async def test_a_failure_that_is_false_or_has_no_text_is_shown(error, text):
    app = shoal.App(dashboard=True)
    app.endpoint("/m", name="m", policy=lambda _: Breaks(error))(answering_with(1))
    async with app.lifespan():
        assert (await ask(app, "/m", item=1)).status == 503
        async with watched(app) as watching:
            (backend,) = state_of(messages_of(watching))["backends"]
        assert (await ask(app, "/-/metrics", method="GET")).status == 200
        status = (await app.controller.status()).backends["m"]
    assert (backend["failure"], status.failure) == (error.__name__, text)
    assert status.state == "unavailable"
