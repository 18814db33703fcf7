"""The page of time-outs has each option that is one, with its default, and its picture."""

import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from shoal import BackendConfig, BatchOptions
from shoal.asgi.http_options import HttpOptions
from shoal.core.options.records import Models, QueuePolicy
from shoal.replicas.contract import ReplicaOptions
from shoal.replicas.placements import RayOptions

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "reference" / "timeouts.md").read_text("utf-8")
OWNERS = (BatchOptions, BackendConfig, ReplicaOptions, RayOptions, HttpOptions)
# The order of the queue, the pause between two checks, and what a client is told.
NO_LIMITS = {"priority_aging_s", "health_check_period_s", "retry_after_s"}
LIMITS = {
    **{one.name: one.default for owner in OWNERS for one in fields(owner)},
    **{f"Models.{one.name}": one.default for one in fields(Models)},
    **{f"QueuePolicy.{one.name}": one.default for one in fields(QueuePolicy)},
}
LIMITS = {
    name: default
    for name, default in LIMITS.items()
    if name.endswith("_s") and name not in NO_LIMITS
}
# The name of each option in the first column, with the default beside it.
ROWS = [
    (re.findall(r"`([\w.]+)`", names), default)
    for names, default in re.findall(r"^\| (.*?) \| (.*?) \|", PAGE, re.MULTILINE)
]


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_has_its_row_with_its_default(name):
    [shown] = [default for names, default in ROWS if name in names]
    if name == "QueuePolicy.batch_wait_timeout_s":  # the batcher's
        return
    number = LIMITS[name]
    assert shown.removesuffix(" s") == ("none" if number is None else f"{number:g}")


def test_the_picture_is_what_its_script_draws():
    drawn = runpy.run_path(str(DOCS / "timeouts.py"))["picture"]()
    assert (DOCS / "reference" / "timeouts.svg").read_text("utf-8") == drawn
