"""Autoscaling: reports a backend's load to `core.replicas.autoscaling` and applies its decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from shoal.core.replicas.autoscaling import Autoscaler

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.replicas.autoscaling import AutoscalingOptions


class Scaling:
    """The autoscaling of one backend: a task that runs only while it is configured."""

    def __init__(
        self,
        load: Callable[[], tuple[int, int]],
        wanted: Callable[[], int],
        set_wanted: Callable[[int], None],
        start_task: Callable[..., None],
    ) -> None:
        self._load = load  # the queued requests, and those in replicas
        self._wanted = wanted
        self._set_wanted = set_wanted
        self._start_task = start_task
        self._scope: anyio.CancelScope | None = None
        self._options: AutoscalingOptions | None = None
        self._woken = anyio.Event()
        self._was_woken = 0

    def wake(self) -> None:
        """Decides now if no replica is wanted; called when a batch is due."""
        if not self._wanted():
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
            self._start_task(self._run, options, self._scope)

    async def _run(self, options: AutoscalingOptions, scope: anyio.CancelScope) -> None:
        scaler = Autoscaler(options)
        with scope:
            while True:
                now = anyio.current_time()
                # A request that was refused since there was no replica is no longer in the queue.
                queued, ongoing = self._load()
                scaler.observe(now, max(queued, self._was_woken), ongoing)
                self._was_woken = 0
                wanted = scaler.decide(now, self._wanted())
                if wanted != self._wanted():
                    self._set_wanted(wanted)
                with anyio.move_on_after(options.metrics_interval_s):
                    await self._woken.wait()
                self._woken = anyio.Event()
