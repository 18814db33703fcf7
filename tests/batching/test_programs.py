"""Random programs against a plain model of the promises; `program_model` says what is checked."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import trio
from hypothesis import HealthCheck, given, settings

from batching.program_model import run_program
from batching.programs import (
    Advance,
    Calls,
    Cancel,
    Close,
    Configure,
    Hold,
    Map,
    Program,
    Release,
    Settle,
    programs,
)
from shoal.testing import run_virtually

PROGRAMS = 500
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


FIVE = Calls(5, ("ok",))

# Short programs that broke a promise once, by the promise.
FOUND: dict[str, Program] = {
    "a map is answered after its last batch": Program(
        False, {"max_batch_size": 2}, [Map(("slot", "slot", "ok", "ok"), True), Advance(1)]
    ),
    "an item is not failed for one whose caller has left": Program(
        False,
        {"isolate_errors": True, "batch_wait_timeout_s": 0.5},
        [Hold(), Calls(1, ("raise",)), Settle(), Calls(1, ("ok",)), Advance(1), Cancel(0)],
    ),
    "fewer slots make less room": Program(
        False,
        {"max_batch_size": 2, "max_queued_requests": 0, "max_concurrent_batches": 3},
        [Hold(), Settle(), Configure({"max_concurrent_batches": 1}), Settle(), FIVE, Settle()],
    ),
    "parked callers are not overtaken": Program(
        False,
        {
            "max_batch_size": 1,
            "max_queued_requests": 0,
            "max_concurrent_batches": 3,
            "overload": "wait",
        },
        [
            *(Hold(), Calls(3, ("ok",)), Settle(), Map(("ok", "ok"), False), Settle()),
            *(Cancel(13), Release(), Calls(4, ("ok",)), Settle()),
        ],
    ),
    "a deadline at the end of a run is counted once": Program(
        False, {}, [Calls(3, ("ok",), run_s=1.0, deadline_s=1.0), Advance(2)]
    ),
    "a deadline at the end of a window is counted once": Program(
        False, {"batch_wait_timeout_s": 1.0}, [Map(("ok", "ok"), True, 1.0), Advance(2)]
    ),
    "more slots help while closing": Program(
        False,
        {"max_batch_size": 1},
        [
            *[Settle()] * 7,
            Close(),
            Calls(1, ("ok",)),
            Calls(2, ("ok",), run_s=0.25),
            Settle(),
            Configure({"max_concurrent_batches": 2}),
        ],
        releases=False,
    ),
    "options can change after closing": Program(
        False, {}, [Calls(1, ("ok",)), Close(), Advance(1), Configure({"max_batch_size": 3})]
    ),
}


def run(backend: str, program: Program) -> None:
    trio._core._run._r.seed(program.seed)  # type: ignore[attr-defined] # its scheduler is random
    run_virtually(run_program, program, backend=backend)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("promise", FOUND)
def test_what_was_found_once(backend: str, promise: str) -> None:
    for seed in range(4):
        run(backend, replace(FOUND[promise], seed=seed))


@pytest.mark.timeout(200)  # takes seconds; but when it fails Hypothesis looks for a short program
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@quick
@given(program=programs(streams=False))
def test_calls_keep_the_promises(backend: str, program: Program) -> None:
    run(backend, program)


@pytest.mark.timeout(200)  # takes seconds; but when it fails Hypothesis looks for a short program
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@quick
@given(program=programs(streams=True))
def test_streams_keep_the_promises(backend: str, program: Program) -> None:
    run(backend, program)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@long
@given(program=programs(streams=False))
def test_many_calls_keep_the_promises(backend: str, program: Program) -> None:
    run(backend, program)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@long
@given(program=programs(streams=True))
def test_many_streams_keep_the_promises(backend: str, program: Program) -> None:
    run(backend, program)
