"""A replica in this event loop: for async code, and for plain code in worker threads.

It runs any number of batches at once, and nothing is serialized. It shares this process: code that
blocks the event loop blocks everything, and code that crashes the interpreter ends everything.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from shoal.loops.event_loop import holds_ctrl_c
from shoal.replicas.local.replica import LocalReplica

if TYPE_CHECKING:
    from contextvars import Context

    from shoal.batching.handlers.binding import Binding
    from shoal.batching.open_batch import OpenBatch
    from shoal.replicas.code.jobs import Job
    from shoal.replicas.contract import Blueprint
    from shoal.replicas.local.work import JobThread


_MOST_IDLE: Final = 8


class TaskReplica(LocalReplica):
    """Runs constructors, imports, plain hooks and plain code in threads, since they may block."""

    takes_open_batches: ClassVar = True

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._idle: list[JobThread] = []

    @holds_ctrl_c
    async def run_open(self, method: str, batch: OpenBatch[Any, Any]) -> None:
        handler = self._handler(method)
        with self._work.within_scope() as scope:
            await self._work.run(handler.function(batch), scope)

    def open_binding(self, method: str) -> Binding:
        return self.instance.description.open_binding(method, self.tag)

    def _begin(self, job: Job, context: Context) -> None:
        # There is no limit: the batcher limits the number of batches already.
        thread = self._idle.pop() if self._idle else self._new_thread()
        thread.begin(job, context, partial(self._done, thread))

    async def _keep(self, thread: JobThread) -> None:
        await super()._keep(thread)
        if thread in self._idle:  # it could not be started
            self._idle.remove(thread)

    def _done(self, thread: JobThread, job: Job, value: Any, error: BaseException | None) -> None:
        if job.following is None:  # otherwise the thread continues
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(thread)
            else:
                thread.release()
        self._answered(job, value, error)
