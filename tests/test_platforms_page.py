"""The list of platforms says what pyproject.toml requires and what CI runs."""

import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text("utf-8"))["jobs"]


def test_each_lowest_version_is_that_of_the_package():
    wanted = {
        tuple(requirement.split(">=")): extra
        for extra, requirements in [
            ("everything", PROJECT["dependencies"]),
            *(
                (f"the extra `{name}`", some)
                for name, some in PROJECT["optional-dependencies"].items()
            ),
        ]
        for requirement in requirements
    }
    rows = re.findall(
        r"^\| ([\w.-]+) \| ([\d.]+) \| (everything|the extra `\w+`) \|$", PAGE, re.MULTILINE
    )
    assert {(name, version): extra for name, version, extra in rows} == wanted


def test_the_pythons_and_systems_are_those_of_the_workflow():
    [row] = re.findall(r"^\| CPython \| (.*?) \|$", PAGE, re.MULTILINE)
    matrix = JOBS["tests"]["strategy"]["matrix"]
    assert re.findall(r"\d\.\d+", row) == matrix["python"]
    assert [system.partition("-")[0] for system in matrix["os"]] == ["ubuntu", "macos"]
    assert "on Linux and on macOS" in row
    threaded = JOBS["free-threaded"]
    assert all(one in PAGE for one in threaded["strategy"]["matrix"]["python"])
    assert threaded["continue-on-error"] is True
    for job, version in (("ray", "CPython 3.12"), ("lowest", "CPython 3.11")):
        [python] = [
            step["with"] for step in JOBS[job]["steps"] if "python" in str(step.get("uses"))
        ]
        assert python["python-version"] == version.partition(" ")[2]
        assert version in PAGE
