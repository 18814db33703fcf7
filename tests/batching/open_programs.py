"""What a random program may do on open and continuous batches, and how Hypothesis draws it."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from batching.programs import Advance, Cancel, Configure, Op, Program

OPTIONS = {
    "max_batch_size": st.integers(1, 4),
    "max_concurrent_batches": st.integers(1, 3),
    "max_queued_requests": st.sampled_from([None, None, 0, 1, 3]),
    "overload": st.sampled_from(["reject", "wait"]),
    "stream_buffer": st.sampled_from([1, 2, 16]),
    "slow_reader_timeout_s": st.sampled_from([None, 1.0]),
    "cancel_abandoned": st.booleans(),
    "request_timeout_s": st.sampled_from([None, None, 2.0]),
    "drop_queued_on_shutdown": st.booleans(),
}
OPTIONS_OF_OPEN = {
    "batch_wait_timeout_s": st.sampled_from([0.0, 0.5, 1.0, 2.0, None]),
    "idle_timeout_s": st.sampled_from([None, None, 0.5]),
}
UNARY = st.sampled_from(["ok"] * 8 + ["fail", "raise", "return", "forget"])
LAST = st.sampled_from(["end"] * 8 + ["fail", "raise", "return", "forget"])


@dataclass(frozen=True)
class Calls:
    """Some callers come at once; on a stream each reads `reads` items, or all, with pauses."""

    count: int
    script: tuple[str, ...]
    run_s: float = 0.0
    timeout_s: float | None = None
    reads: int | None = None
    pause_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OpenProgram(Program):
    """A program on open or continuous batches."""

    fill: str
    steps: bool  # whether its handler works in steps; if not it has a task for each request
    costs: bool  # whether a request counts by its cost


def operations(calls: Any, options: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draws what is done to a batcher, from what may call it and the options that may change."""
    control = st.one_of(
        st.builds(Cancel, st.integers(0, 20)),
        st.builds(Advance, st.sampled_from([0.25, 0.5, 0.75, 1.0, 2.0])),
        st.just(Op.SETTLE),
        st.just(Op.HOLD),
        st.just(Op.RELEASE),
        st.builds(Configure, st.fixed_dictionaries({}, optional=options)),
        st.just(Op.FLUSH),
    )
    rare = st.sampled_from([Op.SETTLE] * 12 + [Op.FLUSH] * 5 + [Op.DRAIN, Op.CLOSE])
    # What shrinks goes towards the first: an operation that does nothing.
    return st.one_of(st.just(Op.SETTLE), calls, calls, calls, control, control, control, rare)


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
        timeout_s=st.sampled_from([None, None, 0.0, 0.5, 1.0]),
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
