"""The examples of many models, whose replicas are processes, and of sessions of one replica."""

import asyncio

import pytest
from starlette.testclient import TestClient

from benchmarks import many_models
from examples.many_models.app import app as of_models
from examples.sessions.app import app as of_sessions

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


def test_each_item_is_translated_by_its_model():
    with TestClient(of_models) as client:
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


def test_each_session_stays_on_one_replica_which_reads_only_new_turns():
    with TestClient(of_sessions) as client:
        replicas = set()
        for number in range(8):
            session, turns = f"user-{number}", []
            of_session = set()
            for _ in range(3):
                turns.append("a question")
                answer = client.post(
                    "/chat",
                    json={"session": session, "turns": turns},
                    headers={"X-Serve-Shard-Key": session},
                ).json()
                assert answer["read_turns"] == 1
                turns.append(answer["text"])
                of_session.add(answer["replica"])
            assert len(of_session) == 1
            replicas |= of_session
        assert len(replicas) > 1
