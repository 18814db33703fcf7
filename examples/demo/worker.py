"""The digits in slow motion: what the workers of the demo run.

A run takes a few milliseconds, too fast to be watched, and two workers at full speed would leave a
small machine with nothing for the page. So each run lasts a multiple of the processor time that it
took. The multiple is the same for a batch of one and for a full one: what batching is worth stays
as it is.
"""

import os
import time
from typing import TypedDict

from examples.digits.model import Digits, Image, Prediction

SLOW_MOTION = 10
"""How many times its own processor time a run lasts."""

TREES = 60
"""The size of the forest: as many trees as are right about nearly all digits."""


class Run(TypedDict):
    """One run of the model: how long it lasted, in seconds, and in which process it was."""

    lasted_s: float
    worker: int


class WatchedPrediction(Prediction):
    """A prediction, and the run that made it."""

    run: Run


class SlowDigits:
    """The handler: it trains when its worker starts."""

    def __init__(self) -> None:
        self._digits = Digits(TREES)

    def __call__(self, images: list[Image]) -> list[WatchedPrediction]:
        """Predict the digit of each image."""
        began_at, processor_s = time.perf_counter(), time.thread_time()
        predictions = self._digits(images)
        lasts_s = SLOW_MOTION * (time.thread_time() - processor_s)
        time.sleep(max(0.0, began_at + lasts_s - time.perf_counter()))
        run = Run(lasted_s=time.perf_counter() - began_at, worker=os.getpid())
        return [WatchedPrediction(**prediction, run=run) for prediction in predictions]
