"""The handler of the demo's workers: recognises digits in slow motion.

A run takes a few milliseconds, too fast to watch, and two workers at full speed would leave a small
machine no time for the page. Therefore each run lasts a multiple of its own processor time. The
factor is the same for all batch sizes, so the relative gain of batching is unchanged.
"""

import os
import time
from typing import TypedDict

from examples.digits.model import Digits, Image, Prediction

SLOW_MOTION = 10
"""The ratio of the duration of a run to its processor time."""

TREES = 60
"""The size of the forest, large enough to recognise nearly all digits."""


class Run(TypedDict):
    """One run of the model: its duration in seconds, and its process."""

    lasted_s: float
    worker: int


class WatchedPrediction(Prediction):
    """A prediction and the run that made it."""

    run: Run


class SlowDigits:
    """The handler; its model is trained when its worker starts."""

    def __init__(self) -> None:
        self._digits = Digits(TREES)

    def __call__(self, images: list[Image]) -> list[WatchedPrediction]:
        """Predicts the digit of each image."""
        began_at, processor_s = time.perf_counter(), time.thread_time()
        predictions = self._digits(images)
        lasts_s = SLOW_MOTION * (time.thread_time() - processor_s)
        time.sleep(max(0.0, began_at + lasts_s - time.perf_counter()))
        run = Run(lasted_s=time.perf_counter() - began_at, worker=os.getpid())
        return [WatchedPrediction(**prediction, run=run) for prediction in predictions]
