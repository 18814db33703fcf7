"""Faults under load, such as kills: each call ends once, and only those aimed at see errors."""

import logging
import random
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import settle
from conformance.replica_scenes import living_tasks
from serving.failing_code import Mortal, Noting
from serving.fault_program import PROCESSES, TASKS, FaultProgram, Footprint, shoot
from serving.scenes import deployed
from shoal.core.replicas import life
from shoal.errors import ReplicaDied
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import ask
from time_limits import HANG_S

pytestmark = pytest.mark.slow


MOST = 4
CALLERS = 12


@pytest.fixture(autouse=True)
def restarts_wait_little(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What is killed again and again would wait for half a minute each time."""
    monkeypatch.setattr(life, "LONGEST_S", 0.02)
    # The log of a test holds on to errors, and these to what they are about.
    caplog.set_level(logging.CRITICAL, logger="shoal")


@asynccontextmanager
async def nothing_is_left() -> AsyncGenerator[None]:
    footprint, tasks = Footprint(), living_tasks()
    yield
    await settle()
    assert living_tasks() == tasks
    footprint.check()


async def run_program(*program: Any, **options: Any) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(life, "LONGEST_S", 0.1)
        async with nothing_is_left():
            await FaultProgram(*program, **options).run()


@pytest.mark.parametrize(
    ("seed", "faults"),
    [(0, 20), *(pytest.param(seed, 60, marks=pytest.mark.soak) for seed in range(100, 120))],
)
async def test_faults_of_tasks_are_seen_by_those_they_are_aimed_at(seed, faults, tmp_path):
    await run_program(seed, faults, TASKS, tmp_path / "ledger")


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        pytest.param(1, 4, marks=pytest.mark.one_loop),
        pytest.param(7, 300, marks=[pytest.mark.soak, pytest.mark.timeout(290)]),
    ],
)
async def test_faults_of_processes_are_seen_by_those_they_are_aimed_at(seed, faults, tmp_path):
    await run_program(seed, faults, PROCESSES, tmp_path / "ledger", pause_s=0.1)


class Killing:
    """Kills the replicas of a backend, one after the other, while callers call it."""

    def __init__(self, controller: Controller, kills: int) -> None:
        self.asked = 0
        self.answered: list[int] = []
        self.failed: list[tuple[str, str | None]] = []
        self._controller = controller
        self._kills = kills
        self._random = random.Random(kills)
        self._killed: set[str] = set()
        self._is_over = False

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(CALLERS):
                tasks.start_soon(self._call_on)
            for _ in range(self._kills):
                with anyio.fail_after(HANG_S):
                    await self._kill()
            with anyio.fail_after(HANG_S):
                while self._controller.status_now().backends["b"].state != "ready":  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            self._is_over = True

    async def _kill(self) -> None:
        """Kills a replica that takes work, once a call was answered since the last kill.

        Else none might live for long enough to answer any.
        """
        answered = len(self.answered)
        while len(self.answered) == answered:  # noqa: ASYNC110
            await anyio.sleep(0.001)
        while True:
            await anyio.sleep(self._random.uniform(0, 0.005))
            ready = [kept.replica for kept in self._controller.backends["b"].supervisor.ready]
            alive = [replica for replica in ready if replica.tag not in self._killed]
            if alive and shoot(chosen := self._random.choice(alive)):
                self._killed.add(chosen.tag)
                return

    async def _call_on(self) -> None:
        handle = await self._controller.get_handle("e")
        while not self._is_over:
            await anyio.sleep(self._random.uniform(0, 0.02))
            number = self.asked
            self.asked += 1
            try:
                with anyio.fail_after(HANG_S):
                    assert await handle.call(number) == number
            except ReplicaDied as death:
                self.failed.append((death.replica, death.signal))
            else:
                self.answered.append(number)


async def kill(kills: int, ledger: Path, *, replicas: int, retries: int) -> Killing:
    config = {"placement": "process", "num_replicas": replicas, "retries": retries}
    config["max_batch_size"] = MOST
    async with nothing_is_left():
        async with Controller() as controller:
            await deployed(controller, "b", Noting, str(ledger), config=config, endpoint="e")
            killing = Killing(controller, kills)
            await killing.run()
            status = controller.status_now().backends["b"]
        assert status.deaths == status.restarts == kills
        assert (status.queued, status.ongoing) == (0, 0)
        assert len(status.replicas) == replicas
        assert len(killing.answered) + len(killing.failed) == killing.asked
        del controller, killing._controller, status
    return killing


def ran(ledger: Path) -> list[int]:
    return [int(line) for line in ledger.read_text().split()]


MANY = [pytest.mark.soak, pytest.mark.timeout(290)]


@pytest.mark.real_time
@pytest.mark.parametrize("kills", [2, pytest.param(400, marks=MANY)])
async def test_replicas_that_are_killed_fail_their_batch_alone(kills: int, tmp_path: Path) -> None:
    killing = await kill(kills, tmp_path / "ledger", replicas=2, retries=0)
    assert killing.answered
    # A batch at a time, of so many at most, and each of its callers is told who had it.
    by_replica: dict[str, int] = {}
    for replica, how in killing.failed:
        assert how == "SIGKILL"
        assert re.fullmatch(r"b#\d+", replica)
        by_replica[replica] = by_replica.get(replica, 0) + 1
    assert max(by_replica.values(), default=0) <= MOST
    assert len(by_replica) <= kills
    items = ran(tmp_path / "ledger")
    assert len(items) == len(set(items))
    assert set(killing.answered) <= set(items)


@pytest.mark.real_time
@pytest.mark.one_loop
@pytest.mark.parametrize("kills", [1, pytest.param(100, marks=MANY)])
async def test_nobody_sees_a_kill_where_batches_may_run_again(kills: int, tmp_path: Path) -> None:
    killing = await kill(kills, tmp_path / "ledger", replicas=2, retries=kills)
    assert killing.failed == []
    assert set(killing.answered) <= set(ran(tmp_path / "ledger"))


@pytest.mark.real_time
async def test_readiness_tells_of_a_lone_worker_that_died_and_recovers(tmp_path: Path) -> None:
    flag = tmp_path / "no replica can start"
    app = shoal.App()
    app.backend("b", Mortal, str(flag), placement="process")
    app.route("e", backend="b", path="/e")
    async with app.lifespan():
        await until_readiness_is(200, app)
        flag.touch()
        died = await ask(app, "/e", "exits")
        assert (died.status, died.json()["type"]) == (503, "urn:shoal:problem:replica-died")
        assert died.headers["retry-after"]
        await until_readiness_is(503, app)
        flag.unlink()
        await until_readiness_is(200, app)
        assert (await ask(app, "/e", "lives")).status == 200


async def until_readiness_is(status: int, app: shoal.App) -> None:
    with anyio.fail_after(HANG_S):
        while (await ask(app, "/-/readyz", method="GET")).status != status:  # noqa: ASYNC110
            await anyio.sleep(0.005)
