"""A replica in a thread of its own: for plain code that must stay in one thread.

CUDA contexts, SQLite connections and event loops of other libraries belong to the thread that
created them. So one thread runs all of the code, one call after another: the constructor, the
hooks, the batches and the steps of generators. Only ``health()`` runs in another thread at the same
time.

Threads share the GIL. Code that holds it slows down everything in this process, the event loop
first. Use a process for such code.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from shoal.replicas.code.instance import HOOKS, is_async
from shoal.replicas.local.replica import LocalReplica
from shoal.replicas.threads import loop_of_caller

if TYPE_CHECKING:
    from shoal.replicas.code.jobs import Job
    from shoal.replicas.contract import Blueprint
    from shoal.replicas.threads import Soon

_MISSING: Final = object()


class ThreadReplica(LocalReplica):
    """A replica in one thread of its own; its code must be plain."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._queue: SimpleQueue[tuple[Job, Context] | None] = SimpleQueue()

    def _begin_threads(self) -> None:
        self._tasks.start_soon(self._keep_thread)

    async def _keep_thread(self) -> None:
        _, soon = loop_of_caller()
        work = partial(self._do_jobs, soon, copy_context())
        with self._thread():
            await anyio.to_thread.run_sync(
                work, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )

    def _release_threads(self) -> None:
        self._queue.put(None)

    def _begin(self, job: Job) -> None:
        self._queue.put((job, copy_context()))

    def _check_code(self) -> None:
        handlers = self.instance.handlers
        names = [name for name, handler in handlers.items() if not handler.threaded]
        names += [h for h in HOOKS if (hook := self.instance.hook(h)) and is_async(hook)]
        if names:
            raise TypeError(
                f"placement='thread' is for plain code, but {', '.join(names)} of "
                f"{self.blueprint.definition.name} is async; use placement='task'"
            )

    def _do_jobs(self, soon: Soon, loop_context: Context) -> None:
        # Callers' contexts say that an event loop runs; restore what this thread's context says.
        differences: list[tuple[ContextVar[Any], Any]] = [
            (variable, value)
            for variable, value in copy_context().items()
            if loop_context.get(variable, _MISSING) is not value
        ]
        while (entry := self._queue.get()) is not None:
            job, context = entry
            for variable, value in differences:
                context.run(variable.set, value)
            # Does not wait: an event loop that has ended would never call it.
            soon(self._answered, job, *context.run(job.run))
            del entry, job, context  # or they would stay alive until the next job
