"""The example of many models, whose replicas are processes."""

import asyncio

import pytest
from starlette.testclient import TestClient

from benchmarks import many_models
from examples.many_models.app import app

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


def test_each_item_is_translated_by_its_model():
    with TestClient(app) as client:
        for model in ("en-fr", "en-de", "en-it", "en-es") * 2:
            answer = client.post("/translate", json={"model": model, "text": "hello"})
            assert answer.json() == f"hello in {model.removeprefix('en-')}"
        for _ in range(2):
            unknown = client.post("/translate", json={"model": "xx", "text": "hello"})
            assert unknown.status_code == 500
        again = client.post("/translate", json={"model": "en-fr", "text": "hello"})
        assert again.json() == "hello in fr"


def test_the_benchmark_counts_loads_and_batches():
    arrivals = many_models.traffic(rate=100, seconds=0.5, models=3)
    latencies, loads, sizes = asyncio.run(many_models.of_shoal(arrivals))
    assert len(latencies) == len(arrivals)
    assert sum(sizes) == len(arrivals) + 3  # those that load the models first
    assert loads >= 3
