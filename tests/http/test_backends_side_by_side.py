"""An application starts its backends side by side, and adds them in their order."""

from contextlib import ExitStack

import anyio
import pytest

import shoal
from batching.scenes import outcome
from handlers import echo
from serving.scenes import ScriptedReplica, Stage
from shoal.errors import ReplicaNotStarted
from shoal.serving.controller.controller import Controller


def application(stage: Stage, *tags: str) -> shoal.App:
    app = shoal.App()
    for tag in tags:
        app.backend(tag, echo, placement=stage)
        app.route(tag, backend=tag)
    return app


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
    app = application(taking({"a": 5, "b": 3, "c": 4}), "a", "b", "c")
    assert await opened(app) == ["a", "b", "c"]
    assert anyio.current_time() == 5


@pytest.mark.parametrize(
    ("failing", "named", "after_s"),
    [(["a"], "a", 5), (["b"], "b", 3), (["c"], "c", 9), (["b", "c"], "b", 3), (["a", "c"], "a", 5)],
)
async def test_the_first_that_fails_ends_the_start(failing, named, after_s):
    stage = taking({"a": 5, "b": 3, "c": 9}, *failing)
    error = await outcome(opened(application(stage, "a", "b", "c")))
    assert isinstance(error, ReplicaNotStarted)
    assert f"the backend {named} could not be opened" in error.__notes__[0]
    assert anyio.current_time() == after_s
    assert not stage.alive
    assert len(stage.starting) == len(stage.ended)


async def test_one_that_is_cancelled_leaves_nothing():
    stage = taking({"a": 5, "b": 3, "c": 9})
    with anyio.move_on_after(4):
        await opened(application(stage, "a", "b", "c"))
    assert anyio.current_time() == 4
    assert not stage.alive


async def test_the_others_are_added_in_their_order_beside_one_that_is_there():
    app = application(taking({"a": 5, "b": 0, "c": 3}), "a", "b", "c")
    async with Controller() as controller:
        await controller.create_backend("b", echo)
        with ExitStack() as lending:
            await app._declared.apply(controller, lending)
        assert [*controller.backends] == ["b", "a", "c"]
        assert anyio.current_time() == 5


@pytest.mark.real_time
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
        assert (
            app.controller.backends["embed"]
            .method_batchers["__call__"]
            .batcher.statistics()
            .finished
            == 1
        )
