"""Under any schedule of faults each caller ends once, and only those aimed at see errors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from batching.scenes import settle
from conformance.replica_scenes import living_tasks
from serving.fault_program import PROCESSES, TASKS, FaultProgram, Footprint
from shoal.core.replicas import restarts

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(autouse=True)
def restarts_wait_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shot again and again would wait for half a minute each time."""
    monkeypatch.setattr(restarts, "_MAX_S", 0.1)


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


async def test_faults_of_tasks_are_seen_by_those_they_are_aimed_at(tmp_path: Path) -> None:
    await run_and_leave_nothing(0, 20, TASKS, tmp_path / "ledger")


@pytest.mark.one_loop
@pytest.mark.real_time
@pytest.mark.timeout(60)
async def test_faults_of_processes_are_seen_by_those_they_are_aimed_at(tmp_path: Path) -> None:
    await run_and_leave_nothing(1, 4, PROCESSES, tmp_path / "ledger", pause_s=0.1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
async def test_faults_of_tasks_are_seen_by_those_they_are_aimed_at_for_long(
    seed: int, tmp_path: Path
) -> None:
    await run_and_leave_nothing(seed, 60, TASKS, tmp_path / "ledger")


@pytest.mark.soak
@pytest.mark.real_time
@pytest.mark.timeout(290)
async def test_300_faults_are_seen_by_those_they_are_aimed_at(tmp_path: Path) -> None:
    await run_and_leave_nothing(7, 300, PROCESSES, tmp_path / "ledger", pause_s=0.1)
