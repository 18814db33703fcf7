"""Options of queues for the state machines, one family for each rule."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from core.queue_machine import item_cost, item_key
from shoal import QueuePolicy

Some = st.SearchStrategy[dict[str, Any]]

WINDOW = st.sampled_from([0.0, 0.5, 1.0, None])


def some(*parts: Some, **fixed: Any) -> Some:
    """Joins parts of options, later ones first."""

    def joined(drawn: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        merged = dict(fixed)
        for part in drawn:
            merged |= part
        apart = "bucket_by" in merged or merged.get("priority_mixing") == "isolate"
        if apart and merged.get("max_queued_requests") == 0:
            merged["max_queued_requests"] = 1
        return merged

    return st.tuples(*parts).map(joined)


def of(**options: Any) -> Some:
    return st.fixed_dictionaries(
        {
            name: value if isinstance(value, st.SearchStrategy) else st.just(value)
            for name, value in options.items()
        }
    )


BOUND = st.one_of(
    of(),
    of(),
    of(
        max_queued_requests=st.sampled_from([0, 1, 3]), overload=st.sampled_from(["reject", "wait"])
    ),
    of(
        max_queued_requests=st.sampled_from([1, 3]),
        overload=st.sampled_from(["shed_oldest", "shed_lowest"]),
    ),
)
SIZE = of(max_batch_size=st.integers(1, 4), batch_wait_timeout_s=WINDOW)
FOUR = of(max_batch_size=4, batch_wait_timeout_s=WINDOW)
COSTS = of(batch_size_fn=item_cost)
MAYBE_COSTS = st.one_of(of(), COSTS)
IDLE = of(idle_timeout_s=st.sampled_from([0.25, 0.5, 1.0]))
# Never a sum of the times that pass, so that requests of different levels are not equal by rank.
AGEING = st.sampled_from([7 / 16, 33 / 16, None])
LEVELS = of(priority_levels=st.integers(2, 3), priority_aging_s=AGEING)
ISOLATED = of(priority_levels=3, priority_aging_s=AGEING, priority_mixing="isolate")
EARLIEST = of(order="deadline", priority_levels=st.integers(1, 2), priority_aging_s=AGEING)
KEYS = of(bucket_by=item_key)
LIMIT = st.builds(
    QueuePolicy,
    max_queued_requests=st.sampled_from([None, None, 1, 2]),
    timeout_s=st.sampled_from([None, 0.5, 1.0, 2.0]),
    timeout_action=st.sampled_from(["reject", "delay"]),
    batch_wait_timeout_s=st.sampled_from(
        [QueuePolicy().batch_wait_timeout_s, 0.0, 0.25, 2.0, None]
    ),
)
WINDOWS_BY_LEVEL = of(
    priority_levels=3,
    priority_aging_s=AGEING,
    queue_policies=st.dictionaries(st.integers(1, 3), LIMIT, max_size=2),
    default_queue_policy=st.one_of(st.none(), LIMIT),
)
DELAYS = of(
    priority_levels=st.integers(1, 2),
    priority_aging_s=AGEING,
    order=st.sampled_from(["arrival", "deadline"]),
    default_queue_policy=st.builds(
        QueuePolicy, timeout_s=st.sampled_from([None, 0.5, 1.0]), timeout_action=st.just("delay")
    ),
)
PADDING = of(
    max_batch_size=4,
    allowed_batch_sizes=st.sampled_from([(4,), (2, 4), (1, 3, 4)]),
    padding=st.sampled_from(["up", "down", "cost"]),
    pad=lambda items, n: items + items[-1:] * (n - len(items)),
)
PREFERRED = of(
    max_batch_size=4,
    preferred_batch_sizes=st.sampled_from([(2,), (2, 4), (1, 3), (4,)]),
)
ANY = some(
    FOUR,
    BOUND,
    MAYBE_COSTS,
    st.one_of(of(), IDLE),
    st.one_of(of(), KEYS),
    st.one_of(of(), LEVELS, ISOLATED, EARLIEST, WINDOWS_BY_LEVEL, DELAYS),
    st.one_of(of(), PADDING, PREFERRED),
)

FAMILIES: dict[str, Some] = {
    "SizeOrWait": some(SIZE, BOUND),
    "Costs": some(SIZE, BOUND, COSTS),
    "UntilIdle": some(SIZE, BOUND, IDLE),
    "Levels": some(SIZE, BOUND, LEVELS, MAYBE_COSTS),
    "WindowsByLevel": some(SIZE, BOUND, WINDOWS_BY_LEVEL, MAYBE_COSTS),
    "Delays": some(SIZE, BOUND, DELAYS),
    "EarliestDeadline": some(SIZE, BOUND, EARLIEST),
    "AllowedSizes": some(FOUR, BOUND, PADDING, MAYBE_COSTS),
    "PreferredSizes": some(FOUR, BOUND, PREFERRED, MAYBE_COSTS),
    "Buckets": some(SIZE, BOUND, KEYS, MAYBE_COSTS),
    "BucketsUntilIdle": some(SIZE, BOUND, KEYS, IDLE),
    "BucketsByRank": some(SIZE, BOUND, KEYS, st.one_of(LEVELS, EARLIEST, DELAYS)),
    "BucketsOfSizes": some(FOUR, KEYS, MAYBE_COSTS, st.one_of(PADDING, PREFERRED)),
    "LevelsApart": some(SIZE, BOUND, ISOLATED, MAYBE_COSTS),
    "Anything": ANY,
}
