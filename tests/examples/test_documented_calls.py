"""The curl commands that examples document, against these examples."""

import ast
import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from time_limits import HANG_S

ROOT = Path(__file__).parents[2]
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
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_time,
    pytest.mark.skipif(shutil.which("curl") is None, reason="examples call with curl"),
]


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
