import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from progress_lines import first_line


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from browser import chromium

    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        driver.set_script_timeout(60)
        yield driver


@pytest.fixture(scope="module")
def browser_app():
    with subprocess.Popen(
        [sys.executable, "-m", "shoal", "serve", "examples.browser.app:app", "--port", "0"],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield re.search(r"http://\S+", first_line(server.stderr))[0]
        finally:
            server.send_signal(signal.SIGINT)
            said = server.stderr.read()
    assert "0 cut off" in said


@pytest.fixture(scope="module")
def model():
    from examples.language_model.model import CharTransformer

    return CharTransformer.load()


@pytest.fixture
def rows(monkeypatch):
    """How many texts the language model was asked to write on, for each step."""
    from examples.language_model.cache import Cache

    seen = []
    step = Cache.step
    monkeypatch.setattr(
        Cache, "step", lambda self, tokens: (seen.append(len(tokens)), step(self, tokens))[1]
    )
    return seen
