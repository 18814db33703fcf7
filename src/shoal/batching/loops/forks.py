"""Forked processes, which have copies of all objects but only one thread."""

from __future__ import annotations

import threading
from functools import partial


def keep_for_ever(block: object) -> None:
    """Keeps the copy of a block whose thread exists only in the parent process.

    Dropping it would close it, and closing waits for that thread. A daemon thread keeps it, since
    any other reference would be released when the process ends.
    """
    wait = partial(_wait, block)
    threading.Thread(target=wait, name="shoal keeps a block", daemon=True).start()


def _wait(_kept: object) -> None:
    threading.Event().wait()
