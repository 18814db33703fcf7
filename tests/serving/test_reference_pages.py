"""The tables of options in the reference: they have all options, with their defaults."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from shoal.core.options.option import defaults_of
from shoal.core.options.options import BatchOptions
from shoal.core.options.records import Cache, LatencyTarget, Limit, Models, QueuePolicy
from shoal.core.replicas.autoscaling import AutoscalingOptions
from shoal.serving.backend_config import BackendConfig

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
