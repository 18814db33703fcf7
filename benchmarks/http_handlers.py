"""The handlers that http.py has served: by Shoal (http_app.py) and by bare loops (http_bare.py)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MAX_BATCH_SIZE: Final = 64
BATCH_WAIT_TIMEOUT_S: Final = 0.002
MODEL_TOKENS: Final = 32
TOKENS: Final = 64
PACE_S: Final = 0.005

# The model's statistics, which the benchmark reads.
work: Final = {"batches": 0, "items": 0, "stream_batches": 0, "streams": 0}


async def noop(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the items."""
    return items


_EMBEDDING: Final = np.linspace(-1, 1, 768, dtype=np.float32)


async def embed(texts: list[str]) -> list[Any]:
    """Returns an array of 768 numbers for each text."""
    return [_EMBEDDING] * len(texts)


async def paced(items: list[dict[str, Any]]) -> AsyncIterator[list[str]]:
    """A token for each prompt every few milliseconds."""
    for nth in range(TOKENS):
        await anyio.sleep(PACE_S)
        yield [f"token {nth}"] * len(items)


async def at_once(items: list[dict[str, Any]]) -> AsyncIterator[list[str]]:
    """Tokens without a wait between them."""
    for nth in range(TOKENS):
        yield [f"token {nth}"] * len(items)


def predict(items: list[dict[str, int]]) -> list[dict[str, int]]:
    """A blocking model: 2 ms per batch and 0.05 ms per item."""
    work["batches"] += 1
    work["items"] += len(items)
    time.sleep(0.002 + 0.00005 * len(items))
    return [{"value": 2 * item["value"]} for item in items]


def generate(items: list[dict[str, int]]) -> Iterator[list[str]]:
    """A blocking model: 2 ms per step, with a token for each prompt."""
    work["stream_batches"] += 1
    work["streams"] += len(items)
    for nth in range(MODEL_TOKENS):
        time.sleep(0.002)
        yield [f"token {nth}"] * len(items)
