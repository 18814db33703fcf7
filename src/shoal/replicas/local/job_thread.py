"""A thread that runs the jobs of a replica, one after the other.

It is one of anyio's worker threads, so that code which it runs can use ``anyio.from_thread``, but
it stays with the replica: to get a worker thread for each job takes a pass of the event loop before
the job begins, and the loop may have much to do in that pass.
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
    """A thread for jobs."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Job, Context, Answered] | None] = SimpleQueue()
        self._waiting = anyio.CancelScope(shield=True)

    def begin(self, job: Job, context: Context, answered: Answered) -> None:
        """Runs a job after those that it was given before.

        Args:
            job: The job.
            context: Its context, of this loop, which nothing else runs in.
            answered: Called in the event loop with the job, its value and its error; and likewise
                with each job that the thread then goes on with by itself.
        """
        self._queue.put((job, context, answered))

    def release(self) -> None:
        """Lets the thread end after the jobs that it was given."""
        self._queue.put(None)

    def abandon(self) -> None:
        """Ends `run` at once; the thread itself ends after the jobs that it was given."""
        self._waiting.cancel()

    async def run(self) -> None:
        """Runs the thread until it was released. If it can't be started, its jobs fail.

        Cancellation: only `abandon` ends the wait for the thread.
        """
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
        # Callers' contexts say that an event loop runs; restore what this thread's context says.
        differences: list[tuple[ContextVar[Any], Any]] = [
            (variable, value)
            for variable, value in copy_context().items()
            if loop_context.get(variable, _MISSING) is not value
        ]
        while (entry := self._queue.get()) is not None:
            job, context, answered = entry
            del entry  # else its job would keep all that follow it, with their values
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
