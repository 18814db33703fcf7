"""Examples that are whole programs: embedding, tracing, and a client of an API with limits."""

import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.embeddings_api.api import Api
from examples.embeddings_api.embed import embed_all

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "embed"
EXPECTED = {
    "plain_trio": "one call for 7 words",
    "anyio_on_asyncio": "[0, 2, 4, 6, 8]",
    "method": "x3: one call for [",
    "stream": "5 -> [5, 4, 3, 2, 1, 0]",
    "threads": "121, 144, 169",
    "sqlite_writes": "refused: NOT NULL constraint failed",
}


def test_every_example_is_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_example_runs_and_says_what_it_should(name, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    said = capfd.readouterr()
    assert EXPECTED[name] in said.out
    assert said.err == ""


def test_the_example_prints_the_spans_of_a_batch_and_of_its_callers():
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.tracing.console"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line.partition(": ") for line in ended.stdout.splitlines()]
    assert sorted(name for name, _, _ in lines) == [
        *("first", "lengths", "lengths", "lengths", "lengths batch", "second"),
        *("the model", "third"),
    ]
    assert ("lengths batch", ": ", "3 links") in lines
    for name, _, said in lines:
        if name == "lengths":
            assert said.startswith("queue at 0 ms, wait at 0 ms, run at ")
            assert said.endswith(" ms, 1 links")


@contextmanager
def serving(**how: Any) -> Iterator[Api]:
    with Api(**how) as api:
        thread = threading.Thread(target=api.serve_forever, daemon=True)
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()


async def test_all_texts_are_embedded_though_the_api_refuses_some_requests():
    texts = [f"text {number % 300}" for number in range(5_000)] + ["word " * 5_000] * 2
    with serving(tokens_per_min=60_000_000, run_s=0.01) as api:
        api.requests = 8  # the second request is refused
        vectors = await embed_all(api.url, texts)
    assert [vector[0] for vector in vectors] == [len(text) for text in texts]
    assert api.texts == 301  # equal texts once
    assert api.refused == 1
    assert api.most_running <= 3


async def test_the_server_refuses_what_is_too_much():
    import httpx

    with serving(tokens_per_min=60, run_s=0) as api:
        async with httpx.AsyncClient(base_url=api.url) as client:
            large = await client.post("/embeddings", json={"input": ["a"] * 97})
            answers = [
                await client.post("/embeddings", json={"input": ["a " * 8_000]}) for _ in range(3)
            ]
    assert large.status_code == 400
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[2].headers["Retry-After"]) > 7_000
