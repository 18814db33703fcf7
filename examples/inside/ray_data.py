"""A data set of Ray Data whose texts have very different lengths, in batches of similar texts.

python -m examples.inside.ray_data
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import ray.data

import shoal
from examples.inside.model import Model


class BatchedModel:
    """Puts texts of similar length into one batch, which pads them less."""

    def __init__(self) -> None:
        self.model = Model()

    @shoal.batch(max_batch_size=64, bucket_by=lambda text: len(text).bit_length())
    def measure(self, texts: list[str]) -> list[int]:
        return self.model(texts)


class Lengths:
    """What `map_batches` runs in an actor; the block is open for as long as the actor lives."""

    def __init__(self) -> None:
        self.batched = BatchedModel()
        self.call = ExitStack().enter_context(shoal.blocking(self.batched.measure))

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        before = self.batched.model.padded
        lengths = self.call.map(rows["text"].tolist())
        padded = np.zeros(len(lengths), int)
        padded[0] = self.batched.model.padded - before
        return {"length": np.array(lengths), "padded": padded}


def main() -> None:
    texts = ["a" * (4 ** (number % 6) + number % 7) for number in range(2048)]
    data = ray.data.from_items([{"text": text} for text in texts])
    # Ray Data's batch is what the batches of the model are taken from, so make it large.
    done = data.map_batches(Lengths, batch_size=1024, compute=ray.data.ActorPoolStrategy(size=1))
    rows = done.take_all()
    characters = sum(row["length"] for row in rows)
    padded = sum(row["padded"] for row in rows)
    print(f"{len(rows)} rows with {characters} characters, padded to {padded}")


if __name__ == "__main__":
    main()
