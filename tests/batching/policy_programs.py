"""What a random program may do with every option that forms batches, and how Hypothesis draws it.

It is `programs` once more, for lines whose requests are not all alike. Only a few of the options
are drawn at a time, because a program in which everything is special shows little; `Configure`
goes from one such set to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

import shoal
from batching.programs import (
    QUARTERS,
    Advance,
    Cancel,
    Close,
    Configure,
    Drain,
    Flush,
    Hold,
    Program,
    Release,
    Settle,
)

LEVELS = 3


class Broken(Exception):
    """What a function of one item raises."""


class Padding:
    """What fills a batch up."""

    def __init__(self, cost: float) -> None:
        self.cost = cost


@dataclass(frozen=True)
class Shape:
    """What an item is like; no cost or key means that the function which says it raises."""

    # ok, slot (an exception in the slot), raise or short (of the whole batch), join (which raises)
    kind: str = "ok"
    cost: float | None = 1
    key: str | None = "a"
    split: str = "ok"  # or: raise, empty, large


@dataclass(frozen=True)
class Asks:
    """What callers ask for beside their items, and how they read a stream."""

    level: int | None = None
    deadline_s: float | None = None
    queue_timeout_s: float | None = None
    scope_s: float | None = None  # the deadline of the caller's own scope
    script: tuple[str, ...] = ()
    run_s: float = 0.0
    reads: int | None = None
    pause_s: float = 0.0
    early: bool = False  # made when the operation comes, awaited when its task runs


@dataclass(frozen=True)
class Calls:
    """Some callers come at once."""

    shapes: tuple[Shape, ...]
    asks: Asks = Asks()


@dataclass(frozen=True)
class Map:
    """One caller maps over some items."""

    shapes: tuple[Shape, ...]
    return_exceptions: bool
    asks: Asks = Asks()


# The functions of one item, and of one batch


def cost_of(item: Any) -> float:
    if item.cost is None:
        raise Broken("cost", item.number)
    return float(item.cost)


def key_of(item: Any) -> str:
    if item.key is None:
        raise Broken("key", item.number)
    return str(item.key)


def split_item(item: Any, room: float) -> list[Any]:
    parts: list[Any] = item.divided(room)
    return parts


def join_results(results: list[Any]) -> Any:
    """Joins what belongs together, which is all of one item, in order."""
    kinds = {(what, number) for what, number, _low, _high in results}
    assert len(kinds) == 1, "results of several items were joined"
    for (*_, end), (*_, start, _high) in pairwise(results):
        assert end == start, "parts are missing, or in another order"
    what, number, low, _high = results[0]
    if what == "join":
        raise Broken("join", number)
    return what, number, low, results[-1][3]


def pad_by_cost(items: list[Any], size: int) -> list[Any]:
    return [*items, Padding(size - sum(item.cost for item in items))]


def pad_by_number(items: list[Any], size: int) -> list[Any]:
    return items + [Padding(1) for _ in range(size - len(items))]


# Options

WAITS = st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, None])
QUEUE_POLICY = st.builds(
    shoal.QueuePolicy,
    max_queued_requests=st.sampled_from([None, None, 1, 2]),
    timeout_s=st.sampled_from([None, 0.0, 0.5, 1.0]),
    timeout_action=st.sampled_from(["reject", "delay"]),
)
WINDOWED_QUEUE_POLICY = st.builds(
    shoal.QueuePolicy,
    timeout_s=st.sampled_from([None, None, 0.5]),
    timeout_action=st.sampled_from(["reject", "delay"]),
    batch_wait_timeout_s=st.sampled_from([None, 0.0, 0.5, 2.0]),
)
TARGET = st.sampled_from([shoal.LatencyTarget(p99_s=0.5), shoal.LatencyTarget(p99_s=4.0)])
FEATURES = (
    "idle",
    "bound",
    "bound",
    "costs",
    "costs",
    "split",
    "buckets",
    "allowed",
    "preferred",
    "levels",
    "levels",
    "isolated levels",
    "queue policies",
    "windows",
    "deadline order",
    "scope deadlines",
    "refusing",
    "adaptive",
    "isolated errors",
    "time-outs",
    "abandoned",
)
PLAIN: dict[str, Any] = {
    "idle_timeout_s": None,
    "max_queued_requests": None,
    "overload": "reject",
    "batch_size_fn": None,
    "bucket_by": None,
    "allowed_batch_sizes": None,
    "padding": "up",
    "pad": None,
    "preferred_batch_sizes": None,
    "priority_levels": 1,
    "default_priority": None,
    "priority_aging_s": 10.0,
    "priority_mixing": "merge",
    "queue_policies": {},
    "default_queue_policy": None,
    "order": "arrival",
    "use_scope_deadline": False,
    "refuse_late": False,
    "split": None,
    "join": None,
    "adaptive": None,
    "isolate_errors": False,
    "handler_timeout_s": None,
    "request_timeout_s": None,
    "cancel_abandoned": True,
}


@st.composite
def option_sets(draw: st.DrawFn, *, streams: bool) -> dict[str, Any]:
    """Draws options that go together; all that any set names, so that one can follow another."""
    features = set(draw(st.lists(st.sampled_from(FEATURES), max_size=6)))
    most = draw(st.integers(1, 5))
    sizes = st.lists(st.integers(1, most), min_size=1, max_size=3, unique=True).map(sorted)
    options = PLAIN | {
        "max_batch_size": most,
        "batch_wait_timeout_s": draw(WAITS),
        "max_concurrent_batches": draw(st.integers(1, 3)),
        "stream_buffer": draw(st.sampled_from([1, 2, 16])),
        "slow_reader_timeout_s": draw(st.sampled_from([None, 1.0])),
        "isolate_errors": "isolated errors" in features,
        "cancel_abandoned": "abandoned" not in features,
        "use_scope_deadline": "scope deadlines" in features,
        "refuse_late": "refusing" in features,
    }
    if "idle" in features:
        options["idle_timeout_s"] = draw(st.sampled_from([0.25, 0.5, 1.0]))
    if "costs" in features or "split" in features:
        options["batch_size_fn"] = cost_of
    if "split" in features and not streams:
        options |= {"split": split_item, "join": join_results}
    if "buckets" in features:
        options["bucket_by"] = key_of
    if "levels" in features or "isolated levels" in features:
        options["priority_levels"] = draw(st.integers(2, LEVELS))
        options["priority_aging_s"] = draw(st.sampled_from([None, 1.0, 10.0]))
        options["default_priority"] = draw(st.sampled_from([None, 1, 2]))
        options["priority_mixing"] = "isolate" if "isolated levels" in features else "merge"
    if "bound" in features:
        bound = draw(st.sampled_from([0, 1, 2, 4]))
        overloads = ["wait", "reject"] + ["shed_oldest", "shed_lowest"] * (bound > 0)
        options["max_queued_requests"] = bound
        options["overload"] = draw(st.sampled_from(overloads))
    if "queue policies" in features or "windows" in features:
        policy = QUEUE_POLICY if "queue policies" in features else WINDOWED_QUEUE_POLICY
        levels = st.integers(1, options["priority_levels"])
        options["queue_policies"] = draw(st.dictionaries(levels, policy))
        options["default_queue_policy"] = draw(st.none() | policy)
    if "deadline order" in features:
        options["order"] = "deadline"
    if "allowed" in features:
        options["allowed_batch_sizes"] = tuple(sorted({*draw(sizes), most}))
        options["padding"] = draw(st.sampled_from(["up", "down", "cost"]))
        pad = (
            pad_by_cost
            if options["batch_size_fn"]
            else draw(st.sampled_from([None, pad_by_number]))
        )
        options["pad"] = pad
    elif "preferred" in features:
        options["preferred_batch_sizes"] = tuple(draw(sizes))
    elif "adaptive" in features and "windows" not in features:
        options |= {
            "adaptive": draw(TARGET),
            "batch_wait_timeout_s": 0.0,
            "idle_timeout_s": None,
        }
    if "time-outs" in features:
        options["handler_timeout_s"] = draw(st.sampled_from([None, 1.0]))
        options["request_timeout_s"] = draw(st.sampled_from([None, 1.0, 2.0]))
    return options


@st.composite
def some_options(draw: st.DrawFn, *, streams: bool) -> dict[str, Any]:
    """Draws a few options, which may not go with those in force; then nothing changes."""
    options = draw(option_sets(streams=streams))
    names = draw(st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=4))
    return {name: options[name] for name in names}


# Operations

SHAPES = st.builds(
    Shape,
    st.sampled_from(["ok"] * 8 + ["slot", "raise", "short", "join"]),
    st.sampled_from([1, 1, 1, 2, 2, 3, 0.5, 0, 7] * 2 + [None]),
    st.sampled_from(["a", "a", "a", "b", "c"] * 4 + [None]),
    st.sampled_from(["ok"] * 12 + ["raise", "empty", "large"]),
)
SOME_TIME = st.sampled_from([None, None, None, 0.5, 1.0, 2.0])
STEPS = st.sampled_from(["item"] * 6 + ["skip", "slot", "raise", "short"])


@st.composite
def asks(draw: st.DrawFn, *, streams: bool) -> Asks:
    """Draws what callers ask for."""
    if streams:
        return Asks(
            draw(st.sampled_from([None, None, 1, 2, 3])),
            draw(SOME_TIME),
            draw(st.sampled_from([None, None, None, 0.0, 0.5])),
            draw(st.sampled_from([None, None, None, 1.0])),
            draw(st.lists(STEPS, max_size=3).map(tuple)),
            draw(st.sampled_from([0.0, 0.0, 0.25, 1.0])),
            draw(st.sampled_from([None, None, None, 0, 1])),
            draw(st.sampled_from([0.0, 0.0, 0.5, 2.0])),
            early=draw(st.booleans()),
        )
    return Asks(
        draw(st.sampled_from([None, None, 1, 2, 3])),
        draw(st.sampled_from([None, None, None, 0.0, 0.5, 1.0, 2.0])),
        draw(st.sampled_from([None, None, None, 0.0, 0.5])),
        draw(st.sampled_from([None, None, None, 1.0])),
        run_s=draw(st.sampled_from([0.0, 0.0, 0.25, 1.0])),
        early=draw(st.booleans()),
    )


@st.composite
def policy_programs(draw: st.DrawFn, *, streams: bool) -> Program:
    """Draws a program."""
    some = st.lists(SHAPES, min_size=1, max_size=4).map(tuple)
    calls: st.SearchStrategy[Any] = st.builds(Calls, some, asks(streams=streams))
    if not streams:
        mapping = st.builds(Map, some, st.booleans(), asks(streams=False))
        calls = st.one_of(calls, calls, mapping)
    control = st.one_of(
        st.builds(Cancel, st.integers(0, 20)),
        st.builds(Advance, QUARTERS),
        st.builds(Advance, QUARTERS),
        st.just(Settle()),
        st.just(Hold()),
        st.just(Release()),
        st.just(Flush()),
        st.builds(Configure, option_sets(streams=streams)),
        st.builds(Configure, some_options(streams=streams)),
    )
    rare = st.sampled_from([Settle()] * 14 + [Flush()] * 4 + [Drain(), Close()])
    # What shrinks goes towards the first: an operation that does nothing.
    op = st.one_of(st.just(Settle()), calls, calls, calls, control, control, control, rare)
    return Program(
        streams,
        {"graceful_shutdown_timeout_s": 5.0} | draw(option_sets(streams=streams)),
        draw(st.lists(op, min_size=8, max_size=25)),
        draw(st.booleans()),
        draw(st.integers(0, 99)),
    )
