"""Simulated clients: tasks that call an endpoint as any caller does, and what they saw.

Each is a closed loop with a pause: it asks, waits for its answer, pauses for a random time, and
asks again. So their number is the load.
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
"""The mean pause of a client between an answer and its next question."""

_AFTER_ERROR_S = 0.5
_SEEN_S = 4.0  # what the figures are about
_ANSWERS_KEPT = 10_000
_BATCHES_KEPT = 250


class Question(NamedTuple):
    """An image, and the digit that it shows."""

    image: list[list[float]]
    digit: int


class SeenBatch(TypedDict):
    """One batch, as its callers saw it; times in seconds, on the event loop's clock."""

    id: int
    size: int
    reason: str
    began_at: float
    lasted_s: float
    waited_s: float


class Figures(TypedDict):
    """How the crowd was served: the totals, and the last seconds.

    Every question that was asked is answered, failed, given up or open.
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
        handle: What calls the endpoint.
        questions: What they ask, over and over.

    Attributes:
        batches: The batches that they travelled in.
        worker: The process that answered last; None before the first answer of the one that runs.
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
        # When each answer came, how long it had taken, and the part of a batch that it was.
        self._answers: deque[tuple[float, float, float]] = deque(maxlen=_ANSWERS_KEPT)

    def resize(self, tasks: TaskGroup, clients: int) -> None:
        """Let clients come or go until there are so many; who goes leaves its call."""
        while len(self._clients) > clients:
            self._clients.pop().cancel()
        while len(self._clients) < clients:
            self._clients.append(anyio.CancelScope())
            tasks.start_soon(self._client, self._clients[-1])

    def figures(self) -> Figures:
        """Return how the crowd is served."""
        now = anyio.current_time()
        while self._answers and self._answers[0][0] < now - _SEEN_S:
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
            rate=len(latencies) / min(_SEEN_S, max(now - self._began_at, 0.1)),
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
        except shoal.ShoalError:
            self._failed += 1
            await anyio.sleep(_AFTER_ERROR_S)
        except BaseException:
            self._given_up += 1
            raise
        else:
            self._right += prediction["digit"] == question.digit
            self._answer(prediction, anyio.current_time() - asked_at)

    def take_worker(self) -> int | None:
        """Give the worker to whoever kills it; from here on another one is waited for."""
        worker, self.worker = self.worker, None
        self._lost = worker or self._lost
        return worker

    def _answer(self, prediction: WatchedPrediction, latency_s: float) -> None:
        now = anyio.current_time()
        batch, run = prediction["batch"], prediction["run"]
        if run["worker"] != self._lost:  # its last answers may come when it is dead
            self.worker = run["worker"]
        self._answered += 1
        self._answers.append((now, latency_s, 1 / batch["size"]))
        # The answers of a batch come together, that to its oldest question first.
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
