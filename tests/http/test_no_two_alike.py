"""No two metrics say the same: a load that is varied enough tells all of them apart.

Two say the same if their series, whatever the labels' names and values, have the same values at
each moment. A histogram is known by the sum of what it observed: how often it did so is a count of
something that has a counter of its own, as batches and requests have.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import anyio
import pytest
import varied_app
from held_app import served

from serving.scenes import Stage
from shoal.core.histogram import OUTCOMES
from shoal.serving.endpoints import shadow
from shoal.testing import run_virtually

EVERY_S = 0.83
SCRAPES = 36
OF_SOCKETS = {
    *("shoal_connections", "shoal_connection_limit", "shoal_accepted_connections"),
    *("shoal_received_bytes", "shoal_sent_bytes"),
}


@pytest.fixture(scope="module")
def metrics():
    """Each metric's series under the load: their values at each scrape, by their labels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shadow, "MOST_COPIES", 3)
        return run_virtually(scraped)


async def scraped():
    stage = Stage()
    app = varied_app.app_on(stage)
    found = defaultdict(lambda: defaultdict(lambda: [0] * SCRAPES))
    async with served(app) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(varied_app.Load(app, server, stage).run)
        for number in range(SCRAPES):
            await anyio.sleep(EVERY_S)
            for family in app.metrics.collect():
                series = found[family.name]
                for sample in family.samples:
                    if family.type != "histogram" or sample.name.endswith("_sum"):
                        labels = tuple(sorted(sample.labels.items()))
                        series[labels][number] = round(sample.value, 6)
    return {name: series for name, series in found.items() if name.startswith("shoal_")}


def alike(metrics):
    """The pairs of metrics that say the same."""
    said = {name: sorted(filter(any, series.values())) for name, series in metrics.items()}
    return [
        (one, other)
        for (one, of_one), (other, of_other) in itertools.combinations(said.items(), 2)
        if of_one == of_other
    ]


def test_the_load_is_varied(metrics):
    assert told(metrics["shoal_requests"], "outcome") == {
        *("finished", "failed", "cancelled", "expired", "rejected", "shed")
    }
    # A page, or a request that is refused for what its client sent, takes no virtual time.
    assert told(metrics["shoal_request_seconds"], "outcome") >= set(OUTCOMES) - {"invalid"}
    assert told(metrics["shoal_request_seconds"], "protocol") >= {"json", "oip", "openai", "python"}


def told(series, label):
    """The values of a label of which there was any."""
    return {dict(labels)[label] for labels, values in series.items() if any(values)}


def test_no_two_say_the_same(metrics):
    # What has no value above 0 says nothing.
    silent = {name for name, series in metrics.items() if not any(map(any, series.values()))}
    assert silent == OF_SOCKETS
    heard = {name: series for name, series in metrics.items() if name not in silent}
    assert len(heard) > 40
    assert alike(heard) == []


@pytest.mark.parametrize("name", ["shoal_batches", "shoal_queue_seconds"])
def test_one_that_says_the_same_by_other_labels_is_found(name, metrics):
    renamed = {
        tuple(("x", f"{value}s") for _, value in labels): values
        for labels, values in metrics[name].items()
    }
    assert (name, "shoal_planted") in alike(metrics | {"shoal_planted": renamed})
