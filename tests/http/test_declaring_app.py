"""`App` as a declaration of backends, endpoints, traffic and shadows, and how it starts them."""

import asyncio
from contextlib import ExitStack
from functools import partial

import anyio
import pytest
import trio

import shoal
from batching.callers import outcome
from handlers import ask_once, echo
from serving.scenes import ScriptedReplica, Stage
from shoal import errors
from shoal.serving.controller.controller import Controller
from shoal.serving.state_file import StateFile
from shoal.testing.asgi import ask

real_time = pytest.mark.real_time  # state files are written by threads

CODE = "serving.plain_code"


async def negative(items: list[int]) -> list[int]:
    return [-item for item in items]


async def named(items: list[int]) -> list[str]:
    return [shoal.current_backend_tag()] * len(items)


def declared(*tags, code=echo):
    app = shoal.App()
    for tag in tags:
        app.backend(tag, code, placement=Stage())
    return app


def routed(stage: Stage, *tags: str) -> shoal.App:
    app = shoal.App()
    for tag in tags:
        app.backend(tag, echo, placement=stage)
        app.route(tag, backend=tag)
    return app


async def answers(app, count=40, **headers):
    return {(await ask(app, "/e", 1, **headers)).json() for _ in range(count)}


async def test_what_is_declared_is_there_once_it_is_open():
    app = declared("old", "new", "copy", code=named)
    app.route("e", backend={"old": 0.5, "new": 0.5}, path="/e", methods=["POST", "PUT"])
    app.shadow("e", "copy", 0.25)
    async with app.lifespan():
        assert list(await app.controller.list_backends()) == ["old", "new", "copy"]
        assert await app.controller.list_endpoints() == {
            "e": {
                "route": "/e",
                "methods": ["POST", "PUT"],
                "traffic": {"old": 0.5, "new": 0.5},
                "shadows": {"copy": 0.25},
            }
        }
        assert await answers(app) == {"old", "new"}
        assert await answers(app, method="PUT") == {"old", "new"}


async def test_traffic_that_is_declared_replaces_that_of_the_route():
    app = declared("old", "new", code=named)
    app.route("e", backend="old", path="/e")
    app.traffic("e", {"old": 0.0, "new": 1.0})
    async with app.lifespan():
        assert await answers(app) == {"new"}


async def test_the_last_shadow_of_a_backend_holds():
    app = declared("b", "copy")
    app.route("e", backend="b", path="/e")
    app.shadow("e", "copy", 1.0)
    app.shadow("e", "copy", 0.0)
    async with app.lifespan():
        assert (await app.controller.list_endpoints())["e"]["shadows"] == {}


async def test_a_route_without_a_path_is_for_handles():
    app = declared("b")
    app.route("e", backend="b")
    async with app.lifespan():
        assert (await ask(app, "/e", 1)).status == 404
        assert await (await app.controller.get_handle("e")).call(1) == 1


@real_time
async def test_decorated_and_declared_endpoints_stand_beside_each_other():
    app = declared("b")
    app.endpoint("/decorated")(negative)
    app.route("e", backend="b", path="/e")
    app.route("other", backend={"b": 0.0, "negative": 1.0}, path="/other")
    async with app.lifespan():
        assert (await ask(app, "/decorated", 1)).json() == -1
        assert (await ask(app, "/e", 1)).json() == 1
        assert (await ask(app, "/other", 1)).json() == -1


@pytest.mark.parametrize(
    ("declare", "error"),
    [
        (lambda app: app.backend("b", echo), errors.NameTaken),
        (lambda app: app.endpoint("/x", name="b")(negative), errors.NameTaken),
        (lambda app: app.endpoint("/there")(negative), errors.NameTaken),
        (lambda app: app.route("there", backend="b", path="/x"), errors.NameTaken),
        (
            lambda app: app.route("x", backend="b", path="/there", methods=["PUT", "POST"]),
            errors.NameTaken,
        ),
        (lambda app: app.backend("b c", echo), ValueError),
        (lambda app: app.backend(5, echo), TypeError),
        (lambda app: app.backend("c", 5), TypeError),
        (lambda app: app.backend("c", "no import path"), ValueError),
        (lambda app: app.backend("c", echo, 1), TypeError),
        (lambda app: app.backend("c", echo, max_batch_sice=1), TypeError),
        (lambda app: app.backend("c", echo, max_batch_size=0), ValueError),
        (lambda app: app.route("e", backend="absent"), errors.NoSuchName),
        (lambda app: app.route("e", backend={"b": 0.5}), ValueError),
        (lambda app: app.route("e", backend="b", path="e"), ValueError),
        (lambda app: app.route("e", backend="b", path="/-/e"), ValueError),
        (lambda app: app.route("e", backend="b", path="/e", methods="POST"), TypeError),
        (lambda app: app.route("e", backend="b", path="/e", methods=["BREW"]), ValueError),
        (lambda app: app.traffic("absent", {"b": 1}), errors.NoSuchName),
        (lambda app: app.traffic("there", {"absent": 1}), errors.NoSuchName),
        (lambda app: app.traffic("there", {"b": 0.9}), ValueError),
        (lambda app: app.shadow("absent", "b", 1.0), errors.NoSuchName),
        (lambda app: app.shadow("there", "absent", 1.0), errors.NoSuchName),
        (lambda app: app.shadow("there", [], 1.0), errors.NoSuchName),
        (lambda app: app.traffic([], {"b": 1.0}), errors.NoSuchName),
        (lambda app: app.shadow("there", "b", 1.1), ValueError),
        (lambda app: app.shadow("there", "b", "1"), TypeError),
    ],
)
def test_a_declaration_that_is_wrong_is_refused_where_it_is_written(declare, error):
    app = declared("b")
    app.route("there", backend="b", path="/there", methods=["POST"])
    with pytest.raises(error):
        declare(app)
    # A declaration that failed has taken neither a name nor a path.
    app.route("x", backend="b", path="/x")
    app.route("put", backend="b", path="/there", methods=["PUT"])


async def test_the_documentation_of_a_refused_endpoint_is_not_that_of_a_later_one():
    app = declared("b")
    with pytest.raises(errors.NameTaken):
        app.endpoint("/x", name="b", responses={402: "No credit is left."})(negative)
    async with app.lifespan():
        await app.controller.create_endpoint("b", backend="b", route="/b")
        assert "402" not in app.openapi()["paths"]["/b"]["get"]["responses"]


async def test_an_application_is_opened_again_with_all_that_it_declares():
    app = declared("b")
    app.route("e", backend="b", path="/e")
    for number in range(3):
        async with app.lifespan():
            assert (await ask(app, "/e", number)).json() == number
            with pytest.raises(RuntimeError, match="open already"):
                async with app.lifespan():
                    pass
            with pytest.raises(RuntimeError, match="before the application is opened"):
                app.endpoint("/late", name="late")(echo)
            with pytest.raises(RuntimeError):
                app.backend("late", echo)
            with pytest.raises(RuntimeError):
                app.route("late", backend="b")
            with pytest.raises(RuntimeError):
                app.traffic("e", {"b": 1})
            with pytest.raises(RuntimeError):
                app.shadow("e", "b", 1.0)
        assert (await ask(app, "/e", number)).status == 503


async def test_what_was_changed_while_it_was_open_is_forgotten_without_a_state_file():
    app = declared("old", "new", code=named)
    app.route("e", backend="old", path="/e")
    async with app.lifespan():
        await app.controller.set_traffic("e", {"new": 1})
        assert await answers(app) == {"new"}
    async with app.lifespan():
        assert await answers(app) == {"old"}


def kept(path, *, compare=None, size=3):
    app = shoal.App()
    app.backend("old", f"{CODE}:double", max_queued_requests=size)
    app.backend("new", f"{CODE}:Scaled", 3)
    app.route("e", backend="old", path="/e")
    app.shadow("e", "new", 0.5, compare=compare)
    app.state = StateFile.open(path)
    return app


@real_time
async def test_what_an_operator_changed_wins_over_what_is_declared(tmp_path):
    app = kept(tmp_path / "state.db")
    async with app.lifespan():
        await app.controller.set_traffic("e", {"new": 1})
        await app.controller.update_backend_config("old", {"max_queued_requests": 9})
        await app.controller.create_endpoint("more", backend="new", route="/more")
    app = kept(tmp_path / "state.db", size=5)
    async with app.lifespan():
        assert (await app.controller.list_endpoints())["e"]["traffic"] == {"new": 1}
        assert set(await app.controller.list_endpoints()) == {"e", "more"}
        config = await app.controller.get_backend_config("old")
        assert config.batch_options(batched=False)["max_queued_requests"] == 9
        assert (await ask(app, "/e", 2)).json() == 6


@real_time
async def test_what_the_file_lacks_is_made_as_it_is_declared(tmp_path):
    async with kept(tmp_path / "state.db").lifespan():
        pass
    app = kept(tmp_path / "state.db")
    app.route("late", backend="new", path="/late")
    assert (await ask_once(app, "/late", 2)).json() == 6


@real_time
async def test_an_endpoint_that_can_not_be_kept_leaves_nothing_of_it(tmp_path):
    with pytest.raises(errors.NotDurable):
        async with kept(tmp_path / "state.db", compare=lambda a, b: a == b).lifespan():
            pass
    app = kept(tmp_path / "state.db", compare="operator:eq")
    async with app.lifespan():
        assert (await app.controller.list_endpoints())["e"] == {
            "route": "/e",
            "methods": ["GET", "POST"],
            "traffic": {"old": 1.0},
            "shadows": {"new": 0.5},
        }


@shoal.batch(max_batch_size=4)
async def tripled(items: list[int]) -> list[int]:
    return [3 * item for item in items]


@real_time
async def test_a_batched_function_is_served_and_called_by_one_batcher(app):
    app.endpoint("/e", batch_wait_timeout_s=None, max_batch_size=2)(tripled)
    got = []

    async def ask_it() -> None:
        got.append((await ask(app, "/e", 2)).json())

    async with app.lifespan():
        line = app.controller.backends["tripled"].method_batchers["__call__"]
        assert tripled.batcher is line.batcher
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_it)
            got.append(await tripled(3))
        assert sorted(got) == [6, 9]
        assert sum(tripled.batcher.statistics().batches.values()) == 1
        with pytest.raises(RuntimeError, match="open in this event loop already"):
            async with shoal.open_batchers(tripled):
                pass
        assert app.controller.endpoints["tripled"].requests == 1
    with pytest.raises(errors.NotOpen):
        await tripled(3)


@real_time
async def test_a_batched_function_that_is_open_elsewhere_keeps_the_application_closed(app):
    app.endpoint("/e")(tripled)
    async with shoal.open_batchers(tripled):
        with pytest.raises(RuntimeError, match="open in this event loop already"):
            async with app.lifespan():
                pass
        assert await tripled(3) == 9
    assert (await ask_once(app, "/e", 3)).json() == 9


@real_time
async def test_a_batched_function_whose_backend_was_deleted_is_closed(app):
    app.endpoint("/e")(tripled)
    async with app.lifespan():
        await app.controller.delete_endpoint("tripled")
        await app.controller.delete_backend("tripled")
        with pytest.raises(errors.BatcherClosed):
            await tripled(3)
        assert (await ask(app, "/e", 3)).status == 404


# Code for the other event loop is told by its failure, with the option that mends it


async def asyncio_event():
    asyncio.get_running_loop()


FOR_THE_OTHER = {
    "trio": [partial(asyncio.sleep, 0.001), asyncio_event],
    "asyncio": [partial(trio.sleep, 0.001), trio.lowlevel.checkpoint],
}


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("streams", [False, True])
async def test_the_log_names_the_option_once_an_endpoint(
    number, streams, caplog, anyio_backend_name, app
):
    wait = FOR_THE_OTHER[anyio_backend_name][number]

    async def steps(items: list[int]):
        await wait()
        yield items

    async def whole(items: list[int]) -> list[int]:
        await wait()
        return items

    app.endpoint("/e", name="e")(steps if streams else whole)
    async with app.lifespan():
        for _ in range(3):
            assert (await ask(app, "/e", 1)).status == 500
    [hint] = [one.getMessage() for one in caplog.records if "--event-loop" in one.getMessage()]
    other = {"trio": "asyncio", "asyncio": "trio"}[anyio_backend_name]
    assert hint.startswith("e: ")
    assert f"start it with --event-loop {other}" in hint


async def test_other_failures_have_no_such_hint(caplog, app):
    @app.endpoint("/e")
    async def e(items: list[int]) -> list[int]:
        raise RuntimeError("the model has no running fans")

    assert (await ask_once(app, "/e", 1)).status == 500
    assert not [one for one in caplog.records if "--event-loop" in one.getMessage()]


def taking(seconds: dict[str, float], *failing: str) -> Stage:
    """Makes a stage whose replicas take so long to start, and may fail then."""

    async def start(replica: ScriptedReplica) -> str | None:
        backend = replica.blueprint.identity.backend
        await anyio.sleep(seconds[backend])
        return "no luck" if backend in failing else None

    stage = Stage()
    stage.start = start
    return stage


async def opened(app: shoal.App) -> list[str]:
    async with app.lifespan():
        return list(app.controller.backends)


async def test_a_start_takes_as_long_as_the_longest():
    app = routed(taking({"a": 5, "b": 3, "c": 4}), "a", "b", "c")
    assert await opened(app) == ["a", "b", "c"]
    assert anyio.current_time() == 5


@pytest.mark.parametrize(
    ("failing", "named", "after_s"),
    [(["a"], "a", 5), (["b"], "b", 3), (["c"], "c", 9), (["b", "c"], "b", 3), (["a", "c"], "a", 5)],
)
async def test_the_first_that_fails_ends_the_start(failing, named, after_s):
    stage = taking({"a": 5, "b": 3, "c": 9}, *failing)
    error = await outcome(opened(routed(stage, "a", "b", "c")))
    assert isinstance(error, errors.ReplicaNotStarted)
    assert f"the backend {named} could not be opened" in error.__notes__[0]
    assert anyio.current_time() == after_s
    assert not stage.alive
    assert len(stage.starting) == len(stage.ended)


async def test_one_that_is_cancelled_leaves_nothing():
    stage = taking({"a": 5, "b": 3, "c": 9})
    with anyio.move_on_after(4):
        await opened(routed(stage, "a", "b", "c"))
    assert anyio.current_time() == 4
    assert not stage.alive


async def test_the_others_are_added_in_their_order_beside_one_that_is_there():
    app = routed(taking({"a": 5, "b": 0, "c": 3}), "a", "b", "c")
    async with Controller() as controller:
        await controller.create_backend("b", echo)
        with ExitStack() as lending:
            await app._declared.apply(controller, lending)
        assert [*controller.backends] == ["b", "a", "c"]
        assert anyio.current_time() == 5


@real_time
async def test_a_batched_function_is_there_before_what_comes_after_it(app):
    @shoal.batch
    async def embed(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    class Calls:
        async def warm_up(self) -> None:
            self.warm = await embed(21)

        async def __call__(self, items: list[int]) -> list[int]:
            return [self.warm] * len(items)

    stage = Stage()
    app.endpoint("/embed")(embed)
    app.endpoint("/calls", placement="task")(Calls)
    app.backend("other", echo, placement=stage)
    async with app.lifespan():
        assert [*app.controller.backends] == ["embed", "Calls", "other"]
        assert await (await app.controller.get_handle("Calls")).call(1) == 42
        assert embed.batcher.statistics().finished == 1
