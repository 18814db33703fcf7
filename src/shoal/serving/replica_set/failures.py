"""The starts and failures of a backend's replicas, and the delay of restarts."""

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
    def __init__(self, name: str) -> None:
        self.starts = self.deaths = self.restarts = self.start_failures = 0
        self.start_s = Histogram(TIME_BOUNDS_S)
        # The last failure; None once another replica is ready. The death of a replica that was
        # ending anyway does not set it.
        self.last: Exception | None = None
        self._name = name
        self._restarts = Restarts()

    @property
    def is_open(self) -> bool:
        """Whether starts failed so often that callers should not wait for one."""
        return self._restarts.is_open

    def starting(self) -> float:
        """Counts a start; returns its delay in seconds."""
        self.starts += 1
        return max(0.0, self._restarts.next_at - anyio.current_time())

    def forget(self, last: Exception | None) -> None:
        """Removes the delay of the next start, since the config has changed."""
        self._restarts.forget()
        self.last = last

    def ready(self, took_s: float | None) -> None:
        if took_s is not None:
            self.start_s.observe(took_s)
        self._restarts.started(anyio.current_time())
        self.last = None

    def failed(self, managed: ManagedReplica, failure: Exception, *, is_replaced: bool) -> None:
        """`is_replaced`: whether another replica starts in its place, or already has."""
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
        if isinstance(cause, ReplicaNotStarted):
            return cause
        failure = ReplicaNotStarted(f"no replica of {self._name} could be started: {cause}")
        failure.__cause__ = cause
        return failure
