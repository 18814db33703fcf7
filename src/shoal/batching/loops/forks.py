"""What a process has that was forked: copies of all objects, and of no thread but its own."""

from __future__ import annotations

import threading
from functools import partial


def keep_for_ever(block: object) -> None:
    """Keeps the copy of a block whose thread is the parent's.

    To drop it would close it, and that waits for the thread. A thread keeps it, since whatever else
    could lets go of it when the process ends.
    """
    wait = partial(_wait, block)
    threading.Thread(target=wait, name="shoal keeps a block", daemon=True).start()


def _wait(_kept: object) -> None:
    threading.Event().wait()
