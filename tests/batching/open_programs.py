"""What a random program may do on open and continuous batches, and how Hypothesis draws it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from batching.programs import DEADLINES, Calls, Program, operations
from batching.programs import OPTIONS as OPTIONS_OF_CLOSED

NOT_OF_THESE = ("batch_wait_timeout_s", "handler_timeout_s", "isolate_errors")
OPTIONS = {name: given for name, given in OPTIONS_OF_CLOSED.items() if name not in NOT_OF_THESE}
OPTIONS_OF_OPEN = {
    "batch_wait_timeout_s": st.sampled_from([0.0, 0.5, 1.0, 2.0, None]),
    "idle_timeout_s": st.sampled_from([None, None, 0.5]),
}
UNARY = st.sampled_from(["ok"] * 8 + ["fail", "raise", "return", "forget"])
LAST = st.sampled_from(["end"] * 8 + ["fail", "raise", "return", "forget"])


@dataclass(frozen=True, kw_only=True)
class OpenProgram(Program):
    """A program on open or continuous batches.

    Attributes:
        fill: How its batches are filled.
        steps: Whether its handler works in steps; if not it has a task for each request.
        costs: Whether a request counts by its cost.
    """

    fill: str
    steps: bool
    costs: bool


@st.composite
def open_programs(draw: st.DrawFn, *, streams: bool) -> OpenProgram:
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
        timeout_s=DEADLINES,
        reads=st.sampled_from([None, None, None, 0, 1, 3]),
        pause_s=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    )
    grace = {"graceful_shutdown_timeout_s": st.just(5.0)}
    return OpenProgram(
        fill=fill,
        streams=streams,
        steps=draw(st.booleans()),
        costs=draw(st.sampled_from([False, False, True])),
        options=draw(st.fixed_dictionaries({**grace, **size}, optional=first)),
        ops=draw(st.lists(operations(calls, options), min_size=8, max_size=30)),
        releases=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )
