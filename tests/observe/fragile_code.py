"""Code for replicas elsewhere that can't be started once, when a test says so."""

from __future__ import annotations

import os
from pathlib import Path


class Fragile:
    """Answers with the process that it runs in."""

    def __init__(self, flaw: str) -> None:
        try:
            Path(flaw).unlink()
        except FileNotFoundError:
            return
        raise OSError("no weights in the file")

    def __call__(self, item: int) -> int:
        return os.getpid()
