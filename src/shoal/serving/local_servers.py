"""The paths of the admin sockets of this user's servers on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def admin_socket_directory() -> Path:
    """Returns a directory that need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime, "shoal")
    try:
        return Path.home() / ".cache" / "shoal"
    except RuntimeError:
        raise ConnectionError(
            f"there is no directory for this user's servers: user {os.getuid()} has no home "
            "directory; set XDG_RUNTIME_DIR to a directory that only this user can write"
        ) from None


def admin_socket(name: str) -> Path:
    return admin_socket_directory() / f"{name}.sock"
