"""A replica in this event loop: for async code, and for plain code in worker threads.

It runs any number of batches at once, and nothing is serialized. It shares the fate of this
process: code that blocks the event loop blocks everything, and code that crashes the interpreter
ends everything.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from shoal.batching.handlers.handler import Handler
from shoal.batching.loops.event_loop import holds_ctrl_c
from shoal.replicas.local.replica import LocalReplica

if TYPE_CHECKING:
    from shoal.batching.handlers.binding import Binding
    from shoal.batching.open.batch import OpenBatch
    from shoal.replicas.code.jobs import Job
    from shoal.replicas.contract import Blueprint


class TaskReplica(LocalReplica):
    """A replica in this event loop.

    A constructor, an import and plain hooks run in worker threads, since they may block. So does
    plain code; each batch may run in a different thread.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        # The batcher limits the number of batches already.
        self._limiter = anyio.CapacityLimiter(math.inf)

    @holds_ctrl_c
    async def run_open(self, method: str, batch: OpenBatch[Any, Any]) -> None:
        handler, _ = self._method(method)
        with self._work.at_work():
            await handler.function(batch)

    def open_binding(self, method: str) -> Binding:
        handler, _ = self._method(method)
        prototype = self.blueprint.definition.signature
        return Handler(handler.function, prototype, fill="open").binding

    def _begin(self, job: Job) -> None:
        # In a task of its own, so that callers stop waiting when the replica is killed.
        self._tasks.start_soon(self._do, job)

    async def _do(self, job: Job) -> None:
        try:
            with self._thread():
                value, error = await anyio.to_thread.run_sync(
                    job.run, abandon_on_cancel=True, limiter=self._limiter
                )
                self._answered(job, value, error)
        except Exception as error:  # no thread could be started
            self._answered(job, None, error)
