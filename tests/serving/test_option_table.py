"""What the table of batch options says of each, held where it is used."""

from typing import Any

import pytest

from shoal.core.options.options import OPTIONS
from shoal.serving.backend_options import one_at_a_time

OF_BATCHES: dict[str, Any] = {
    "max_batch_size": 4,
    "max_batch_cost": 4,
    "batch_wait_timeout_s": 0.1,
    "idle_timeout_s": 0.1,
    "batch_size_fn": len,
    "allowed_batch_sizes": (2, 4),
    "preferred_batch_sizes": (2, 4),
    "regather": False,
    "pad": lambda items, n: items,
    "split": lambda item, room: [item],
    "join": lambda results: results,
}


@pytest.mark.parametrize("name", OF_BATCHES)
def test_an_option_of_batches_is_refused_for_code_of_one_item(name):
    with pytest.raises(ValueError, match=f"{name}=.* is for code that takes lists"):
        one_at_a_time({name: OF_BATCHES[name]})


def test_all_other_options_are_not():
    assert {name for name, option in OPTIONS.items() if option.for_lists} == set(OF_BATCHES)
    assert one_at_a_time({"stream_buffer": 2}) == {"stream_buffer": 2, "max_batch_size": 1}


# What `open` makes is entered later: test_served_open_option.py.
