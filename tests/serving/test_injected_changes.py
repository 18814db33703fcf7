"""A caller that leaves, and a replica that dies, at every turn of every verb of a backend.

Whatever the turn, a change is made whole or not at all: what is declared is what there was or what
was asked for, the replicas are of just that, and the backend answers.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from batching.scenes import settle
from serving.scenes import Stage
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.serving.backend_config import BackendConfig
from shoal.serving.controller.controller import Controller
from shoal.testing import run_virtually

MOST_TURNS = 400


class Code:
    def __init__(self) -> None:
        self.config: Any = None

    def reconfigure(self, config: Any) -> None:
        self.config = config

    def health(self) -> None: ...

    async def __call__(self, items: list[int]) -> list[Any]:
        return [self.config] * len(items)


VERBS: dict[str, Callable[[Controller], Awaitable[None]]] = {
    "tell": lambda c: c.update_backend_config("b", {"user_config": 2}),
    "replace": lambda c: c.update_backend_config("b", {"user_config": 2, "shared_memory_bytes": 7}),
    "tell and scale": lambda c: c.update_backend_config("b", {"user_config": 2, "num_replicas": 3}),
    "scale up": lambda c: c.scale_backend("b", 3),
    "scale down": lambda c: c.scale_backend("b", 1),
    "batch": lambda c: c.update_backend_config("b", {"max_batch_size": 3}),
    "restart": lambda c: c.restart_backend("b"),
}


class Scene:
    def __init__(self, verb: str, turn: int, happens: str) -> None:
        self.was_in_time = False
        self._verb = verb
        self._turn = turn
        self._happens = happens
        self._stage = Stage()
        self._stage.start = self._stage.reconfigure = self._stage.health = a_turn_later

    async def run(self) -> None:
        config = {"placement": self._stage, "num_replicas": 2, "user_config": 1}
        async with Controller() as controller:
            await controller.create_backend("b", Code, config=config)
            await controller.create_endpoint("e", backend="b")
            await settle()
            before = await controller.get_backend_config("b")
            outcome = await self._disturbed(controller)
            after = await controller.get_backend_config("b")
            if outcome == "left":
                assert after in (before, self._wanted(before))
            elif isinstance(outcome, Exception):
                assert isinstance(outcome, (ReplicaDied, ReplicaNotStarted)), outcome
                assert after == before
            else:
                assert after == self._wanted(before)
            await anyio.sleep(100)
            await self._check(controller, after)
            if isinstance(outcome, Exception) or (after == before != self._wanted(before)):
                assert self._stage.replicas[0] in self._stage.alive  # which nothing has killed

    async def _disturbed(self, controller: Controller) -> Any:
        outcome: Any = "left"

        async def call() -> None:
            nonlocal outcome
            with scope:
                try:
                    await VERBS[self._verb](controller)
                except Exception as error:
                    outcome = error
                else:
                    outcome = "done"
            ended.set()

        scope, ended = anyio.CancelScope(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            for _ in range(self._turn):
                await anyio.lowlevel.checkpoint()
            self.was_in_time = not ended.is_set()
            if "old" in self._happens:
                self._stage.replicas[1].die()
            if "newest" in self._happens:
                self._stage.replicas[-1].die()
            if "leaves" in self._happens:
                scope.cancel()
            await ended.wait()
        return outcome

    async def _check(self, controller: Controller, config: BackendConfig) -> None:
        status = (await controller.status()).backends["b"]
        assert (status.state, status.wanted) == ("ready", config.num_replicas)
        alive = self._stage.alive
        assert sorted(replica.tag for replica in status.replicas) == sorted(
            replica.tag for replica in alive
        )
        assert len(alive) == config.num_replicas
        assert {replica.told[-1] for replica in alive} == {config.user_config}
        options = config.for_placement()
        assert all(replica.blueprint.placement_options == options for replica in alive)
        assert await (await controller.get_handle("e")).call(0) == config.user_config

    def _wanted(self, before: BackendConfig) -> BackendConfig:
        changes: dict[str, dict[str, Any]] = {
            "tell": {"user_config": 2},
            "replace": {"user_config": 2, "shared_memory_bytes": 7},
            "tell and scale": {"user_config": 2, "num_replicas": 3},
            "scale up": {"num_replicas": 3},
            "scale down": {"num_replicas": 1},
            "batch": {"max_batch_size": 3},
        }
        return before.changed(changes.get(self._verb, {}))


async def a_turn_later(*_: Any) -> None:
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    "happens", ["leaves", "old dies", "newest dies", "leaves, and old dies", "old and newest die"]
)
@pytest.mark.parametrize("verb", [*VERBS])
@pytest.mark.parametrize(
    "step",
    [pytest.param(6, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)],
    ids=["some turns", "each turn"],
)
def test_a_change_is_whole_or_not_at_all(backend: Any, happens: str, verb: str, step: int) -> None:
    # Which of the turns differs from one loop, and from one happening, to the next.
    first = len(happens) + 3 * (backend == "trio")
    for turn in range(first % step, MOST_TURNS, step):
        scene = Scene(verb, turn, happens)
        run_virtually(scene.run, backend=backend)
        if not scene.was_in_time:
            return
    raise AssertionError("the verb did not end")
