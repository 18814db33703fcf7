"""What a release is made of, and the workflows of public CI.

They fit their schema, call what there is, and are pinned. `make release-check` builds and installs
a release, which takes longer.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import shoal
from examples_checks import check_schema

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
JOBS = {
    (path.stem, name): job
    for path in WORKFLOWS
    for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()
}
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]


def run(command, *arguments):
    tool = str(Path(sys.executable).parent / command)
    return subprocess.run(
        [tool, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )


@pytest.mark.slow
def test_the_workflows_fit_their_schema():
    check_schema("vendor.github-workflows", *WORKFLOWS)
    check_schema("vendor.dependabot", ROOT / ".github" / "dependabot.yaml")


@pytest.mark.real_time
def test_the_workflows_are_safe():
    ran = run("zizmor", "--offline", "--no-progress", str(ROOT / ".github"))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_action_is_pinned_to_a_commit_that_names_its_version():
    lines = [
        line.partition("uses: ")[2]
        for path in WORKFLOWS
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses: " in line
    ]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    assert len(set(lines)) == len({line.partition("@")[0] for line in lines}), "two versions of one"


def test_each_target_that_is_made_is_one_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    called = {
        target
        for _, step in STEPS
        for line in step.get("run", "").splitlines()
        if line.startswith("make ")
        for target in line.split()[1:]
    }
    assert called
    assert called <= targets


def test_each_job_has_a_time_limit_and_no_rights_that_it_does_not_need():
    for name, job in JOBS.items():
        assert job["timeout-minutes"] <= 45, name
        if name != ("release", "publish"):
            assert "id-token" not in job.get("permissions", {}), name


def test_the_tests_run_on_every_cpython_and_system_that_is_named():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    matrix = JOBS["ci", "tests"]["strategy"]["matrix"]
    named = {one.rpartition(" :: ")[2] for one in project["classifiers"] if " 3." in one}
    assert named
    assert named <= set(matrix["python"])
    assert {"3.11", "3.12", "3.13", "3.14"} <= set(matrix["python"])
    assert JOBS["ci", "base"]["strategy"]["matrix"] == {"python": matrix["python"]}
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos"}


@pytest.mark.parametrize(("name", "job"), JOBS.items(), ids=lambda value: "-".join(value)[:40])
def test_only_what_is_tried_may_fail(name, job):
    assert job.get("continue-on-error", False) == (name == ("ci", "free-threaded"))


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.real_time
def test_the_build_needs_no_history_to_know_the_version(tmp_path):
    for name in ("pyproject.toml", "src/shoal/version.py"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(read(name), encoding="utf-8")
    command = [sys.executable, "-m", "hatchling", "version"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, shoal.__version__), ran.stderr


def test_the_changelog_begins_with_this_version():
    newest = re.search(r"^## (\S+):", read("docs/changelog.md"), re.MULTILINE)
    assert shoal.__version__.partition(".dev")[0] == newest[1]


def test_the_source_distribution_includes_only_files_that_exist():
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {".ci", ".github", "Makefile", "tests"} <= set(included)
    assert [name for name in included if not (ROOT / name).exists()] == []


def test_make_installs_every_extra_but_ray():
    [line] = re.findall(r"^EXTRAS := (.*)$", read("Makefile"), re.MULTILINE)
    assert set(line.split(",")) == {*EXTRAS} - {"ray"}


def test_the_tools_of_developers_are_not_offered_to_users():
    assert {*EXTRAS}.isdisjoint(GROUPS)
    required = [one for group in GROUPS.values() for one in group if isinstance(one, str)]
    assert [one for one in required if one.startswith("shoal")] == [], "pip would ask the registry"


def test_the_help_of_make_lists_at_most_twelve_targets():
    assert len(re.findall(r"^[a-z-]+:.*## ", read("Makefile"), re.MULTILINE)) <= 12
