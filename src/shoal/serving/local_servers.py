"""Where the servers of this user have their doors on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def door_directory() -> Path:
    """Returns the directory of the doors of all servers, which need not be there."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "shoal") if runtime else Path.home() / ".cache" / "shoal"


def door(name: str) -> Path:
    """Returns the UNIX socket of a server that was started by that name."""
    return door_directory() / f"{name}.sock"
