"""The servers that http.py compares, and the commands that start them.

The commands are those of users. Servers other than Shoal's are installed by ``make bench-peers``
into an environment of their own, with pinned versions; those that are missing are left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.http_process import ROOT, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PEERS: Final = ROOT / ".venv-peers" / "bin"
OWN: Final = Path(sys.executable).parent
PEER_PACKAGES: Final = (
    *("uvicorn", "httptools", "uvloop", "fastapi", "granian", "mosec", "orjson", "litserve"),
)
OWN_PACKAGES: Final = (
    *("shoal", "trio", "httptools", "uvloop", "hypercorn", "starlette", "pydantic", "orjson"),
    "uvicorn",
)
_LIST_VERSIONS: Final = """
import importlib.metadata as metadata, json, sys
found = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""


@cache
def peer_versions() -> Mapping[str, str]:
    """Returns the versions of the packages in the environment of the compared servers."""
    python = PEERS / "python"
    if not python.exists():
        return {}
    listed = subprocess.run(
        [python, "-c", _LIST_VERSIONS, *PEER_PACKAGES], capture_output=True, text=True, check=True
    )
    versions: dict[str, str] = json.loads(listed.stdout)
    return versions


@cache
def own_versions() -> Mapping[str, str]:
    """Returns the versions of the packages in this environment."""
    versions = {}
    for package in OWN_PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


@dataclass(frozen=True)
class Server:
    """A server that can be started.

    Attributes:
        name: Its name in the tables.
        command: The command, whose first part is a program of its environment.
        packages: The packages without which it can't be started.
        is_peer: Whether it runs in the environment of the compared servers.
    """

    name: str
    command: Sequence[str]
    packages: Sequence[str] = ()
    is_peer: bool = False

    @property
    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        versions = peer_versions() if self.is_peer else own_versions()
        return [package for package in self.packages if package not in versions]

    @property
    def how_to_install(self) -> str:
        """The command that installs what is missing."""
        if self.is_peer:
            return "make bench-peers"
        return f"{_shown(sys.executable)} -m pip install {' '.join(self.missing)}"

    @property
    def shown_command(self) -> str:
        """The command as one types it, with the word ``PORT`` for the port."""
        return " ".join(map(_shown, self._command())).replace("{port}", "PORT")

    def start(self) -> ServerProcess:
        """Starts it; see `ServerProcess.wait_answer`."""
        return ServerProcess(self.name, self._command())

    def _command(self) -> list[str]:
        program, *arguments = self.command
        return [str((PEERS if self.is_peer else OWN) / program), *arguments]


def shoal_serve(name: str, app: str, *options: str) -> Server:
    """Returns Shoal's own server."""
    packages = ("uvloop",) if "asyncio" in options else ()
    command = ("shoal", "serve", app, "--port", "{port}", *options)
    return Server(name, command, packages)


def floor(name: str, app: str, reading: str) -> Server:
    """Returns the floor, see http_floor.py."""
    return Server(name, ("python", "-m", "benchmarks.http_floor", app, "{port}", reading))


def uvicorn(name: str, app: str, *options: str, is_peer: bool = True) -> Server:
    """Returns uvicorn at its fastest."""
    fastest = ("--loop", "uvloop", "--http", "httptools", "--no-access-log")
    command = ("uvicorn", app, "--port", "{port}", *fastest, *options)
    packages = ["uvicorn", "uvloop", "httptools"]
    if "fastapi" in app:
        packages.append("fastapi")
    return Server(name, command, packages, is_peer)


def hypercorn(name: str, app: str) -> Server:
    """Returns Hypercorn on trio, without Shoal's server."""
    command = ("hypercorn", app, "--bind", "127.0.0.1:{port}", "--worker-class", "trio")
    return Server(name, command, ("hypercorn",))


def granian(name: str, app: str) -> Server:
    """Returns Granian, which is written in Rust."""
    command = ("granian", app, "--interface", "asgi", "--port", "{port}")
    return Server(name, command, ("granian", "uvloop"), is_peer=True)


def mosec(name: str, module: str) -> Server:
    """Returns mosec, whose front end is written in Rust."""
    command = ("python", "-m", module, "--port", "{port}")
    return Server(name, command, ("mosec",), is_peer=True)


def _shown(part: str) -> str:
    return part.removeprefix(f"{ROOT}/")
