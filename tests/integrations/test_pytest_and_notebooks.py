"""Shoal in pytest and in notebooks: the plugin, and what the pages say of either.

Each test of pytest runs it on a project of its own, in a process of its own.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

CODE = """
import shoal

@shoal.batch(max_batch_size=2, batch_wait_timeout_s=3600)
async def square(numbers: list[int]) -> list[int]:
    return [number**2 for number in numbers]
"""
USING = 'pytest_plugins = ["shoal.integrations.pytest"]'


PAGES = Path(__file__).parents[2] / "docs" / "how-to"
NEEDS_PYTEST_ASYNCIO = pytest.mark.skipif(
    importlib.util.find_spec("pytest_asyncio") is None, reason="needs pytest-asyncio"
)
OPTIONS = """
[pytest]
addopts = --strict-markers -W error -p no:cacheprovider
"""
OPTIONS_ON_ASYNCIO = OPTIONS + "asyncio_default_fixture_loop_scope = function\n"


def outcomes(folder, tests, *, conftest=USING, plugin=None):
    """Runs a project's tests; returns how many had each outcome, and the output."""
    options = OPTIONS_ON_ASYNCIO if plugin == "pytest_asyncio.plugin" else OPTIONS
    files = {"project.py": CODE, "conftest.py": conftest, "test_it.py": tests}
    for name, text in {**files, "pytest.ini": options}.items():
        (folder / name).write_text(text)
    plugins = ["-p", "anyio.pytest_plugin", *(["-p", plugin] if plugin else [])]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    output = ran.stdout + ran.stderr
    counts = re.findall(r"(\d+) (passed|failed|errors?|skipped)", ran.stdout.splitlines()[-1])
    return {word.rstrip("s"): int(number) for number, word in counts}, output


def test_tests_run_in_virtual_time_on_both_loops(tmp_path):
    tests = """
import anyio, pytest, sniffio
from project import square

pytestmark = pytest.mark.anyio
LOOPS = []

async def test_an_hour_takes_no_time(batchers):
    LOOPS.append(sniffio.current_async_library())
    started = anyio.current_time()
    assert await square(3) == 9
    assert anyio.current_time() - started == 3600

@pytest.mark.usefixtures("batchers")
async def test_the_clock_is_new():
    assert anyio.current_time() < 1
    await anyio.sleep(10)

@pytest.mark.real_time
async def test_a_thread_has_the_real_clock():
    started = anyio.current_time()
    await anyio.to_thread.run_sync(lambda: None)
    assert anyio.current_time() - started < 5
    assert anyio.current_time() > 1

def test_each_loop_was_there():
    assert sorted(LOOPS) == ["asyncio", "trio"]
"""
    counts, output = outcomes(tmp_path, tests)
    assert counts == {"passed": 7}, output


def test_a_project_may_choose_its_loop(tmp_path):
    tests = """
import pytest, sniffio
from project import square

@pytest.fixture
def anyio_backend():
    from shoal.testing import virtual_backend
    return virtual_backend("asyncio")

@pytest.mark.anyio
async def test_it(batchers):
    assert sniffio.current_async_library() == "asyncio"
    assert await square(2) == 4
"""
    counts, output = outcomes(tmp_path, tests)
    assert counts == {"passed": 1}, output


def test_a_project_that_does_not_ask_is_left_alone(tmp_path):
    tests = """
import anyio, pytest
from project import square

@pytest.mark.anyio
async def test_it():
    started = anyio.current_time()
    await anyio.to_thread.run_sync(lambda: None)
    assert anyio.current_time() > 1

def test_its_fixtures(request):
    with pytest.raises(pytest.FixtureLookupError):
        request.getfixturevalue("batchers")
"""
    counts, output = outcomes(tmp_path, tests, conftest="")
    assert counts == {"passed": 3}, output


def page(heading):
    """The first python block of the section about plugins, and the blocks below one heading."""
    text = (PAGES / "test-code-that-batches.md").read_text("utf-8")
    _, section = text.split("\n## With pytest-trio and pytest-asyncio\n")
    first, *sections = re.split(r"^### ", section, flags=re.MULTILINE)
    (below,) = [one for one in sections if one.startswith(f"{heading}\n")]
    blocks = re.findall(r"^```python\n(.*?)^```$", first + below, re.MULTILINE | re.DOTALL)
    return "\n".join(["import pytest", *blocks])


def test_the_page_is_right_about_pytest_trio(tmp_path):
    counts, output = outcomes(tmp_path, page("pytest-trio"), plugin="pytest_trio.plugin")
    assert counts == {"passed": 3}, output


ON_ASYNCIO = {"plugin": "pytest_asyncio.plugin", "conftest": ""}


@NEEDS_PYTEST_ASYNCIO
def test_the_page_is_right_about_pytest_asyncio(tmp_path):
    counts, output = outcomes(tmp_path, page("pytest-asyncio"), **ON_ASYNCIO)
    assert counts == {"passed": 2}, output


@NEEDS_PYTEST_ASYNCIO
def test_a_fixture_of_pytest_asyncio_can_not_hold_a_block_open(tmp_path):
    tests = """
import pytest, pytest_asyncio, shoal
from project import square

@pytest_asyncio.fixture
async def opened():
    async with shoal.open_batchers():
        yield

@pytest.mark.asyncio
async def test_it(opened):
    pass
"""
    counts, output = outcomes(tmp_path, tests, **ON_ASYNCIO)
    assert counts == {"passed": 1, "error": 1}, output
    assert "Attempted to exit cancel scope in a different task" in output


def test_the_page_does_in_a_kernel_what_it_says(tmp_path, monkeypatch):
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    _, after = (PAGES / "where-to-open.md").read_text("utf-8").split("\n### In notebooks\n")
    section, _ = after.split("\n## ", 1)
    fences = re.findall(r"^```(py|text)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    cells: list[list[str]] = []
    for language, text in fences:
        if language == "py":
            cells.append([text, ""])
        else:
            cells[-1][1] = text
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code, _ in cells])
    nbclient.NotebookClient(book, timeout=HANG_S, kernel_name="python3").execute()
    printed = [
        "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for cell in book.cells
    ]
    assert printed == [wanted for _, wanted in cells]
