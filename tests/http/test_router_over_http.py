"""Endpoints over HTTP: methods, shard keys, traffic, holding, shadows, metrics and readiness."""

import json
from contextlib import asynccontextmanager
from pickle import dumps

import anyio
import pytest
from held_app import metrics_of

import shoal
from serving.scenes import Gated, Stage, echo, failing
from shoal.asgi.extensions import DECODED
from shoal.http.app.app import App
from shoal.serving.controller.controller import Controller
from shoal.serving.shadow import PrimaryAnswer
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling

JSON = ("content-type", "application/json")


@asynccontextmanager
async def up(code=echo, *, backend="b", stage=None, app=None, **config):
    app, stage = app or App(), stage or Stage()
    async with Controller() as client, app.answering(client):
        await client.create_backend("b", code, config={"placement": stage, **config})
        await client.create_endpoint("e", backend=backend, route="/e", methods=["POST"])
        yield app, client, stage


async def beside(client, tag, code=echo, **config):
    stage = Stage()
    await client.create_backend(tag, code, config={"placement": stage, **config})
    return stage


async def named(items: list[int]) -> list[str]:
    return [shoal.current_backend_tag()] * len(items)


class Code:
    """Methods of several kinds, and what is none."""

    attribute = 5

    def __init__(self):
        self.seen = []

    async def __call__(self, item: int):
        return item

    async def negative(self, item: int):
        return -item

    async def sums(self, left: list[int], right: list[int]):
        return [one + other for one, other in zip(left, right, strict=True)]

    async def steps(self, items: list[int]):
        yield items

    @staticmethod
    async def fixed(item: int):
        return 100 + item

    @classmethod
    async def of_class(cls, item: int):
        return f"{cls.__name__} {item}"

    async def _private(self, item: int):
        return item

    def reconfigure(self, user_config): ...
    def health(self): ...
    def check_health(self): ...
    def warm_up(self): ...
    def close(self): ...

    async def helper(self, *anything):
        return anything


def asked(method):
    return {"headers": [("X-Serve-Call-Method", method)]}


@pytest.mark.parametrize(
    ("method", "item", "result"),
    [
        ("__call__", 3, 3),
        ("negative", 3, -3),
        ("sums", {"left": 1, "right": 2}, 3),
        ("fixed", 3, 103),
    ],
)
async def test_a_request_names_the_method_that_it_calls(method, item, result):
    async with up(Code) as (app, _client, _stage):
        assert (await ask(app, "/e", item, **asked(method))).json() == result


async def test_a_method_of_its_own_may_answer_by_a_stream():
    async with up(Code) as (app, _client, _stage):
        answer = await ask(app, "/e", 3, **asked("steps"))
        assert answer.body == b"data: 3\n\nevent: end\ndata: {}\n\n"
        assert (await ask(app, "/e", 3)).json() == 3


@pytest.mark.parametrize(
    "method",
    [
        *(
            *("absent", "", "_private", "attribute", "helper", "of_class", "__init__"),
            *("__class__", "__reduce__"),
        ),
        *("reconfigure", "health", "warm_up", "close", "seen.append", "négative"),
        *("check_health", "__del__", "__getattribute__", "__dict__"),
    ],
)
async def test_what_is_no_method_for_callers_is_not_found(method):
    async with up(Code) as (app, client, stage):
        answer = await ask(app, "/e", 3, **asked(method))
        assert (answer.status, answer.json()["type"][-14:]) == (404, "no-such-method")
        assert b"negative" not in answer.body
        with pytest.raises(shoal.errors.NoSuchName, match="negative"):  # code of ours may be told
            await (await client.get_handle("e")).options(method_name=method).call(3)
        assert set(client.backends["b"].method_batchers) == {"__call__"}
        assert stage.calls == []


async def test_bodies_are_checked_by_the_method_that_is_called():
    async with up(Code) as (app, _client, _stage):
        assert (await ask(app, "/e", 3, **asked("sums"))).status == 422
        assert (await ask(app, "/e", {"left": 1, "right": 2})).status == 422


async def test_code_without_parameters_is_called():
    async def now() -> int:
        return 5

    async with up(now) as (app, _client, _stage):
        assert (await ask(app, "/e")).json() == 5


async def test_each_backend_of_an_endpoint_reads_bodies_by_its_own_signature():
    async def of_two(text: str, times: int = 1):
        return text * times

    async with up() as (app, client, _stage):
        await beside(client, "two", of_two)
        assert (await ask(app, "/e", 1)).json() == 1
        await client.set_traffic("e", {"two": 1})
        assert (await ask(app, "/e", {"text": "a", "times": 3})).json() == "aaa"
        assert (await ask(app, "/e", {"text": "a"})).json() == "a"
        assert (await ask(app, "/e", 1)).status == 422
        await client.set_traffic("e", {"b": 0.5, "two": 0.5})
        statuses = {(await ask(app, "/e", 1)).status for _ in range(60)}
        assert statuses == {200, 422}


async def test_no_request_fails_while_traffic_moves_to_and_fro():
    async with up(named) as (app, client, _stage):
        statuses, backends = [], set()

        async def load() -> None:
            for _ in range(50):
                answer = await ask(app, "/e", 1)
                statuses.append(answer.status)
                backends.add(answer.json())

        async def change() -> None:
            for number in range(10):
                tag = f"b{number}"
                await beside(client, tag, named)
                await client.set_traffic("e", {tag: 1.0})
                await client.delete_backend(f"b{number - 1}" if number else "b")

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(load)
            tasks.start_soon(change)
        assert statuses == [200] * 500
        assert len(backends) > 1


async def test_a_body_that_takes_its_time_goes_where_traffic_goes_when_it_is_there():
    async with up(named) as (app, client, _stage):
        await beside(client, "new", named)
        call = Call(app, "/e", body=b"1", headers=[JSON], whole=False)
        async with calling(call):
            await settle()
            await client.set_traffic("e", {"new": 1})
            await client.delete_backend("b")
            call.give(b"0", more=False)
            await call.returned.wait()
        assert call.answer.json() == "new"


async def test_the_traffic_may_move_while_the_body_is_fetched(app):
    """By a front end, which has decoded the item for another backend."""
    app.backend("one", named)
    app.route("m", backend="one", path="/m")

    class Fetching(Call):
        async def _receive(self):
            controller = app.controller
            if "two" not in controller.backends:
                await controller.create_backend("two", named)
                await controller.set_traffic("m", {"two": 1.0})
                await controller.delete_backend("one")
            return await super()._receive()

    async with app.lifespan():
        call = Fetching(app, "/m", item=1)
        decoders = []
        call.scope["extensions"] = {
            DECODED: {
                "receive": call._receive,
                "send": None,  # as if it were replaced
                "decoded": (999, 2),
                "teach": lambda number, description: decoders.append(number),
            }
        }
        await call.run()
        assert (call.status, call.answer.json()) == (200, "two")
        assert decoders[0] == 0  # the old one is removed
        assert app.controller.endpoints["m"].requests == 1


class Forwarded:
    """A request that a front end has forwarded whole."""

    ended = False

    def wake(self):
        self.ended = True

    def done(self):
        return False


async def test_a_lent_endpoint_takes_no_item_of_an_earlier_decoder(app):
    app.backend("one", named)
    app.route("m", backend="one", path="/m")
    decoders, begins = [], []
    async with app.lifespan():
        call = Call(app, "/m", item=1)
        call.scope["extensions"] = {
            DECODED: {
                "receive": call._receive,
                "send": None,
                "decoded": None,
                "teach": lambda number, description: decoders.append(number),
                "lend": begins.append,
            }
        }
        await call.run()
        [decoder], [begin], forwarded = decoders, begins, Forwarded()
        assert begin(forwarded, app, decoder + 1, dumps("1")) is None
        assert begin(forwarded, object(), decoder, dumps(1)) is None
        begun = begin(forwarded, app, decoder, dumps(1))
        await settle()
        assert forwarded.ended
        assert begun.answer()[1] == b'"one"'


async def test_an_endpoint_that_is_deleted_while_a_body_comes_is_not_found():
    async with up() as (app, client, _stage):
        call = Call(app, "/e", body=b"1", headers=[JSON], whole=False)
        async with calling(call):
            await settle()
            await client.delete_endpoint("e")
            call.give(b"0", more=False)
            await call.returned.wait()
        assert call.answer.status == 404


async def test_another_endpoint_at_the_path_of_a_deleted_one_gets_its_requests():
    async with up() as (app, client, _stage):
        await beside(client, "other", named)
        assert (await ask(app, "/e", 1)).json() == 1
        await client.delete_endpoint("e")
        await client.create_endpoint("e2", backend="other", route="/e", methods=["POST"])
        assert (await ask(app, "/e", 1)).json() == "other"


async def test_a_path_below_a_mount_is_not_taken_for_one_of_the_application():
    app = App()
    for name in ("e", "mount/e"):
        app.endpoint(f"/{name}", name=name.replace("/", "."), methods=("POST",))(named)
    async with app.lifespan():
        assert (await ask(app, "/mount/e", 1)).json() == "mount.e"
        assert (await ask(app, "/mount/e", 1, root_path="/mount")).json() == "e"


async def test_an_endpoint_without_traffic_holds_requests_in_their_order():
    async with up(backend=None) as (app, client, stage):
        calls = [Call(app, "/e", item=number) for number in range(20)]
        async with calling(*calls):
            await settle()
            assert client.endpoints["e"].held == 20
            await client.set_traffic("e", {"b": 1})
            for call in calls:
                await call.returned.wait()
        assert [call.answer.json() for call in calls] == list(range(20))
        assert sorted(item for _, items in stage.calls for item in items) == list(range(20))


async def shadow_of(client):
    [shadow] = (await client.status()).endpoints["e"].shadows
    return shadow


async def test_answers_are_compared_with_their_copies():
    async def odd(items: list[int]) -> list[int]:
        return [item if item % 2 else -item for item in items]

    async with up() as (app, client, _stage):
        await beside(client, "s", odd)
        await client.shadow_traffic("e", "s", 1.0, compare=lambda first, second: first == second)
        for number in (1, 2, 3):
            await ask(app, "/e", number)
        await anyio.sleep(1)
        shadow = await shadow_of(client)
        assert (shadow.agreed, shadow.disagreed) == (2, 1)


async def test_a_body_that_is_refused_is_not_copied():
    async with up() as (app, client, _stage):
        await beside(client, "s")
        await client.shadow_traffic("e", "s", 1.0)
        assert (await ask(app, "/e", "text")).status == 422
        assert (await shadow_of(client)).sent == 0


async def test_a_copy_of_a_stream_waits_for_no_answer(monkeypatch, app):
    made, init = [], PrimaryAnswer.__init__
    monkeypatch.setattr(PrimaryAnswer, "__init__", lambda one: made.append(one) or init(one))

    app.backend("one", Code().steps)
    app.backend("two", Code().steps)
    app.route("m", backend="one", path="/m")
    async with app.lifespan():
        await app.controller.shadow_traffic("m", "two", 1.0, compare=lambda *_: True)
        assert (await ask(app, "/m", 1)).status == 200
        (answer,) = made
        with anyio.fail_after(1):
            await answer.ended.wait()


async def test_a_stream_that_fails_is_one_error():
    async def broken(items: list[int]):
        yield items
        raise ValueError

    async with up(broken) as (app, client, _stage):
        assert b"event: error" in (await ask(app, "/e", 1)).body
        endpoint = client.endpoints["e"]
        assert (endpoint.requests, endpoint.errors) == (1, 1)
        labels = 'endpoint="e",outcome="failed",protocol="json"'
        assert f"shoal_request_seconds_count{{{labels}}} 1.0" in await metrics_of(app)


async def test_each_series_is_there_once_whatever_backends_are_called():
    async with up(Code) as (app, client, _stage):
        await beside(client, "b.negative")
        await ask(app, "/e", 1, **asked("negative"))
        lines = (await metrics_of(app)).splitlines()
        series = [line.rpartition(" ")[0] for line in lines if line[:1] != "#"]
        assert sorted(series) == sorted(set(series))


async def ready(app):
    answer = await ask(app, "/-/readyz", method="GET")
    return answer.status, answer.json()


async def test_it_is_ready_while_every_endpoint_has_what_answers_it():
    stage = Stage()
    async with up(stage=stage) as (app, client, _stage):
        await beside(client, "idle")
        await client.create_endpoint("held", backend=None)
        status, body = await ready(app)
        assert status == 200
        assert {name: e["state"] for name, e in body["endpoints"].items()} == {
            "e": "open",
            "held": "held",
        }
        stage.start = failing()
        stage.replicas[0].die()
        await settle()
        status, body = await ready(app)
        assert (status, body["status"]) == (503, "not ready: e")
        assert body["endpoints"]["e"]["alive"] is False
        assert "no luck" not in json.dumps(body)
        stage.start = Stage().start
        await anyio.sleep(100)
        assert (await ready(app))[0] == 200


async def test_a_backend_without_an_endpoint_and_a_shadow_do_not_make_it_unready():
    async with up() as (app, client, _stage):
        idle, copied = await beside(client, "idle"), await beside(client, "copied")
        await client.shadow_traffic("e", "copied", 1.0)
        for stage in (idle, copied):
            stage.start = failing()
            stage.replicas[0].die()
        await settle()
        assert (await ready(app))[0] == 200


async def test_it_stays_ready_while_replicas_are_replaced():
    stage = Stage()
    async with up(stage=stage) as (app, client, _stage):
        stage.start = gates = Gated(first=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.restart_backend, "b")
            await settle()
            assert (await ready(app))[0] == 200
            assert (await ask(app, "/e", 1)).status == 200
            gates.let(1)
        assert (await ready(app))[0] == 200


class Unknown:
    """Nothing that JSON can be checked against."""


@pytest.mark.parametrize("parameters", ["item: Unknown", "", "first: int, raw: bytes"])
async def test_one_odd_backend_does_not_hide_the_routes_of_the_others(parameters):
    scope: dict = {"Unknown": Unknown}
    exec(f"async def odd({parameters}): return 1", scope)
    async with up() as (app, client, _stage):
        await beside(client, "odd", scope["odd"])
        await client.create_endpoint("odd", backend="odd", route="/odd")
        answer = await ask(app, "/-/routes", method="GET")
        assert [route["path"] for route in answer.json()["endpoints"]] == ["/e", "/odd"]


async def test_an_endpoint_that_code_does_not_find_is_no_mistake_of_the_client():
    async with up() as (app, client, _stage):

        async def outer(item: int) -> int:
            return await (await client.get_handle("absent")).call(item)

        await beside(client, "outer", outer)
        await client.set_traffic("e", {"outer": 1})
        assert (await ask(app, "/e", 1)).status == 500


async def test_a_websocket_whose_scope_names_a_method_is_a_websocket():
    sent = []

    async def receive():
        return {"type": "websocket.disconnect" if sent else "websocket.connect", "code": 1000}

    async def send(message):
        sent.append(message["type"])

    scope = {"type": "websocket", "method": "POST", "path": "/e", "headers": []}
    async with up() as (app, _, _):
        await ask(app, "/e", 1)  # the table of routes is up to date
        await app({**scope, "query_string": b"", "subprotocols": ["shoal.v1"]}, receive, send)
    assert sent[0] == "websocket.accept"
