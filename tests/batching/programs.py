"""What a random program may do: its operations, and how Hypothesis draws them.

All times are multiples of a quarter of a second, so that in virtual time things that are unlikely
to meet (a deadline, the end of a handler's run, the end of a window) meet all the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

QUARTERS = st.sampled_from([0.25, 0.5, 0.75, 1.0, 2.0])


@dataclass(frozen=True)
class Calls:
    """Some callers come at once; on a stream each reads `reads` items, or all, with pauses."""

    count: int
    # Unary: ok, slot (an exception in the slot), raise or short (of the whole batch). Streams: what
    # each step has for it, from item, skip, slot, raise, short; after the last step it ends.
    script: tuple[str, ...]
    run_s: float = 0.0
    timeout_s: float | None = None
    reads: int | None = None
    pause_s: float = 0.0


@dataclass(frozen=True)
class Map:
    """One caller maps over as many items as there are scripts."""

    scripts: tuple[str, ...]
    return_exceptions: bool
    timeout_s: float | None = None


@dataclass(frozen=True)
class Cancel:
    """One of the callers that wait is cancelled."""

    which: int


@dataclass(frozen=True)
class Advance:
    """Time passes."""

    by_s: float


@dataclass(frozen=True)
class Hold:
    """From now on handlers wait."""


@dataclass(frozen=True)
class Release:
    """Handlers wait no longer."""


@dataclass(frozen=True)
class Configure:
    """Options change."""

    changes: dict[str, Any]


@dataclass(frozen=True)
class Flush:
    """`Batcher.flush`."""


@dataclass(frozen=True)
class Drain:
    """`Batcher.drain`."""


@dataclass(frozen=True)
class Close:
    """`Batcher.aclose`, in a task of its own."""


@dataclass(frozen=True)
class Settle:
    """Every task runs until it waits; without it the next operation is in the same tick."""


@dataclass(frozen=True)
class Program:
    """A batcher's options, and what is done to it.

    Attributes:
        streams: Whether the handler is a generator.
        options: The batcher's options.
        ops: What is done, in order.
        releases: Whether handlers that are held at the end are released before closing.
        seed: The seed of trio's scheduler.
    """

    streams: bool
    options: dict[str, Any]
    ops: list[Any] = field(default_factory=list)
    releases: bool = True
    seed: int = 0


OPTIONS = {
    "max_batch_size": st.integers(1, 4),
    "batch_wait_timeout_s": st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, None]),
    "max_concurrent_batches": st.integers(1, 3),
    "max_queued_requests": st.sampled_from([None, None, 0, 1, 3]),
    "overload": st.sampled_from(["reject", "wait"]),
    "stream_buffer": st.sampled_from([1, 2, 16]),
    "slow_reader_timeout_s": st.sampled_from([None, 1.0]),
    "cancel_abandoned": st.booleans(),
    "handler_timeout_s": st.sampled_from([None, None, 1.0]),
    "request_timeout_s": st.sampled_from([None, None, 2.0]),
    "isolate_errors": st.booleans(),
    "drop_queued_on_shutdown": st.booleans(),
}
DEADLINES = st.sampled_from([None, None, 0.0, 0.5, 1.0])
UNARY = st.sampled_from(["ok"] * 6 + ["slot", "slot", "raise", "short"])
STEPS = st.sampled_from(["item"] * 6 + ["skip", "skip", "slot", "raise", "short"])

_unary = st.one_of(
    st.builds(
        Calls,
        st.integers(1, 5),
        st.tuples(UNARY),
        run_s=st.sampled_from([0.0, 0.0, 0.25, 1.0]),
        timeout_s=DEADLINES,
    ),
    st.builds(Map, st.lists(UNARY, min_size=1, max_size=6).map(tuple), st.booleans(), DEADLINES),
)
_streamed = st.builds(
    Calls,
    st.integers(1, 4),
    st.lists(STEPS, max_size=5).map(tuple),
    run_s=st.sampled_from([0.0, 0.0, 0.25, 1.0]),
    timeout_s=DEADLINES,
    reads=st.sampled_from([None, None, None, 0, 1, 3]),
    pause_s=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
)


def operations(calls: Any, options: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draws what is done to a batcher, from what may call it and the options that may change."""
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
    return st.one_of(st.just(Settle()), calls, calls, calls, control, control, control, rare)


@st.composite
def programs(draw: st.DrawFn, *, streams: bool) -> Program:
    """Draws a program."""
    ops = st.lists(operations(_streamed if streams else _unary, OPTIONS), min_size=12, max_size=30)
    return Program(
        streams,
        draw(
            st.fixed_dictionaries({"graceful_shutdown_timeout_s": st.just(5.0)}, optional=OPTIONS)
        ),
        draw(ops),
        draw(st.booleans()),
        draw(st.integers(0, 99)),
    )
