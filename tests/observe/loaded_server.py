"""A server of `loaded_app` in a process of its own, and its load."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from time_limits import HANG_S

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class LoadedServer:
    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=HANG_S, trust_env=False)

    def load(self) -> None:
        post = self._client.post
        for text in ("a", "abc", "x" * 19, "!"):
            post("/lengths", json=text)
        post("/lengths", json=1)
        post("/nowhere")
        for _ in range(2):
            post("/shared", json=1)
            assert "word" in post("/write", json="x").text
        post("/all", json=3).raise_for_status()
        tensor = {"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}
        post("/v2/models/doubled/infer", json={"inputs": [tensor]})
        asked = {"model": "write", "prompt": "x", "stream": True}
        assert "word" in post("/v1/completions", json=asked).text

    def scrape(self, accept: str = "*/*") -> str:
        answer = self._client.get("/-/metrics", headers={"accept": accept})
        return answer.raise_for_status().text

    def close(self) -> None:
        self._client.close()


@contextmanager
def loaded_server() -> Iterator[LoadedServer]:
    """Serves the application, and has called it; by a worker, so that all metrics are there."""
    command = [sys.executable, "-m", "shoal", "serve", "loaded_app:app", "--port", "0"]
    command += ["--workers", "1"]
    with (
        ExitStack() as ending,
        subprocess.Popen(
            command,
            cwd=Path(__file__).parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        ending.callback(process.terminate)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"http://\S+", line):
                break
        else:
            raise AssertionError("it ended before it served:\n" + "".join(said))
        try:
            # What it logs must not fill the pipe.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            server = LoadedServer(found[0])
            server.load()
            yield server
            server.close()
        finally:
            process.terminate()
            process.wait(HANG_S)
