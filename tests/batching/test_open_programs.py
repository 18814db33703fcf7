"""Random programs on open and continuous batches; `open_program_model` says what is checked."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batching.open_program_model import OpenProgram, run_open_program
from batching.programs import (
    DEADLINES,
    QUARTERS,
    Advance,
    Calls,
    Cancel,
    Close,
    Configure,
    Drain,
    Flush,
    Hold,
    Release,
    Settle,
)
from shoal.testing import run_virtually

PROGRAMS = 150
SOAK_PROGRAMS = int(os.environ.get("SHOAL_SOAK_PROGRAMS", "20000"))

quick = settings(
    max_examples=PROGRAMS,
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

OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "max_batch_size": st.integers(1, 4),
    "max_concurrent_batches": st.integers(1, 3),
    "max_queued_requests": st.sampled_from([None, None, 0, 1, 3]),
    "overload": st.sampled_from(["reject", "wait"]),
    "stream_buffer": st.sampled_from([1, 2, 16]),
    "slow_reader_timeout_s": st.sampled_from([None, 1.0]),
    "cancel_abandoned": st.booleans(),
    "request_timeout_s": st.sampled_from([None, None, 2.0]),
}
OPTIONS_OF_OPEN = {
    "batch_wait_timeout_s": st.sampled_from([0.0, 0.5, 1.0, 2.0, None]),
    "idle_timeout_s": st.sampled_from([None, None, 0.5]),
}
UNARY = st.sampled_from(["ok"] * 8 + ["fail", "raise", "return", "forget"])
LAST = st.sampled_from(["end"] * 8 + ["fail", "raise", "return", "forget"])


@st.composite
def programs(draw: st.DrawFn, *, streams: bool) -> OpenProgram:
    """Draws a program."""
    fill = draw(st.sampled_from(["open", "continuous"]))
    options = {**OPTIONS, **(OPTIONS_OF_OPEN if fill == "open" else {})}
    first = {name: kind for name, kind in options.items() if name != "max_batch_size"}
    size = {"max_batch_size": OPTIONS["max_batch_size"]}
    scripts = (
        st.tuples(st.lists(st.just("item"), max_size=4), LAST).map(lambda s: (*s[0], s[1]))
        if streams
        else st.tuples(UNARY)
    )
    calls = st.builds(
        Calls,
        st.integers(1, 5),
        scripts,
        run_s=st.sampled_from([0.0, 0.0, 0.25, 1.0]),
        deadline_s=DEADLINES,
        reads=st.sampled_from([None, None, None, 0, 1, 3]),
        pause_s=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    )
    control = st.one_of(
        st.builds(Cancel, st.integers(0, 20)),
        st.builds(Advance, QUARTERS),
        st.builds(Advance, QUARTERS),
        st.just(Settle()),
        st.just(Hold()),
        st.just(Release()),
        st.builds(Configure, st.fixed_dictionaries({}, optional=options)),
        st.just(Flush()),
    )
    rare = st.sampled_from([Settle()] * 12 + [Flush()] * 5 + [Drain(), Close()])
    # What shrinks goes towards the first: an operation that does nothing.
    op = st.one_of(st.just(Settle()), calls, calls, calls, control, control, control, rare)
    grace = {"graceful_shutdown_timeout_s": st.just(5.0)}
    return OpenProgram(
        fill=fill,
        streams=streams,
        steps=draw(st.booleans()),
        costs=draw(st.sampled_from([False, False, True])),
        options=draw(st.fixed_dictionaries({**grace, **size}, optional=first)),
        ops=draw(st.lists(op, min_size=8, max_size=30)),
        releases=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


def run(backend: str, program: OpenProgram) -> None:
    trio._core._run._r.seed(program.seed)  # type: ignore[attr-defined] # its scheduler is random
    run_virtually(run_open_program, program, backend=backend)


@pytest.mark.timeout(200)  # takes seconds; but when it fails Hypothesis looks for a short program
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@quick
@given(program=programs(streams=False))
def test_calls_keep_the_promises(backend: str, program: OpenProgram) -> None:
    run(backend, program)


@pytest.mark.timeout(200)  # takes seconds; but when it fails Hypothesis looks for a short program
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@quick
@given(program=programs(streams=True))
def test_streams_keep_the_promises(backend: str, program: OpenProgram) -> None:
    run(backend, program)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@long
@given(program=programs(streams=False))
def test_many_calls_keep_the_promises(backend: str, program: OpenProgram) -> None:
    run(backend, program)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@long
@given(program=programs(streams=True))
def test_many_streams_keep_the_promises(backend: str, program: OpenProgram) -> None:
    run(backend, program)
