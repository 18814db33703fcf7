"""What a random program may do with every option that forms batches, and how Hypothesis draws it.

Only a few of the options are drawn at a time, because a program in which everything is special
shows little; `Configure` goes from one such set to another.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import strategies as st

import shoal
from batching.program_world import Advance, Cancel, Configure, Op, Program
from shoal.core.options.option import SAME
from shoal.core.options.options import OPTIONS

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

    # ok, slot (an exception in the slot), raise or short (of the whole batch), join (which raises),
    # later (the first runs raise `RetryLater`)
    kind: str = "ok"
    cost: float | None = 1
    key: str | None = "a"
    split: str = "ok"  # or: raise, empty, large


@dataclass(frozen=True)
class Asks:
    """What callers ask for beside their items, and how they read a stream."""

    level: int | None = None
    timeout_s: float | None = None
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

FEATURES = (
    *("idle", "bound", "costs", "split", "buckets", "allowed", "preferred", "levels"),
    *("isolated levels", "queue policies", "windows", "deadline order", "scope deadlines"),
    *("refusing", "adaptive", "isolated errors", "time-outs", "abandoned", "limit", "limit"),
)
NOT_DRAWN = {"policy", "dedupe", "cache", "open", "regather", "graceful_shutdown_timeout_s"}
PLAIN = {name: getattr(shoal.BatchOptions(), name) for name in OPTIONS if name not in NOT_DRAWN}


def options_of(random: Random, *, streams: bool) -> dict[str, Any]:
    """Makes options that go together; all that any set names, so that one can follow another."""
    one = random.choice
    features = {one(FEATURES) for _ in range(random.randint(0, 7))}
    most = random.randint(1, 5)
    sizes = {random.randint(1, most) for _ in range(3)}
    options = PLAIN | {
        "max_batch_size": most,
        "batch_wait_timeout_s": one([0.0, 0.0, 0.5, 1.0, 2.0, None]),
        "max_concurrent_batches": random.randint(1, 3),
        "stream_buffer": one([1, 2, 16]),
        "slow_reader_timeout_s": one([None, 1.0]),
        "isolate_errors": "isolated errors" in features,
        "cancel_abandoned": "abandoned" not in features,
        "drop_queued_on_shutdown": one([False, True]),
        "use_scope_deadline": "scope deadlines" in features,
        "refuse_late": "refusing" in features,
        "order": "deadline" if "deadline order" in features else "arrival",
        "bucket_by": key_of if "buckets" in features else None,
        "idle_timeout_s": one([0.25, 0.5, 1.0]) if "idle" in features else None,
    }
    if features & {"costs", "split"}:
        options["batch_size_fn"] = cost_of
    if "split" in features and not streams:
        options |= {"split": split_item, "join": join_results}
    if features & {"levels", "isolated levels"}:
        options["priority_levels"] = random.randint(2, LEVELS)
        options["priority_aging_s"] = one([None, 1.0, 10.0])
        options["default_priority"] = one([None, 1, 2])
        options["priority_mixing"] = "isolate" if "isolated levels" in features else "merge"
    if "bound" in features:
        apart = features & {"buckets", "isolated levels"}
        bound = one([1, 2, 4] if apart else [0, 1, 2, 4])
        options["max_queued_requests"] = bound
        options["overload"] = one(["wait", "reject"] + ["shed_oldest", "shed_lowest"] * (bound > 0))
    if features & {"queue policies", "windows"}:
        has_windows = "windows" in features and "adaptive" not in features
        policies = [_queue_policy(random, has_windows=has_windows) for _ in range(3)]
        levels = range(1, options["priority_levels"] + 1)
        options["queue_policies"] = {level: one(policies) for level in levels if one([True, False])}
        options["default_queue_policy"] = one([None, policies[0]])
    if "allowed" in features:
        options["allowed_batch_sizes"] = tuple(sorted(sizes | {most}))
        options["padding"] = one(["up", "down", "cost"])
        options["pad"] = one([None, pad_by_number])
        if options["batch_size_fn"] is not None:
            options["pad"] = pad_by_cost
    elif options["batch_size_fn"] is not None and "preferred" not in features:
        options["max_batch_cost"] = one([None, most, 2 * most])
    if "preferred" in features and "allowed" not in features:
        options["preferred_batch_sizes"] = tuple(sorted(sizes))
    elif "adaptive" in features and "allowed" not in features:
        options["adaptive"] = shoal.LatencyTarget(p99_s=one([0.5, 4.0]))
        options |= {"batch_wait_timeout_s": 0.0, "idle_timeout_s": None}
        if any(policy.batch_wait_timeout_s is not SAME for policy in _policies_of(options)):
            options |= {"queue_policies": {}, "default_queue_policy": None}
    if "limit" in features:
        options["limit"] = shoal.Limit(
            batches_per_s=one([0.5, 2, 4]),
            cost_per_min=one([None, 60, 240]),
            burst_s=one([0, 0, 1]),
        )
        options["isolate_errors"] = False
        if options["max_queued_requests"] == 0:
            options["max_queued_requests"] = 1
    if "time-outs" in features:
        options["handler_timeout_s"] = one([None, 1.0])
        options["request_timeout_s"] = one([None, 1.0, 2.0])
    return options


def _policies_of(options: dict[str, Any]) -> list[shoal.QueuePolicy]:
    policies = [*options["queue_policies"].values(), options["default_queue_policy"]]
    return [policy for policy in policies if policy is not None]


def _queue_policy(random: Random, *, has_windows: bool) -> shoal.QueuePolicy:
    one = random.choice
    return shoal.QueuePolicy(
        max_queued_requests=one([None, None, 1, 2]),
        timeout_s=one([None, None, 0.0, 0.5, 1.0]),
        timeout_action=one(["reject", "delay"]),
        batch_wait_timeout_s=one([None, 0.0, 0.5, 2.0]) if has_windows else SAME,
    )


# Operations


def shape_of(random: Random) -> Shape:
    one = random.choice
    return Shape(
        one(["ok"] * 8 + ["slot", "raise", "short", "join", "later"]),
        one([1, 1, 1, 2, 2, 3, 0.5, 0, 7] * 4 + [None]),
        one(["a", "a", "a", "b", "c"] * 8 + [None]),
        one(["ok"] * 16 + ["raise", "empty", "large"]),
    )


def asks_of(random: Random, *, streams: bool) -> Asks:
    one = random.choice
    steps = ["item"] * 6 + ["skip", "slot", "raise", "short"]
    asks = Asks(
        level=one([None, None, 1, 2, 3]),
        timeout_s=one([None] * 4 + [0.0, 0.5, 1.0, 2.0]),
        queue_timeout_s=one([None] * 6 + [0.0, 0.5]),
        scope_s=one([None] * 4 + [1.0]),
        run_s=one([0.0, 0.0, 0.25, 1.0]),
        early=one([False, False, True]),
    )
    if not streams:
        return asks
    return replace(
        asks,
        script=tuple(one(steps) for _ in range(random.randint(0, 3))),
        reads=one([None, None, None, 0, 1]),
        pause_s=one([0.0, 0.0, 0.5, 2.0]),
    )


def operation(kind: str, random: Random, *, streams: bool) -> Any:
    """Makes an operation of some kind."""
    one = random.choice
    shapes = tuple(shape_of(random) for _ in range(random.randint(1, 4)))
    match kind:
        case "map" if not streams:
            return Map(shapes, one([True, False]), asks_of(random, streams=False))
        case "calls" | "map":
            return Calls(shapes, asks_of(random, streams=streams))
        case "cancel":
            return Cancel(random.randint(0, 20))
        case "advance":
            return Advance(one([0.25, 0.5, 0.75, 1.0, 2.0]))
        case "configure":
            return Configure(options_of(random, streams=streams))
        case "configure some":
            options = options_of(random, streams=streams)
            names = set(random.sample(sorted(options), random.randint(1, 4)))
            if names & _PADDED:
                names |= _PADDED
            return Configure({name: options[name] for name in sorted(names)})
    return Op[kind.upper()]


# `pad` fills up by what they say, and a limit on the cost needs the function.
_PADDED = {"allowed_batch_sizes", "preferred_batch_sizes", "batch_size_fn", "pad", "max_batch_cost"}
KINDS = (
    *["settle"] * 5,
    *["calls"] * 12,
    *["map"] * 4,
    *["cancel"] * 3,
    *["advance"] * 5,
    *["configure", "configure", "configure some"],
    *["hold", "hold", "release", "release", "flush", "flush"],
)
RARE_KINDS = ("settle", "settle", "settle", "drain", "close")
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def policy_programs(draw: st.DrawFn, *, streams: bool) -> Program:
    """Draws a program.

    Hypothesis draws which operations there are and their seeds, so it can shorten a program that
    fails; what an operation is about is spread evenly, which it would not do by itself.
    """
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=6, max_size=25))
    if draw(st.integers(0, 7)) == 7:
        kinds.insert(draw(st.integers(0, len(kinds))), draw(st.sampled_from(RARE_KINDS)))
    whole = draw(SEEDS)  # Hypothesis likes to draw the same number often, but not the same pair
    options = options_of(Random(f"{whole} options {draw(SEEDS)}"), streams=streams)
    return Program(
        streams,
        {"graceful_shutdown_timeout_s": 5.0} | options,
        [operation(kind, Random(f"{whole} {draw(SEEDS)}"), streams=streams) for kind in kinds],
        draw(st.booleans()),
        draw(st.integers(0, 99)),
    )
