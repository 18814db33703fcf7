"""Examples that are whole programs, one with limits of an API, and documented curl commands."""

import ast
import re
import runpy
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from examples.embeddings_api.api import Api
from examples.embeddings_api.embed import embed_all
from time_limits import HANG_S

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
SERVE = re.compile(r"\b(shoal serve|uvicorn) (examples\.\S+?:\w+)")
CURL = re.compile(r"^ *(curl .*(?:(?<=\\)\n.*)*)", re.MULTILINE)
# What an example needs besides the packages of the tests.
PACKAGES = {
    "chat": ("torch", "transformers"),
    "file_types": ("magika",),
    "sentences": ("torch", "transformers"),
    "tables": ("sklearn", "lightgbm"),
    "text_lines": ("rapidocr", "onnxruntime"),
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


def documented():
    for path in sorted((ROOT / "examples").rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        served, calls = SERVE.search(text), CURL.findall(text)
        if served and calls:
            yield pytest.param(*served.groups(), calls, id=served[2])


def wait_until_ready(server, url):
    ends = time.monotonic() + HANG_S
    while server.poll() is None:
        try:
            with urlopen(f"{url}/-/readyz"):
                return
        except URLError:
            assert time.monotonic() < ends
            time.sleep(0.05)


@pytest.mark.skipif(shutil.which("curl") is None, reason="examples call with curl")
@pytest.mark.parametrize(("program", "target", "calls"), list(documented()))
def test_each_documented_call_succeeds(program, target, calls, tmp_path, free_tcp_port):
    module = target.partition(":")[0].rpartition(".")[2]
    missing = [name for name in PACKAGES.get(module, ()) if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    shutil.copy(ROOT / "README.md", tmp_path)
    if module == "text_lines":
        from examples.models.items import page

        (tmp_path / "page.png").write_bytes(page())
    url = f"http://127.0.0.1:{free_tcp_port}"
    command = [sys.executable, "-m", *program.split(), target, "--port", str(free_tcp_port)]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(server, url)
        for call in calls:
            line = call.replace("localhost:8000", url) + " --silent --fail-with-body"
            called = subprocess.run(
                line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S
            )
            assert called.returncode == 0, (call, called.stdout)
    finally:
        server.terminate()
        server.wait(HANG_S)
