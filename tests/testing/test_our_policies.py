"""Every built-in rule keeps the promises of a policy."""

from random import Random
from typing import Any

import pytest

from shoal.core.latency_model import LatencyModel
from shoal.core.options.options import BatchOptions
from shoal.core.options.records import LatencyTarget, QueuePolicy
from shoal.core.policies.adaptive import AdaptiveRule
from shoal.core.policies.factory import policy_of
from shoal.core.policy import BatchPolicy
from shoal.core.replicas.members import NO_MEMBERS
from shoal.core.request import Request
from shoal.testing import check_policy, make_request

pytestmark = pytest.mark.slow

OPTIONS: dict[str, dict[str, Any]] = {
    "size alone": {},
    "a window": {"batch_wait_timeout_s": 0.5},
    "until full": {"batch_wait_timeout_s": None},
    "until idle": {"idle_timeout_s": 0.2},
    "until idle, in a window": {"idle_timeout_s": 0.2, "batch_wait_timeout_s": 0.5},
    "costs": {"batch_size_fn": float, "batch_wait_timeout_s": 0.5},
    "costs, until full": {"batch_size_fn": float, "batch_wait_timeout_s": None},
    "buckets": {"bucket_by": str, "batch_wait_timeout_s": 0.5},
    "buckets, until full": {"bucket_by": str, "batch_wait_timeout_s": None},
    "buckets, until idle": {"bucket_by": str, "idle_timeout_s": 0.2},
    "buckets with costs": {"bucket_by": str, "batch_size_fn": float, "batch_wait_timeout_s": 0.5},
    "padded up": {"allowed_batch_sizes": (2, 4), "batch_wait_timeout_s": 0.5},
    "padded down": {"allowed_batch_sizes": (2, 4), "padding": "down", "batch_wait_timeout_s": 0.5},
    "whatever costs less": {"allowed_batch_sizes": (2, 4), "padding": "cost"},
    "preferred sizes": {"preferred_batch_sizes": (2, 3), "batch_wait_timeout_s": 0.5},
    "preferred sizes, at once": {"preferred_batch_sizes": (2, 3)},
    "preferred sizes, until full": {"preferred_batch_sizes": (2, 4), "batch_wait_timeout_s": None},
    "preferred costs": {
        "preferred_batch_sizes": (2, 4),
        "batch_size_fn": float,
        "batch_wait_timeout_s": 0.5,
    },
    "levels": {"priority_levels": 3, "batch_wait_timeout_s": 0.5},
    "strict levels": {"priority_levels": 3, "priority_aging_s": None, "idle_timeout_s": 0.2},
    "levels apart": {
        "priority_levels": 3,
        "priority_mixing": "isolate",
        "batch_wait_timeout_s": 0.5,
    },
    "windows by level": {
        "priority_levels": 3,
        "batch_wait_timeout_s": 0.5,
        "queue_policies": {1: QueuePolicy(batch_wait_timeout_s=0.1)},
        "default_queue_policy": QueuePolicy(batch_wait_timeout_s=None, timeout_action="delay"),
    },
    "windows by level, levels apart": {
        "priority_levels": 3,
        "priority_mixing": "isolate",
        "batch_wait_timeout_s": 0.5,
        "queue_policies": {1: QueuePolicy(batch_wait_timeout_s=0.1)},
    },
    "earliest deadline first": {"order": "deadline", "batch_wait_timeout_s": 0.5},
    "a latency target": {"adaptive": LatencyTarget(p99_s=0.1)},
    "all at once": {
        "priority_levels": 3,
        "priority_mixing": "isolate",
        "bucket_by": str,
        "batch_size_fn": float,
        "idle_timeout_s": 0.2,
        "batch_wait_timeout_s": 0.5,
        "order": "deadline",
    },
}


def rule(options: BatchOptions) -> BatchPolicy:
    model = LatencyModel()
    for size in (1, 2, 4):
        model.observe(size, 0.01 + 0.01 * size)
    adaptive = None
    if options.adaptive is not None:
        adaptive = AdaptiveRule(
            options.adaptive, model, options.max_batch_size, options.max_concurrent_batches
        )
    return policy_of(options, model, adaptive, NO_MEMBERS)


@pytest.mark.parametrize(
    "seeds",
    [range(0, 1000, 40), pytest.param(range(1000), marks=pytest.mark.soak)],
    ids=["some seeds", "all seeds"],
)
@pytest.mark.parametrize("what", OPTIONS)
def test_a_rule_of_ours_keeps_its_promises(what, seeds):
    options = BatchOptions(max_batch_size=4, **OPTIONS[what])

    def request(random: Random, arrived_at: float) -> Request:
        return make_request(
            arrived_at=arrived_at,
            deadline=random.choice([None, arrived_at + random.random()]),
            priority=random.randint(1, options.priority_levels),
            cost=1 if options.batch_size_fn is None else random.choice([0, 1, 1.5, 2, 4]),
            key=None if options.bucket_by is None else random.choice("abc"),
        )

    check_policy(lambda: rule(options), make_request=request, seeds=seeds)
