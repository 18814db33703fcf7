"""Autoscaling: tells `core.replicas.autoscaling` how busy a backend is, and does what that says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import anyio

from shoal.core.replicas.autoscaling import Autoscaler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from shoal.core.replicas.autoscaling import AutoscalingOptions
    from shoal.serving.replica_set.supervisor import Supervisor


class Scaled(Protocol):
    """A backend, as far as its scaling needs to know."""

    supervisor: Supervisor

    @property
    def queued(self) -> int:
        """How many requests are in line."""
        ...

    @property
    def ongoing(self) -> int:
        """How many requests are in replicas."""
        ...

    def set_wanted(self, num_replicas: int) -> None:
        """Changes the number of replicas."""
        ...

    def start_task(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Starts a task that ends with the backend."""
        ...


class Scaling:
    """The autoscaling of one backend: a task that is there only while it is asked for."""

    def __init__(self, backend: Scaled) -> None:
        self._backend = backend
        self._scope: anyio.CancelScope | None = None
        self._options: AutoscalingOptions | None = None
        self._woken = anyio.Event()
        self._was_woken = 0

    def wake(self) -> None:
        """Looks at once, if there is no replica at all: a batch is due."""
        if not self._backend.supervisor.wanted:
            self._was_woken = 1
            self._woken.set()

    def configure(self, options: AutoscalingOptions | None) -> None:
        """Begins, changes or ends it."""
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
                # Who was refused at once, since there was no replica, is not in line any more.
                queued = max(backend.queued, self._was_woken)
                self._was_woken = 0
                scaler.observe(now, queued, backend.ongoing)
                wanted = scaler.decide(now, backend.supervisor.wanted)
                if wanted != backend.supervisor.wanted:
                    backend.set_wanted(wanted)
                with anyio.move_on_after(options.metrics_interval_s):
                    await self._woken.wait()
                self._woken = anyio.Event()
