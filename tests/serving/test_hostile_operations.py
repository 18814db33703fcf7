"""Whatever a backend's code does, and whatever is done to it meanwhile, its neighbours are well."""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from serving.hostile_program import CODE, Operation, Program, operations

PROGRAMS = 5
SOAK_PROGRAMS = int(os.environ.get("SHOAL_SOAK_HOSTILE", "1000"))

BROKEN = [("mood", "panic", "init"), ("call", "exit", ""), ("call", "well", "")]

pytestmark = pytest.mark.real_time


def run(backend: str, code: str, todo: list[Operation]) -> None:
    anyio.run(Program(code, todo).run, backend=backend)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("code", [*CODE])
def test_hostile_code_harms_itself_alone(backend: str, code: str) -> None:
    @settings(
        max_examples=PROGRAMS,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @example([*BROKEN, ("verb", "scale down", "waits")])
    @example([*BROKEN, ("verb", "update", "waits")])
    @given(st.lists(operations, min_size=4, max_size=12))
    def check(todo: list[Any]) -> None:
        run(backend, code, todo)

    check()


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("code", [*CODE])
def test_hostile_code_harms_itself_alone_for_long(backend: str, code: str) -> None:
    @settings(
        max_examples=SOAK_PROGRAMS,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(operations, max_size=30))
    def check(todo: list[Any]) -> None:
        run(backend, code, todo)

    check()
