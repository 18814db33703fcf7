"""The example of sessions that stay on one replica."""

import pytest
from starlette.testclient import TestClient

from examples.sessions.app import app

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


def test_each_session_stays_on_one_replica_which_reads_only_new_turns():
    with TestClient(app) as client:
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
