"""The tables of options: that of the code, and those of the reference with their defaults."""

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from shoal.core.options.option import defaults_of
from shoal.core.options.options import OPTIONS, BatchOptions
from shoal.core.options.records import Cache, LatencyTarget, Limit, Models, QueuePolicy
from shoal.core.replicas.autoscaling import AutoscalingOptions
from shoal.serving.backend_config import BackendConfig
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


PAGES = Path(__file__).parents[2] / "docs" / "reference"


def documented(page):
    """The defaults by option, of all tables that have them: ``| `a`, `b` | 1, `None` | ...``."""
    found = {}
    for line in (PAGES / page).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) < 3 or not re.fullmatch(r"`\w+`(, `\w+`)*", cells[0]):
            continue
        names = re.findall(r"`(\w+)`", cells[0])
        defaults = cells[1].split(", ")
        if len(defaults) < len(names):  # one for all
            defaults = [cells[1]] * len(names)
        for name, default in zip(names, defaults, strict=True):
            found.setdefault(name, default.partition(";")[0].strip("`"))
    return found


def value_of(text):
    in_words = {"the middle one": None, "none": {}}
    return in_words[text] if text in in_words else ast.literal_eval(text)


BATCH = defaults_of(BatchOptions)
BACKEND = {n: one for n, one in BackendConfig().as_dict().items() if n not in BATCH}
AUTOSCALING = dataclasses.asdict(AutoscalingOptions())


@pytest.mark.parametrize("name", BATCH)
def test_batch_options(name):
    assert value_of(documented("options.md")[name]) == BATCH[name]


@pytest.mark.parametrize("name", BACKEND)
def test_backend_options(name):
    assert value_of(documented("backend-config.md")[name]) == BACKEND[name]


@pytest.mark.parametrize("name", AUTOSCALING)
def test_autoscaling_options(name):
    assert value_of(documented("backend-config.md")[name]) == AUTOSCALING[name]


def test_no_page_has_an_option_that_does_not_exist():
    autoscaling, ours = AUTOSCALING.keys(), {*BATCH, *BACKEND}
    assert documented("backend-config.md").keys() <= autoscaling | ours
    records = (QueuePolicy, LatencyTarget, Cache, Limit, Models)
    fields = {one.name for record in records for one in dataclasses.fields(record)}
    assert documented("options.md").keys() <= fields | ours
