"""model.py under Shoal, in the server's process and in one of its own, without a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import shoal
from benchmarks.http_peers import model

if TYPE_CHECKING:
    from collections.abc import Iterator


def predict(items: list[dict[str, int]]) -> list[dict[str, int]]:
    """Returns a result for each item."""
    return [{"value": value} for value in model.predict([item["value"] for item in items])]


def generate(items: list[dict[str, int]]) -> Iterator[list[str]]:
    """Yields the tokens of a step."""
    yield from model.generate([item["value"] for item in items])


app: Final = shoal.App()
app.endpoint("/predict", max_batch_size=model.SIZE)(predict)
app.endpoint("/generate", max_batch_size=model.SIZE)(generate)

in_process: Final = shoal.App()
for path, handler in (("/predict", predict), ("/generate", generate)):
    in_process.endpoint(path, placement="process", max_batch_size=model.SIZE, isolate_errors=True)(
        handler
    )
