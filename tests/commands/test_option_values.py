"""Options as they are written on a command line."""

from __future__ import annotations

import pytest

from shoal.commands.support.mistake import CommandError
from shoal.commands.support.values import option_pairs
from shoal.core.options.records import LatencyTarget, QueuePolicy


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("priority_levels=3", "priority_levels", 3),
        ("priority-levels = 3", "priority_levels", 3),
        ("batch_wait_timeout_s=0.005", "batch_wait_timeout_s", 0.005),
        ("batch_wait_timeout_s=none", "batch_wait_timeout_s", None),
        ("overload=wait", "overload", "wait"),
        ("isolate_errors=true", "isolate_errors", True),
        ("isolate_errors=False", "isolate_errors", False),
        ("max_queued_requests=null", "max_queued_requests", None),
        ("max_queued_requests=None", "max_queued_requests", None),
        ("max_batch_size=1,000", "max_batch_size", "1,000"),
        ("allowed_batch_sizes=8,16", "allowed_batch_sizes", [8, 16]),
        ("allowed_batch_sizes=[8,16]", "allowed_batch_sizes", [8, 16]),
        ('adaptive={"p99_s": 0.1}', "adaptive", LatencyTarget(p99_s=0.1)),
        ('default_queue_policy={"timeout_s": 1}', "default_queue_policy", QueuePolicy(timeout_s=1)),
        (
            'queue_policies={"2": {"timeout_s": 1}}',
            "queue_policies",
            {2: QueuePolicy(timeout_s=1)},
        ),
    ],
)
def test_what_is_written_is_read(text, name, value):
    assert option_pairs([text]) == {name: value}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "priority_levels",
            "an option is written KEY=VALUE, like priority_levels=3, ",
        ),
        ("levels=3", "'levels' is not an option of a batcher; did you mean 'priority_levels'"),
        ("bucket_by=x", "bucket_by is a function"),
        ('adaptive={"p98_s": 1}', "adaptive has no 'p98_s'"),
        ('queue_policies={"1": {"p": 1}}', r"queue_policies\[1\] has no 'p'"),
    ],
)
def test_what_is_no_option_is_told(text, complaint):
    with pytest.raises(CommandError, match=complaint):
        option_pairs([text])


def test_of_equal_options_the_last_counts():
    assert option_pairs(["max_batch_size=3", "max-batch-size=4"]) == {"max_batch_size": 4}
