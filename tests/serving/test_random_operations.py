"""Whatever is done to a controller, in any order and at once, each request ends as it should.

A program is a list of operations: calls, callers that leave, updates of all kinds, replicas that
die or can't start, and time that passes. Updates overlap with each other and with all else. In the
end each call has had its own right answer or a named error, each verb has ended, what is declared
is there and answers, and no replica outlives its controller.

A scene is one change, with a caller that leaves or a replica that dies at one of its turns. It is
made whole or not at all: what is declared is what there was or what was asked for, the replicas
are of just that, and the backend answers.
"""

import os
import random
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeAlias

import anyio
import pytest
from anyio.abc import TaskGroup
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batching.callers import LEFT, PENDING, Caller
from batching.scenes import settle
from serving.scenes import ScriptedReplica, Stage
from shoal.batching.current import current_backend_tag
from shoal.errors import ReplicaDied, ReplicaNotStarted, ShoalError
from shoal.serving.backend_config import BackendConfig
from shoal.serving.controller.controller import Controller
from shoal.testing import run_virtually

PROGRAMS = 15
SOAK_PROGRAMS = int(os.environ.get("SHOAL_SOAK_OPERATIONS", "3000"))

BACKENDS = ("a", "b", "c")

DEADLY = "deadly"
SICKENING = "sickening"

Operation: TypeAlias = tuple[str, int, int]

KINDS = (
    "call",
    "stream",
    "leave",
    "pass time",
    "die",
    "fail starts",
    "fall ill",
    "scale",
    "batch",
    "bound",
    "stick",
    "models",
    "tell",
    "tell death",
    "tell illness",
    "replace",
    "restart",
    "traffic",
    "shadow",
    "create",
    "delete",
    "force",
    "cancel update",
)

programs = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 5)), max_size=40
)


class CannotLoad(ShoalError, RuntimeError):
    """What loading a model raises."""


class Checked:
    """Takes up to 0.3 s, and answers with each item and its backend's tag.

    Of a health check the start of a replica and its changes depend, too.
    """

    def __init__(self, random: random.Random) -> None:
        self._random = random

    def reconfigure(self, _config: Any) -> None: ...

    def health(self) -> None: ...

    async def load_model(self, model: str) -> None:
        await anyio.sleep(self._random.uniform(0, 0.3))
        if self._random.random() < 0.1:
            raise CannotLoad(model)

    async def unload_model(self, model: str) -> None:
        await anyio.sleep(self._random.uniform(0, 0.1))

    async def __call__(self, items: list[int]) -> list[tuple[int, str]]:
        await anyio.sleep(self._random.uniform(0, 0.3))
        return [(item, current_backend_tag()) for item in items]

    async def steps(self, items: list[int]) -> AsyncGenerator[list[tuple[int, str, int]], None]:
        for step in range(3):
            await anyio.sleep(self._random.uniform(0, 0.1))
            yield [(item, current_backend_tag(), step) for item in items]


class Program:
    def __init__(self, operations: list[Operation]) -> None:
        self._operations = operations
        self._random = random.Random(1)
        self._stage = Stage()
        self._stage.start = self._start
        self._stage.health = self._health
        self._stage.reconfigure = self._reconfigure
        self._failing_starts = 0
        self._ill: set[str] = set()
        self._calls: list[tuple[int, bool, Caller]] = []
        self._updates: list[Caller] = []

    async def run(self) -> None:
        with anyio.fail_after(10_000):
            async with Controller() as self._controller, anyio.create_task_group() as self._tasks:
                for tag in BACKENDS[:2]:
                    await self._controller.create_backend(tag, self._code(), config=self._config())
                await self._controller.create_endpoint("e", backend="a")
                for kind, first, second in self._operations:
                    await self._do(kind, first, second)
                await self._calm_down(self._tasks)
            await settle()
        for item, _, caller in self._calls:
            _check_answer(item, caller.outcome)
        assert len(self._stage.starting) == len(self._stage.ended)

    async def _do(self, kind: str, first: int, second: int) -> None:
        controller, tag = self._controller, BACKENDS[first % 3]
        alive = self._stage.alive
        update = controller.update_backend_config
        if kind in ("call", "stream"):
            for _ in range(first * second + 1):
                await self._call(streams=kind == "stream", sharded=bool(second % 2))
        elif kind == "leave":
            for _, _, caller in self._calls[first :: second + 1]:
                caller.leave()
        elif kind == "pass time":
            await anyio.sleep(first * 0.2 + second * 4 * (first == 5))
        elif kind == "die" and alive:
            alive[first % len(alive)].die()
        elif kind == "fail starts":
            self._failing_starts = first
        elif kind == "fall ill" and alive:
            self._ill.add(alive[first % len(alive)].tag)
        elif kind == "scale":
            await self._update(controller.scale_backend(tag, second % 4 + 1))
        elif kind == "batch":
            changes = {"max_batch_size": second + 1, "batch_wait_timeout_s": 0.1 * (second % 2)}
            await self._update(update(tag, changes))
        elif kind == "bound":
            changes = {"max_ongoing_requests": second or None, "max_concurrent_batches": 2}
            await self._update(update(tag, {**changes, "retries": second % 3}))
        elif kind == "stick":
            factor = (None, 1, 1.5, 2, 1000)[second % 5]
            await self._update(update(tag, {"sticky_load_factor": factor, "models": None}))
        elif kind == "models":
            models = {"most": second, "max_switch_wait_s": 0.1 * first} if second else None
            changes = {"models": models, "sticky_load_factor": None}
            await self._update(update(tag, changes))
        elif kind == "tell":
            await self._update(update(tag, {"user_config": second}))
        elif kind == "tell death":
            await self._update(update(tag, {"user_config": DEADLY, "max_batch_size": second + 1}))
        elif kind == "tell illness":
            changes = {"user_config": SICKENING, "shared_memory_bytes": second}
            await self._update(update(tag, {**changes, "num_replicas": first + 1}))
        elif kind == "replace":
            changes = {"shared_memory_bytes": second, "num_replicas": second % 3 + 1}
            await self._update(update(tag, changes))
        elif kind == "restart":
            await self._update(controller.restart_backend(tag))
        elif kind == "traffic":
            weights = {tag: second / 5, BACKENDS[(first + 1) % 3]: 1 - second / 5}
            await self._update(controller.set_traffic("e", weights))
        elif kind == "shadow":
            await self._update(controller.shadow_traffic("e", tag, second % 3 / 2, compare=_alike))
        elif kind == "create":
            await self._update(controller.create_backend(tag, self._code(), config=self._config()))
        elif kind in ("delete", "force"):
            await self._update(controller.delete_backend(tag, force=kind == "force"))
        elif kind == "cancel update":
            for caller in self._updates[first :: second + 1]:
                caller.leave()
        if second % 2:
            await settle()

    async def _calm_down(self, tasks: TaskGroup) -> None:
        """Waits until all has ended, and checks that what is declared is there, and answers."""
        self._failing_starts = 0
        self._ill.clear()
        await anyio.sleep(150)
        for caller in self._updates:
            assert caller.outcome is not PENDING
            if isinstance(caller.outcome, Exception):
                assert isinstance(caller.outcome, ShoalError), caller.outcome
        for _, _, caller in self._calls:
            assert caller.outcome is not PENDING
        status = self._controller.status_now()
        assert status.endpoints["e"].held == 0
        for tag, backend in status.backends.items():
            config = await self._controller.get_backend_config(tag)
            assert config.user_config not in (DEADLY, SICKENING)
            assert (backend.state, backend.wanted) == ("ready", config.num_replicas)
            assert (backend.queued, backend.ongoing) == (0, 0)
            mine = [r for r in self._stage.alive if r.blueprint.identity.backend == tag]
            tags = sorted((replica.tag for replica in backend.replicas), key=_number)
            assert [replica.tag for replica in mine] == tags
            assert len(mine) == config.num_replicas
            for replica in mine:
                assert (replica.told or [None])[-1] == config.user_config
                assert replica.blueprint.placement_options == config.for_placement()
        before = len(self._calls)
        for _ in range(5):
            await self._call(streams=False, sharded=False)
        await anyio.sleep(100)
        assert all(isinstance(caller.outcome, tuple) for _, _, caller in self._calls[before:])

    async def _call(self, *, streams: bool, sharded: bool) -> None:
        item = len(self._calls)
        handle = await self._controller.get_handle("e")
        if sharded:
            handle = handle.options(shard_key=str(item % 5), model=str(item % 3))
        awaitable = _read(handle, item) if streams else handle.call(item)
        self._calls.append((item, streams, await self._tasks.start(Caller(awaitable).run)))

    async def _update(self, verb: Awaitable[None]) -> None:
        self._updates.append(await self._tasks.start(Caller(verb).run))

    async def _start(self, replica: ScriptedReplica) -> str | None:
        await anyio.sleep(self._random.uniform(0, 0.5))
        if self._failing_starts:
            self._failing_starts -= 1
            return "no luck"
        return None

    async def _health(self, replica: ScriptedReplica) -> None:
        if replica.tag in self._ill:
            raise RuntimeError("ill")
        if replica.told and replica.told[-1] == SICKENING:
            if self._random.random() < 0.5:
                replica.die()
            raise RuntimeError("sickened")

    async def _reconfigure(self, replica: ScriptedReplica, config: Any) -> None:
        await anyio.sleep(self._random.uniform(0, 0.1))
        if config == DEADLY:
            replica.die()

    def _code(self) -> Checked:
        return Checked(self._random)

    def _config(self) -> dict[str, Any]:
        return {"placement": self._stage, "num_replicas": 2, "health_check_period_s": 5}


async def _read(handle: Any, item: int) -> Any:
    async with handle.options(method_name="steps").stream(item) as stream:
        got = [step async for step in stream]
    assert [step for _, _, step in got] == [0, 1, 2]
    assert {each for each, _, _ in got} == {item}
    return item, got[0][1]


def _check_answer(item: int, outcome: Any) -> None:
    if outcome is LEFT or isinstance(outcome, ShoalError):
        return
    assert isinstance(outcome, tuple), repr(outcome)
    assert outcome[0] == item
    assert outcome[1] in BACKENDS


def _alike(first: Any, second: Any) -> bool:
    return first[0] == second[0]


def _number(tag: str) -> int:
    return int(tag.rpartition("#")[2])


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(PROGRAMS, marks=pytest.mark.slow),
        pytest.param(SOAK_PROGRAMS, marks=pytest.mark.soak),
    ],
)
def test_each_request_ends_as_it_should(backend: Any, count: int) -> None:
    @settings(
        max_examples=count,
        print_blob=count == SOAK_PROGRAMS,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs)
    def check(operations: list[Operation]) -> None:
        run_virtually(Program(operations).run, backend=backend)

    check()


MOST_TURNS = 400


class Code:
    def __init__(self) -> None:
        self.config: Any = None

    def reconfigure(self, config: Any) -> None:
        self.config = config

    def health(self) -> None: ...

    async def __call__(self, items: list[int]) -> list[Any]:
        return [self.config] * len(items)


CHANGES: dict[str, dict[str, Any]] = {
    "tell": {"user_config": 2},
    "replace": {"user_config": 2, "shared_memory_bytes": 7},
    "tell and scale": {"user_config": 2, "num_replicas": 3},
    "scale up": {"num_replicas": 3},
    "scale down": {"num_replicas": 1},
    "batch": {"max_batch_size": 3},
    "restart": {},
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
            wanted = before.changed(CHANGES[self._verb])
            outcome = await self._disturbed(controller)
            after = await controller.get_backend_config("b")
            if outcome == "left":
                assert after in (before, wanted)
            elif isinstance(outcome, Exception):
                assert isinstance(outcome, (ReplicaDied, ReplicaNotStarted)), outcome
                assert after == before
            else:
                assert after == wanted
            await anyio.sleep(100)
            await self._check(controller, after)
            if isinstance(outcome, Exception) or (after == before != wanted):
                assert self._stage.replicas[0] in self._stage.alive  # which nothing has killed

    async def _disturbed(self, controller: Controller) -> Any:
        outcome: Any = "left"

        async def call() -> None:
            nonlocal outcome
            with scope:
                try:
                    await self._change(controller)
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
        tags = sorted(replica.tag for replica in alive)
        assert sorted(replica.tag for replica in status.replicas) == tags
        assert len(alive) == config.num_replicas
        assert {replica.told[-1] for replica in alive} == {config.user_config}
        options = config.for_placement()
        assert all(replica.blueprint.placement_options == options for replica in alive)
        assert await (await controller.get_handle("e")).call(0) == config.user_config

    async def _change(self, controller: Controller) -> None:
        changes = CHANGES[self._verb]
        if self._verb == "restart":
            await controller.restart_backend("b")
        elif self._verb.startswith("scale"):
            await controller.scale_backend("b", **changes)
        else:
            await controller.update_backend_config("b", changes)


async def a_turn_later(*_: Any) -> None:
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    "happens", ["leaves", "old dies", "newest dies", "leaves, and old dies", "old and newest die"]
)
@pytest.mark.parametrize("verb", [*CHANGES])
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
