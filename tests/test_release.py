"""What a release is made of. `make release-check` builds and installs one, which takes longer."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shoal

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]


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
