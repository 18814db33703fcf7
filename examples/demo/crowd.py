"""Simulated clients: tasks that call an endpoint like any other caller, and their statistics.

Each client is a closed loop: it calls, waits for the answer, pauses for a random time, and calls
again. The number of clients determines the load.
"""

import random
from collections import deque
from typing import NamedTuple, TypedDict

import anyio
import numpy as np
from anyio.abc import TaskGroup

import shoal
from examples.demo.log import Log
from examples.demo.worker import WatchedPrediction

PAUSE_S = 0.1
"""The mean pause of a client between an answer and its next call."""

_AFTER_ERROR_S = 0.5
_WINDOW_S = 4.0  # the time that the figures cover
_ANSWERS_KEPT = 10_000
_BATCHES_KEPT = 250


class Question(NamedTuple):
    """An image and the digit that it shows."""

    image: list[list[float]]
    digit: int


class SeenBatch(TypedDict):
    """One batch as observed by its callers; times in seconds, on the event loop's clock."""

    id: int
    size: int
    reason: str
    began_at: float
    lasted_s: float
    waited_s: float


class Figures(TypedDict):
    """Statistics of the clients: totals, and rates and latencies of the last seconds.

    Every call is answered, failed, given up or open.
    """

    asked: int
    answered: int
    right: int
    failed: int
    given_up: int
    open: int
    rate: float
    mean_batch: float
    p50_s: float | None
    p99_s: float | None


class Crowd:
    """Clients of one endpoint.

    Args:
        handle: The handle of the endpoint.
        questions: The questions that they ask, at random.

    Attributes:
        batches: The batches that contained their requests.
        worker: The process that answered last; None before the first answer of the running one.
    """

    def __init__(self, handle: shoal.Handle, questions: list[Question]) -> None:
        self.batches: Log[SeenBatch] = Log(_BATCHES_KEPT)
        self.worker: int | None = None
        self._lost: int | None = None
        self._handle = handle
        self._questions = questions
        self._clients: list[anyio.CancelScope] = []
        self._began_at = anyio.current_time()
        self._latest_batch = -1
        self._asked = self._right = self._failed = self._given_up = self._answered = 0
        # For each answer: its time, its latency, and its share of a batch.
        self._answers: deque[tuple[float, float, float]] = deque(maxlen=_ANSWERS_KEPT)

    def resize(self, tasks: TaskGroup, clients: int) -> None:
        """Starts or cancels clients to reach the number; a cancelled client gives up its call."""
        while len(self._clients) > clients:
            self._clients.pop().cancel()
        while len(self._clients) < clients:
            self._clients.append(anyio.CancelScope())
            tasks.start_soon(self._client, self._clients[-1])

    def figures(self) -> Figures:
        """Returns the current statistics."""
        now = anyio.current_time()
        while self._answers and self._answers[0][0] < now - _WINDOW_S:
            self._answers.popleft()
        latencies = [latency_s for _, latency_s, _ in self._answers]
        batches = sum(part for _, _, part in self._answers)
        p50, p99 = np.percentile(latencies, [50, 99]).tolist() if latencies else (None, None)
        return Figures(
            asked=self._asked,
            answered=self._answered,
            right=self._right,
            failed=self._failed,
            given_up=self._given_up,
            open=self._asked - self._answered - self._failed - self._given_up,
            rate=len(latencies) / min(_WINDOW_S, max(now - self._began_at, 0.1)),
            mean_batch=len(latencies) / batches if batches else 0.0,
            p50_s=p50,
            p99_s=p99,
        )

    async def _client(self, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                await anyio.sleep(random.expovariate(1 / PAUSE_S))
                await self._ask(random.choice(self._questions))

    async def _ask(self, question: Question) -> None:
        asked_at = anyio.current_time()
        self._asked += 1
        try:
            prediction: WatchedPrediction = await self._handle.call(question.image)
        except shoal.errors.ShoalError:
            self._failed += 1
            await anyio.sleep(_AFTER_ERROR_S)
        except BaseException:
            self._given_up += 1
            raise
        else:
            self._right += prediction["digit"] == question.digit
            self._answer(prediction, anyio.current_time() - asked_at)

    def take_worker(self) -> int | None:
        """Returns the running worker, to be killed, and forgets it until another one answers."""
        worker, self.worker = self.worker, None
        self._lost = worker or self._lost
        return worker

    def _answer(self, prediction: WatchedPrediction, latency_s: float) -> None:
        now = anyio.current_time()
        batch, run = prediction["batch"], prediction["run"]
        if run["worker"] != self._lost:  # its last answers may arrive after its death
            self.worker = run["worker"]
        self._answered += 1
        self._answers.append((now, latency_s, 1 / batch["size"]))
        # The answers of a batch arrive together, that to its oldest request first.
        if batch["id"] == self._latest_batch:
            return
        self._latest_batch = batch["id"]
        self.batches.add(
            SeenBatch(
                id=batch["id"],
                size=batch["size"],
                reason=batch["reason"],
                began_at=now - run["lasted_s"],
                lasted_s=run["lasted_s"],
                waited_s=max(0.0, latency_s - run["lasted_s"]),
            )
        )
