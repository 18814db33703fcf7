"""The paths of the admin sockets of this user's servers on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def admin_socket_directory() -> Path:
    """Returns the directory of all servers' admin sockets, which need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "shoal") if runtime else Path.home() / ".cache" / "shoal"


def admin_socket(name: str) -> Path:
    """Returns the path of the UNIX socket of a server that was started with that name."""
    return admin_socket_directory() / f"{name}.sock"
