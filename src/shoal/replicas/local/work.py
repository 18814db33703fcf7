"""The work under way of a replica in this process, and the threads that run its plain code.

A `JobThread` is one of anyio's worker threads, so its code can use ``anyio.from_thread``, but it
stays with the replica. Getting a worker thread for each job takes one iteration of the event loop
before the job begins, and that iteration may be long.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread

from shoal.batching.current import Identity, running_batch, running_replica
from shoal.batching.decorator.block import BatcherBlock, own_block
from shoal.failures.exceptions import (
    ends_the_program,
    is_cancellation,
    must_propagate,
    own_copy,
)
from shoal.failures.held import holding, shown
from shoal.loops.event_loop import EventLoop
from shoal.replicas.code.jobs import HANDLER, Job
from shoal.replicas.ending import Ending
from shoal.replicas.threads import InnerCalls, inner_calls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from shoal.loops.parking import Parking, Scope

    Answered = Callable[[Job, Any, BaseException | None], object]

_MISSING: Final = object()


T = TypeVar("T")


class UnderWay:
    """Async code in cancel scopes, and plain code as jobs; `kill` ends the replica."""

    # Set before any code runs.
    parking: Parking

    def __init__(self, identity: Identity, kill: Callable[[str], object]) -> None:
        self._kill = kill
        self.is_open = False
        self.ending = Ending(identity.replica)
        # The jobs that threads still run; the replica adds and removes them.
        self.jobs: set[Job] = set()
        # The block in which batchers that the code calls are opened; None before the start.
        self.block: BatcherBlock | None = None
        self._identity = identity
        self._scopes: set[Scope] = set()
        self._idle: anyio.Event | None = None  # set only while a task waits for it

    def check_open(self) -> None:
        """Raises `ReplicaDied` before the replica is ready, and after its end."""
        if not self.is_open:
            raise self.ending.death()

    def context_for_thread(self, calls: InnerCalls | None) -> Context:
        """Returns a context for user code in a thread; `calls` replaces the current ones."""
        context = copy_context()
        context.run(running_replica.set, self._identity)
        context.run(own_block.set, self.block)
        if calls is not None:
            context.run(inner_calls.set, calls)
        return context

    def convert_error(self, error: BaseException, name: str = HANDLER) -> Exception:
        """Converts an error of the code; one that would end a process kills the replica."""
        if isinstance(error, Exception):
            return error
        if self.is_open and ends_the_program(error):
            self._kill(f"{name} raised {shown(error)}")
            return self.ending.death()
        return own_copy(error, name)

    @contextmanager
    def within_scope(self) -> Generator[Scope]:
        """Runs async code, whole or step by step, in a scope that the replica's end cancels."""
        scope = self.parking.new_scope()
        try:
            with scope:
                yield scope
        except GeneratorExit:  # the reader closed the stream
            raise
        except BaseException as error:
            if scope.cancel_called and not must_propagate(error, self.parking):
                raise self.ending.death() from error
            raise
        if scope.cancel_called:
            raise self.ending.death()

    async def run_batch(self, code: Awaitable[T]) -> T:
        """Runs the code of a batch, in the scope of its slot, which the replica's end cancels."""
        # A scope of its own would cost as much as all the rest of a small batch.
        scope: Scope | None = getattr(running_batch.get(None), "scope", None)
        if scope is None:  # its slot is in another process, or goes on with parts of the batch
            with self.within_scope() as scope:
                return await self.run(code, scope)
        try:
            value = await self.run(code, scope)
        except BaseException as error:
            is_of_code = isinstance(error, Exception) or is_cancellation(error)
            if is_of_code and scope.cancel_called and not self.is_open:
                raise self.ending.death() from error
            raise
        if scope.cancel_called and not self.is_open:
            raise self.ending.death()
        return value

    async def run(self, code: Awaitable[T], scope: Scope | None = None, name: str = HANDLER) -> T:
        """Awaits user code; `scope` is cancelled with the replica, None for hooks and clean-up."""
        if scope is not None:
            self._scopes.add(scope)
        replica = running_replica.set(self._identity)
        block = own_block.set(self.block)
        try:
            return await code
        except BaseException:
            if scope is not None:  # it has ended, if its error kills the replica
                self._scopes.discard(scope)
            with holding(partial(self.convert_error, name=name)):
                raise
        finally:
            own_block.reset(block)
            running_replica.reset(replica)
            if scope is not None:
                self._scopes.discard(scope)
            if self._idle is not None:
                self.look_if_idle()

    def finish(self) -> None:
        """Ends all work, because the replica ends."""
        self.is_open = False
        for job in self.jobs:
            job.give_up(self.ending.death())
        for scope in self._scopes:
            scope.cancel()

    async def wait_idle(self) -> None:
        """Waits until all code has ended, including code whose callers no longer wait."""
        while self.jobs or self._scopes:
            self._idle = anyio.Event()
            await self._idle.wait()

    def look_if_idle(self) -> None:
        if self._idle is not None and not self.jobs and not self._scopes:
            self._idle.set()


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
        self._queue.put(None)

    def abandon(self) -> None:
        """Ends `run` at once; the thread itself ends after its jobs."""
        self._waiting.cancel()

    async def run(self) -> None:
        """Returns after `release` or `abandon`, not when cancelled. Without a thread, jobs fail."""
        work = partial(self._do_jobs, EventLoop.here(), copy_context())
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

    def _do_jobs(self, loop: EventLoop, loop_context: Context) -> None:
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
                following = job.next_job() if self._queue.empty() else None
                # Does not wait: an event loop that has ended would never call it.
                loop.soon(answered, job, *outcome)
                del outcome
            del job, context, answered  # or they would stay alive until the next job
