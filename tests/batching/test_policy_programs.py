"""Random programs with the options that form batches; `policy_model` says what is checked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import HealthCheck, given, settings

from batching.policy_model import run_policy_program
from batching.policy_programs import policy_programs
from shoal.testing import run_virtually

if TYPE_CHECKING:
    from batching.programs import Program

PROGRAMS = 1500
SOAK_PROGRAMS = int(os.environ.get("SHOAL_SOAK_PROGRAMS", "20000"))

quick = settings(
    max_examples=PROGRAMS // 4,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
long = settings(
    max_examples=SOAK_PROGRAMS // 4,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def run(backend: str, program: Program) -> None:
    trio._core._run._r.seed(program.seed)  # type: ignore[attr-defined] # its scheduler is random
    run_virtually(run_policy_program, program, backend=backend)


@pytest.mark.timeout(200)  # takes seconds; but when it fails Hypothesis looks for a short program
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@quick
@given(program=policy_programs(streams=False))
def test_calls_keep_the_promises(backend: str, program: Program) -> None:
    run(backend, program)


@pytest.mark.timeout(200)  # takes seconds; but when it fails Hypothesis looks for a short program
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@quick
@given(program=policy_programs(streams=True))
def test_streams_keep_the_promises(backend: str, program: Program) -> None:
    run(backend, program)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@long
@given(program=policy_programs(streams=False))
def test_many_calls_keep_the_promises(backend: str, program: Program) -> None:
    run(backend, program)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@long
@given(program=policy_programs(streams=True))
def test_many_streams_keep_the_promises(backend: str, program: Program) -> None:
    run(backend, program)
