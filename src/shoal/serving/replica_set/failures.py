"""Counts the starts and failures of a backend's replicas, and gives the delay of restarts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio

from shoal.core.histogram import TIME_BOUNDS_S, Histogram
from shoal.core.replicas.restarts import Restarts
from shoal.errors import ReplicaNotStarted

if TYPE_CHECKING:
    from shoal.serving.replica_set.managed import ManagedReplica


class Failures:
    """The starts and failures of one backend's replicas.

    Args:
        name: The backend's tag, for messages.

    Attributes:
        starts: The number of replicas that were started.
        deaths: The number that died or were killed.
        restarts: The number that were started in place of one that died.
        start_failures: The number that could not be started.
        start_s: How long starts took until the replica was ready, in seconds.
        last: Why the last one failed; None if another one has become ready since. One that died
            when it was to end anyway does not count.
    """

    def __init__(self, name: str) -> None:
        self.starts = self.deaths = self.restarts = self.start_failures = 0
        self.start_s = Histogram(TIME_BOUNDS_S)
        self.last: Exception | None = None
        self._name = name
        self._restarts = Restarts()

    @property
    def is_open(self) -> bool:
        """Whether starting has failed so often that callers should not wait for it."""
        return self._restarts.is_open

    def starting(self) -> float:
        """Counts a start; returns how long to delay it, in seconds."""
        self.starts += 1
        return max(0.0, self._restarts.next_at - anyio.current_time())

    def forget(self, last: Exception | None) -> None:
        """Removes the delay of the next start, since the config has changed.

        Args:
            last: The failure to keep as `last`.
        """
        self._restarts.forget()
        self.last = last

    def ready(self, took_s: float | None) -> None:
        """Records that a replica has become ready.

        Args:
            took_s: How long its start took, in seconds; None if that is not known.
        """
        if took_s is not None:
            self.start_s.observe(took_s)
        self._restarts.started(anyio.current_time())
        self.last = None

    def failed(self, managed: ManagedReplica, failure: Exception, *, is_replaced: bool) -> None:
        """Records that a replica has died, or could not be started.

        Args:
            managed: The replica.
            failure: The reason.
            is_replaced: Whether another one is started in its place, or already was.
        """
        if is_replaced or managed.ready_at is None:
            self.last = failure
        now = anyio.current_time()
        point = random.random()  # noqa: S311 - spreads restarts in time
        if managed.ready_at is not None:
            self.deaths += 1
            self.restarts += is_replaced
            self._restarts.died(now, point, ready_at=managed.ready_at)
        else:
            self.start_failures += 1
            self._restarts.failed(now, point, began_at=managed.began_at)

    def not_started(self, cause: Exception | None) -> ReplicaNotStarted:
        """Returns the error for callers that wait for a replica to start."""
        if isinstance(cause, ReplicaNotStarted):
            return cause
        failure = ReplicaNotStarted(f"no replica of {self._name} could be started: {cause}")
        failure.__cause__ = cause
        return failure
