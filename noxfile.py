"""The suite on every CPython that is installed, and with the oldest dependencies that we declare.

`nox` runs all of it, `nox -s tests-3.12` one session; arguments after `--` go to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

OLDEST_MINOR, NEWEST_MINOR = 11, 20
PROMISED = ("3.11", "3.12", "3.13", "3.14")
PARALLEL = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
CALL_A_BATCHED_FUNCTION = """\
import sys, anyio, shoal

@shoal.batch(max_batch_size=2)
async def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]

async def main():
    async with shoal.open_batchers(lengths):
        assert await lengths.map(["cod", "plaice"]) == [3, 6]

anyio.run(main, backend=sys.argv[1])
"""
IS_CPYTHON = "import sys; sys.exit(sys.implementation.name != 'cpython')"


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


expose_pyenv_interpreters()
PYTHONS = found_pythons()
nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "virtualenv"


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The suite, with the newest dependencies there are."""
    session.install("--editable", ".[test]")
    session.run("python", "-m", "pytest", *PARALLEL, *session.posargs)


@nox.session(python=PYTHONS[:1])
def lowest(session: nox.Session) -> None:
    """The suite with each dependency at its floor, on the oldest CPython: newer lack wheels."""
    constraints = Path(session.create_tmp(), "floors.txt")
    constraints.write_text(subprocess.check_output([sys.executable, ".ci/floors.py"], text=True))
    session.install("--editable", ".[test]", "--constraint", str(constraints))
    session.run("python", "-m", "pip", "freeze", "--exclude-editable")
    session.run("python", "-m", "pytest", *PARALLEL, *session.posargs)


@nox.session(python=PROMISED, venv_backend="uv", download_python="never")
@nox.parametrize("resolution", ["highest", "lowest-direct"])
def base(session: nox.Session, resolution: str) -> None:
    """The wheel without extras, with the newest dependencies and with the oldest."""
    wheels = Path(session.cache_dir, "wheels").resolve()
    session.run_install("uv", "build", "--quiet", "--wheel", "--clear", "--out-dir", str(wheels))
    # uv's lowest are of what is named here: the dependencies, not those of the wheel.
    named = ("--requirement", "pyproject.toml", *map(str, wheels.glob("*.whl")))
    session.install(f"--resolution={resolution}", *named)
    session.chdir(session.create_tmp())
    for event_loop in ("trio", "asyncio"):
        session.run("python", "-W", "error", "-c", CALL_A_BATCHED_FUNCTION, event_loop)
