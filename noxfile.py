"""The suite on every CPython that is installed, and with the oldest dependencies that we declare.

`nox` runs all of it, `nox -s tests-3.12` one session; arguments after `--` go to pytest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import nox

OLDEST_MINOR, NEWEST_MINOR = 11, 20
IS_CPYTHON = "import sys; sys.exit(sys.implementation.name != 'cpython')"
PROJECT = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text())["project"]


def expose_pyenv_interpreters() -> None:
    """Put the versions that pyenv holds first on PATH: its shims start only the selected one."""
    bins = sorted(str(path) for path in Path("~/.pyenv/versions").expanduser().glob("3.*/bin"))
    os.environ["PATH"] = os.pathsep.join([*bins, os.environ["PATH"]])


def found_pythons() -> list[str]:
    """The CPythons from 3.11 on that start when they are called, as "3.11", "3.12", ..."""
    found = []
    for minor in range(OLDEST_MINOR, NEWEST_MINOR + 1):
        python = shutil.which(f"python3.{minor}")
        if python is None:
            continue
        started = subprocess.run([python, "-c", IS_CPYTHON], capture_output=True, check=False)
        if started.returncode == 0:
            found.append(f"3.{minor}")
    return found


def direct_requirements(extra: str | None = None) -> list[str]:
    """What the project and one extra require, with the extras it is made of followed."""
    listed = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    requirements = []
    for requirement in listed:
        own = re.fullmatch(r"shoal\[([\w,]+)\]", requirement)
        if own:
            for name in own[1].split(","):
                requirements += direct_requirements(name)
        else:
            requirements.append(requirement)
    return requirements


def floors() -> list[str]:
    """`name==floor` for each direct dependency of the library and its tests."""
    pinned = []
    for requirement in [*direct_requirements(), *direct_requirements("test")]:
        match = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)", requirement)
        if match is None:
            message = f"pyproject.toml requires {requirement!r}; wanted name>=floor"
            raise ValueError(message)
        pinned.append(f"{match[1]}=={match[2]}")
    return pinned


expose_pyenv_interpreters()
PYTHONS = found_pythons()
nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "virtualenv"


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The suite, with the newest dependencies there are."""
    session.install("--editable", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python=PYTHONS[:1])
def lowest(session: nox.Session) -> None:
    """The suite with each dependency at its floor, on the oldest CPython: newer lack wheels."""
    constraints = Path(session.create_tmp(), "floors.txt")
    constraints.write_text("\n".join(floors()) + "\n")
    session.install("--editable", ".[test]", "--constraint", str(constraints))
    session.run("python", "-m", "pip", "freeze", "--exclude-editable")
    session.run("python", "-m", "pytest", *session.posargs)
