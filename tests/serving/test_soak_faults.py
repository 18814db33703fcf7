"""Under any schedule of faults each caller ends once, and only those aimed at see errors."""

import logging
from typing import Any

import pytest

from batching.scenes import settle
from conformance.replica_scenes import living_tasks
from serving.fault_program import PROCESSES, TASKS, FaultProgram, Footprint
from shoal.core.replicas import life

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def restarts_wait_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shot again and again would wait for half a minute each time."""
    monkeypatch.setattr(life, "LONGEST_S", 0.1)


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The log of a test holds on to errors, and these to what they are about."""
    caplog.set_level(logging.CRITICAL, logger="shoal")


async def run_and_leave_nothing(*program: Any, **options: Any) -> None:
    footprint, tasks = Footprint(), living_tasks()
    await FaultProgram(*program, **options).run()
    await settle()
    assert living_tasks() == tasks
    footprint.check()


@pytest.mark.parametrize(
    ("seed", "faults"),
    [(0, 20), *(pytest.param(seed, 60, marks=pytest.mark.soak) for seed in range(100, 120))],
)
async def test_faults_of_tasks_are_seen_by_those_they_are_aimed_at(seed, faults, tmp_path):
    await run_and_leave_nothing(seed, faults, TASKS, tmp_path / "ledger")


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        pytest.param(1, 4, marks=pytest.mark.one_loop),
        pytest.param(7, 300, marks=[pytest.mark.soak, pytest.mark.timeout(290)]),
    ],
)
async def test_faults_of_processes_are_seen_by_those_they_are_aimed_at(seed, faults, tmp_path):
    await run_and_leave_nothing(seed, faults, PROCESSES, tmp_path / "ledger", pause_s=0.1)
