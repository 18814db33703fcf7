"""A thread that runs the jobs of a replica, one after the other.

It is one of anyio's worker threads, so its code can use ``anyio.from_thread``, but it stays with
the replica. Getting a worker thread for each job takes one iteration of the event loop before the
job begins, and that iteration may be long.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from shoal.replicas.threads import loop_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.replicas.code.jobs import Job
    from shoal.replicas.threads import Soon

    Answered = Callable[[Job, Any, BaseException | None], object]

_MISSING: Final = object()


class JobThread:
    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Job, Context, Answered] | None] = SimpleQueue()
        self._waiting = anyio.CancelScope(shield=True)

    def begin(self, job: Job, context: Context, answered: Answered) -> None:
        """Runs a job after earlier ones. Nothing else may run in its context."""
        # `answered` is called in the event loop with the job, its value and its error, and with
        # each following job that the thread starts by itself.
        self._queue.put((job, context, answered))

    def release(self) -> None:
        """Ends the thread after its jobs."""
        self._queue.put(None)

    def abandon(self) -> None:
        """Ends `run` at once; the thread itself ends after its jobs."""
        self._waiting.cancel()

    async def run(self) -> None:
        """Returns after `release` or `abandon`, not when cancelled. Without a thread, jobs fail."""
        _, soon = loop_of_caller()
        work = partial(self._do_jobs, soon, copy_context())
        try:
            with self._waiting:
                await anyio.to_thread.run_sync(
                    work, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
                )
        except Exception as error:  # no thread could be started
            while not self._queue.empty():
                if (entry := self._queue.get()) is not None:
                    job, _, answered = entry
                    answered(job, None, error)
        finally:
            self.release()  # its jobs may end after the event loop, which then releases nothing

    def _do_jobs(self, soon: Soon, loop_context: Context) -> None:
        # Callers' contexts say that an event loop runs; restore this thread's own values.
        differences: list[tuple[ContextVar[Any], Any]] = [
            (variable, value)
            for variable, value in copy_context().items()
            if loop_context.get(variable, _MISSING) is not value
        ]
        while (entry := self._queue.get()) is not None:
            job, context, answered = entry
            del entry  # else its job would keep all following jobs and their values
            for variable, value in differences:
                context.run(variable.set, value)
            following: Job | None = job
            while following is not None:
                job = following
                outcome = context.run(job.run)
                following = job.go_on() if self._queue.empty() else None
                # Does not wait: an event loop that has ended would never call it.
                soon(answered, job, *outcome)
                del outcome
            del job, context, answered  # or they would stay alive until the next job
