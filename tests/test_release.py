"""A release: its version comes from the tag, and its pins fit what the library requires.

`make release-check` builds one and installs it; this is what takes no time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
# What is not for running the library, or brings half of PyPI.
NOT_PINNED = {"demo", "dev", "docs", "interop", "ray", "release", "test"}


def pins():
    """Returns the pinned versions by name, for this CPython and system."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.lstrip().startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate(default_environment()):
                found[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    return found


@pytest.mark.parametrize("extra", [None, *sorted({*EXTRAS} - NOT_PINNED)])
def test_what_an_extra_requires_is_pinned(extra):
    pinned = pins()
    for text in PYPROJECT["project"]["dependencies"] if extra is None else EXTRAS[extra]:
        required = Requirement(text)
        if required.marker is None or required.marker.evaluate():
            assert required.specifier.contains(pinned[canonicalize_name(required.name)]), text


def test_make_constraints_pins_these_extras():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [line] = [one for one in makefile.splitlines() if one.startswith("RUN_TIME_EXTRAS")]
    assert set(line.partition(":= ")[2].split()) == {*EXTRAS} - NOT_PINNED


@pytest.fixture
def copy(tmp_path):
    """A copy of what the version is made of, without a history."""
    copied = tmp_path / "copy"
    copied.mkdir()
    shutil.copy(ROOT / "pyproject.toml", copied)
    return copied


def git(directory, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=directory, check=True, capture_output=True)


def version_of(directory):
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(directory.parent)}
    for name in ("SETUPTOOLS_SCM_PRETEND_VERSION", "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SHOAL"):
        environment.pop(name, None)
    ran = subprocess.run(
        [sys.executable, "-m", "hatchling", "version"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.real_time
@pytest.mark.skipif(shutil.which("git") is None, reason="git is missing")
def test_the_version_comes_from_the_tag(copy):
    git(copy, "init", "--quiet")
    git(copy, "add", ".")
    git(copy, "commit", "--quiet", "--message", "one")
    assert version_of(copy) == "0.0.1.dev1", "a clone without tags"
    git(copy, "tag", "v1.2.0")
    assert version_of(copy) == "1.2.0"
    git(copy, "commit", "--quiet", "--allow-empty", "--message", "two")
    assert version_of(copy) == "1.2.1.dev1"


@pytest.mark.real_time
def test_a_source_distribution_has_the_version_that_it_was_made_with(copy):
    (copy / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: shoal\nVersion: 3.4.5\n")
    assert version_of(copy) == "3.4.5"


@pytest.mark.real_time
def test_a_copy_without_history_can_be_built(copy):
    assert version_of(copy) == "0.0.0"


def test_what_a_release_is_made_of_is_in_the_source_distribution():
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {".ci", ".github", "Makefile", "constraints.txt", "newsfragments"} <= set(included)
    assert [name for name in included if not (ROOT / name).exists()] == []
