"""The GraphQL example, and the benchmark that compares its loaders with aiodataloader's."""

import asyncio
import re

import pytest
from starlette.testclient import TestClient

pytest.importorskip("strawberry")
pytest.importorskip("aiodataloader")

from benchmarks import loaders
from examples.graphql import app as example

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

ASKED = "{ book(id: %d) { title author { name publisher { name } } } }"


def test_it_answers_over_http():
    with TestClient(example.app) as client:
        answer = client.post("/graphql", json={"query": ASKED % 2}).json()
        author = {"name": "Edith", "publisher": {"name": "Sea Press"}}
        assert answer == {"data": {"book": {"title": "Book 2", "author": author}}}
        missing = client.post("/graphql", json={"query": ASKED % 1000}).json()
    assert missing["data"] is None
    assert "no book 1000" in missing["errors"][0]["message"]


def test_requests_share_their_queries(monkeypatch, capsys):
    monkeypatch.setattr(example, "rows", example.rows)  # the benchmark changes it
    asyncio.run(loaders.main(requests=20, query_ms=0, connections=5, rounds=1))
    said = capsys.readouterr().out
    queries = dict(re.findall(r"^(\S+) +([\d.]+) queries", said, re.MULTILINE))
    assert float(queries["aiodataloader"]) == 60
    # A batch begins with what there is, and so may the first one of each table.
    assert float(queries["shoal.Loader"]) <= 6
