"""Whatever a backend's code does, and whatever is done to it meanwhile, its neighbours are well."""

import os
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from serving.hostile_program import CODE, Program, operations

PROGRAMS = 5
SOAK_PROGRAMS = int(os.environ.get("SHOAL_SOAK_HOSTILE", "1000"))

BROKEN = [("mood", "panic", "init"), ("call", "exit", ""), ("call", "well", "")]

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("code", [*CODE])
@pytest.mark.parametrize(
    "programs",
    [PROGRAMS, pytest.param(SOAK_PROGRAMS, marks=[pytest.mark.soak, pytest.mark.timeout(0)])],
)
def test_hostile_code_harms_itself_alone(backend: str, code: str, programs: int) -> None:
    is_soak = programs == SOAK_PROGRAMS

    @settings(
        max_examples=programs,
        print_blob=is_soak,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @example([*BROKEN, ("verb", "scale down", "waits")])
    @example([*BROKEN, ("verb", "update", "waits")])
    @given(st.lists(operations, min_size=4, max_size=30 if is_soak else 12))
    def check(todo: list[Any]) -> None:
        anyio.run(Program(code, todo).run, backend=backend)

    check()
