"""The model that peers.py has every server run: one batch at a time, as a GPU does.

It takes 2 ms per batch or step, and 0.05 ms per item of a batch. Some values ask for more.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIZE: Final = 64
WAIT_S: Final = 0.002
TOKENS: Final = 32
POISON: Final = -1  # fails
SLOW: Final = -2  # takes a second

# Where to note each batch, with the process that ran it; peers.py reads it for the faults.
_NOTES: Final = os.environ.get("PEERS_NOTES")
_device: Final = threading.Lock()


def predict(values: Sequence[int]) -> list[int]:
    """Returns the double of each value."""
    if _NOTES:
        with open(_NOTES, "a") as notes:
            notes.write(json.dumps({"pid": os.getpid(), "values": list(values)}) + "\n")
    with _device:
        time.sleep(1 if SLOW in values else 0.002 + 0.00005 * len(values))
    if POISON in values:
        raise ValueError("poison")
    return [2 * value for value in values]


def generate(values: Sequence[int]) -> Iterator[list[str]]:
    """Yields a token for each value in every step."""
    for nth in range(TOKENS):
        with _device:
            time.sleep(0.002)
        yield [f"token {nth}"] * len(values)
