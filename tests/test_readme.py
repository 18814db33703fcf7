"""The README and the page of features, run as a newcomer runs them: files written, lines typed."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from test_docs import FENCE
from time_limits import HANG_S

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = README + (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
FIGURES = json.loads((ROOT / "benchmarks" / "figures.json").read_text(encoding="utf-8"))
# `make release-check` names one that has the release, and nothing else.
RUNS_IT = os.environ.get("SHOAL_README_PYTHON", sys.executable)


def write_files(directory):
    """Writes each block whose first line is a comment with a file's name."""
    for fence in FENCE.finditer(PAGES):
        name = re.match(r"# (\w+\.py)\n", fence["body"])
        if fence["language"] == "python" and name:
            (directory / name[1]).write_text(fence["body"])


def shell_lines():
    """Yields each line behind a prompt, and what the page shows below it."""
    for fence in FENCE.finditer(PAGES):
        if fence["language"] == "console":
            for line in fence["body"].split("$ ")[1:]:
                command, _, shown = line.partition("\n")
                yield command, shown


def lines_that_start(prefix):
    return [pair for pair in shell_lines() if pair[0].startswith(prefix)]


def words_of(command):
    first, *others = shlex.split(command, comments=True)
    by_python = {"python": [RUNS_IT], "shoal": [RUNS_IT, "-m", "shoal"]}
    return [*by_python.get(first, [first]), *others]


def assert_prints(expected, words, directory):
    ran = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=HANG_S)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, expected, "")


def test_the_readme_fits_on_a_few_screens():
    assert len(README.splitlines()) <= 130


def test_the_figures_are_those_of_the_table_of_figures():
    rows = [
        f"| {row['question']} | {row['shoal']} | {row['compared']} | {row['machine']} "
        f"| `{row['command']}` |"
        for row in FIGURES["rows"]
    ]
    assert "\n".join(rows) in README
    assert FIGURES["date"] in README
    assert len(rows) == 8
    for row in FIGURES["elsewhere"]:
        assert row["sentence"] in README
        assert (ROOT / "benchmarks" / row["command"].split()[0]).exists()


def test_each_row_of_figures_is_in_the_tables_that_one_command_prints():
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    tables = page[
        page.index("`make bench-peers` needs") : page.index("Each script takes `--quick`")
    ]
    assert FIGURES["date"] in tables
    for row in FIGURES["rows"]:
        assert row["command"].startswith("peers.py --only ")
        figures = re.findall(r"[\d,]*\d[\d,.]*", row["shoal"] + row["compared"])
        assert [figure for figure in figures if figure not in tables] == []


def test_pages_agree_on_what_a_request_costs():
    texts = [path.read_text("utf-8") for path in (ROOT / "docs").glob("*/*.md")]
    cpu_time = re.compile(r"([\d,.]+)\s+µs\s+of\s+CPU(?!\s+for\s+an\s+item)")
    pages = [text for text in [README, *texts] if cpu_time.search(text)]
    rows = FIGURES["cost_of_a_request"]["rows"]
    times = {row["microseconds"] for row in rows if "microseconds" in row}
    rates = {row["requests_per_second"] for row in rows if "requests_per_second" in row}
    assert {figure for page in pages for figure in cpu_time.findall(page)} == times
    assert {
        figure for page in pages for figure in re.findall(r"([\d,]+) requests/s", page)
    } <= rates
    assert {rate for rate in rates if not any(rate in page for page in pages)} == set()
    assert all((ROOT / "benchmarks" / row["command"].split()[0]).exists() for row in rows)


def test_links_of_the_readme_lead_to_files():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.real_time
def test_the_first_program_gains_by_batches(tmp_path):
    write_files(tmp_path)
    run = re.search(r"`(python embed\.py)` prints `(.*?)`", README)
    assert run is not None
    command, shown = run.groups()
    printed = subprocess.check_output(words_of(command), cwd=tmp_path, text=True, timeout=HANG_S)
    for text in (shown, printed.strip()):
        times = re.fullmatch(r"one at a time: (\S+) s, in batches: (\S+) s", text)
        assert times is not None, text
        assert float(times[2]) < float(times[1])


def test_the_lines_for_users_of_ray_serve_make_an_application():
    [diff] = [fence["body"] for fence in FENCE.finditer(README) if fence["language"] == "diff"]
    added = [line[1:] for line in diff.splitlines() if line.startswith("+")]
    removed = [line[1:] for line in diff.splitlines() if line.startswith("-")]
    assert {"@serve.deployment", "from ray import serve"} <= set(removed)
    [imported, batch, served] = added
    model = """
class Model:
BATCH
    async def lengths(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    async def __call__(self, text: str) -> int:
        return await self.lengths(text)
"""
    module = {"__name__": "page"}
    exec("\n".join([imported, model.replace("BATCH", batch), served]), module)
    assert isinstance(module["app"], shoal.App)


@pytest.mark.real_time
def test_the_release_answers_a_customer_by_the_same_version_each_time(tmp_path):
    write_files(tmp_path)
    [(command, shown)] = lines_that_start("python release.py")
    assert_prints(shown, words_of(command), tmp_path)


@pytest.mark.real_time
def test_the_release_runs_with_replicas_in_processes_as_well(tmp_path):
    write_files(tmp_path)
    path = tmp_path / "release.py"
    given = 'config={"num_replicas": 2}'
    text = path.read_text()
    assert given in text
    path.write_text(text.replace(given, 'config={"placement": "process"}'))
    assert_prints("119.0\n", [RUNS_IT, "release.py"], tmp_path)


@pytest.mark.real_time
@pytest.mark.skipif(shutil.which("curl") is None, reason="the README calls with curl")
def test_the_first_service_answers_curl(tmp_path):
    write_files(tmp_path)
    [(serve, _)] = lines_that_start("shoal serve lengths:app")
    [(call, answer)] = lines_that_start("curl -d '\"herring\"'")
    server = subprocess.Popen(
        [*words_of(serve), "--port", "0"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        url = next(
            found[0] for line in server.stderr if (found := re.search(r"http://\S+\d", line))
        )
        words = words_of(call.replace("http://127.0.0.1:8000", url))
        called = subprocess.run(
            [*words, "--silent"], capture_output=True, text=True, timeout=HANG_S
        )
        assert called.stdout.strip() == answer.strip()
    finally:
        server.kill()
        server.communicate()
