"""Autoscaling: reports a backend's load to `core.replicas.autoscaling` and applies its decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import anyio

from shoal.core.replicas.autoscaling import Autoscaler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from shoal.core.replicas.autoscaling import AutoscalingOptions
    from shoal.serving.replica_set.supervisor import Supervisor


class Scaled(Protocol):
    """The part of a backend that autoscaling uses."""

    supervisor: Supervisor

    @property
    def queued(self) -> int:
        """The number of queued requests."""
        ...

    @property
    def ongoing(self) -> int:
        """The number of requests in replicas."""
        ...

    def set_wanted(self, num_replicas: int) -> None:
        """Changes the number of replicas."""
        ...

    def start_task(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Starts a task that ends with the backend."""
        ...


class Scaling:
    """The autoscaling of one backend: a task that runs only while autoscaling is configured."""

    def __init__(self, backend: Scaled) -> None:
        self._backend = backend
        self._scope: anyio.CancelScope | None = None
        self._options: AutoscalingOptions | None = None
        self._woken = anyio.Event()
        self._was_woken = 0

    def wake(self) -> None:
        """Makes autoscaling decide now if no replica is wanted; called when a batch is due."""
        if not self._backend.supervisor.wanted:
            self._was_woken = 1
            self._woken.set()

    def configure(self, options: AutoscalingOptions | None) -> None:
        """Starts, changes or ends autoscaling; None ends it."""
        if options == self._options:
            return
        self._options = options
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None
        if options is not None:
            self._scope = anyio.CancelScope()
            self._backend.start_task(self._run, options, self._scope)

    async def _run(self, options: AutoscalingOptions, scope: anyio.CancelScope) -> None:
        backend = self._backend
        scaler = Autoscaler(options)
        with scope:
            while True:
                now = anyio.current_time()
                # A request that was refused since there was no replica is no longer in the queue.
                queued = max(backend.queued, self._was_woken)
                self._was_woken = 0
                scaler.observe(now, queued, backend.ongoing)
                wanted = scaler.decide(now, backend.supervisor.wanted)
                if wanted != backend.supervisor.wanted:
                    backend.set_wanted(wanted)
                with anyio.move_on_after(options.metrics_interval_s):
                    await self._woken.wait()
                self._woken = anyio.Event()
