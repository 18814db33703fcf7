"""Handwritten digits: a random forest of 200 trees on the data that comes with scikit-learn.

A forest shows the gain of batching well. Nearly all of a prediction's time is spent on visiting the
trees and hardly any on the image, so 64 images take about as long as one.
"""

import sys
from typing import Annotated, TypedDict

import numpy as np
from pydantic import Field

import shoal

TREES = 200
_TREES_PER_STEP = 20

Pixel = Annotated[float, Field(ge=0, le=16, allow_inf_nan=False)]
Row = Annotated[list[Pixel], Field(min_length=8, max_length=8)]
Image = Annotated[list[Row], Field(min_length=8, max_length=8)]
"""8 rows of 8 pixels, from 0 (paper) to 16 (ink)."""


class BatchInfo(TypedDict):
    """The batch of a request: its number, its size, and its dispatch reason."""

    id: int
    size: int
    reason: str


class Prediction(TypedDict):
    """The most likely digit, the probability of each from 0 to 9, and the batch of the request."""

    digit: int
    probabilities: list[float]
    batch: BatchInfo


class Digits:
    """Predicts which digit an image shows.

    The constructor trains the model, with progress on standard error. A fifth of the data is held
    out to measure its accuracy.

    Attributes:
        accuracy: The share of the held-out images that are predicted correctly.
    """

    def __init__(self, trees: int = TREES) -> None:
        # It takes a second to import: only the process that runs the model waits for it.
        from sklearn.datasets import load_digits
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.model_selection import train_test_split

        images, labels = load_digits(return_X_y=True)
        train_images, test_images, train_labels, test_labels = train_test_split(
            images, labels, test_size=0.2, random_state=0, stratify=labels
        )
        # One job: the handler runs in a thread of the server. A pool of more threads would cost a
        # small batch more than it saves.
        self._forest = RandomForestClassifier(
            n_estimators=0, warm_start=True, random_state=0, n_jobs=1
        )
        for grown in [*range(_TREES_PER_STEP, trees, _TREES_PER_STEP), trees]:
            self._forest.set_params(n_estimators=grown).fit(train_images, train_labels)
            print(f"digits: {grown} of {trees} trees grown", file=sys.stderr, flush=True)
        self.accuracy = float(self._forest.score(test_images, test_labels))
        print(
            f"digits: {self.accuracy:.1%} of {len(test_labels)} held-out images right",
            file=sys.stderr,
            flush=True,
        )

    def __call__(self, images: list[Image]) -> list[Prediction]:
        """Predicts the digit of each image."""
        pixels = np.array(images, dtype=np.float64).reshape(len(images), 64)
        rows = self._forest.predict_proba(pixels)
        batch = shoal.current_batch()
        info = BatchInfo(id=batch.id, size=batch.size, reason=batch.reason.value)
        return [
            Prediction(digit=int(row.argmax()), probabilities=row.tolist(), batch=info)
            for row in rows
        ]
