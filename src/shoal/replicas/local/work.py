"""The work under way of a replica in this process, which can be ended all at once."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from shoal.batching.decorator.block import own_block
from shoal.errors import ReplicaDied
from shoal.failures.exceptions import ends_the_program, goes_on, own_copy
from shoal.failures.held import shown
from shoal.failures.holding import holding
from shoal.replicas.code.current import running_replica
from shoal.replicas.code.jobs import HANDLER
from shoal.replicas.threads import inner_calls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from contextvars import Context

    from shoal.batching.decorator.block import BatcherBlock
    from shoal.loops.parking import Parking, Scope
    from shoal.replicas.code.current import Identity
    from shoal.replicas.code.jobs import Job
    from shoal.replicas.threads import InnerCalls

T = TypeVar("T")


class UnderWay:
    """The work under way: async code in cancel scopes, and plain code as jobs.

    Args:
        identity: The replica's tags.
        kill: Ends the replica, with a reason.

    Attributes:
        is_open: Whether work is accepted.
        end: How the replica ended, for messages; None before.
        ended: Set when the replica has ended.
        jobs: The jobs that threads still run; the replica adds and removes them.
        block: The block in which batchers that the code calls are opened; None before the start.
        parking: The event loop's way to wait; set before any code runs.
    """

    parking: Parking

    def __init__(self, identity: Identity, kill: Callable[[str], object]) -> None:
        self._kill = kill
        self.is_open = False
        self.end: str | None = None
        self.ended = anyio.Event()
        self.jobs: set[Job] = set()
        self.block: BatcherBlock | None = None
        self._identity = identity
        self._scopes: set[Scope] = set()
        self._idle: anyio.Event | None = None  # set only while a task waits for it

    def check_open(self) -> None:
        """Raises an error before the replica is ready, and after its end.

        Raises:
            ReplicaDied: The replica is not ready, or has ended.
        """
        if not self.is_open:
            raise self.died()

    def died(self) -> ReplicaDied:
        """Returns a new error for one piece of work that was lost with the replica."""
        tag = self._identity.replica
        return ReplicaDied(f"{tag} {self.end or 'is not ready'}", replica=tag)

    def context_for_thread(self, calls: InnerCalls | None) -> Context:
        """Returns a copy of the current context, for user code in a thread.

        Args:
            calls: Holds the calls that the code waits for; None for the current context's.
        """
        context = copy_context()
        context.run(running_replica.set, self._identity)
        context.run(own_block.set, self.block)
        if calls is not None:
            context.run(inner_calls.set, calls)
        return context

    def told(self, error: BaseException, name: str = HANDLER) -> Exception:
        """Converts what the code raised to the error that its callers get.

        An exception that would end a process kills the replica, if it is ready.

        Args:
            error: What was raised.
            name: The name of the code in errors.
        """
        if isinstance(error, Exception):
            return error
        if self.is_open and ends_the_program(error):
            self._kill(f"{name} raised {shown(error)}")
            return self.died()
        return own_copy(error, name)

    @contextmanager
    def within_scope(self) -> Generator[Scope]:
        """Runs async code in this block, whole or step by step, in a cancel scope of its own.

        The replica must be open at its start.

        Raises:
            ReplicaDied: The replica ended while code was in `run`.
        """
        scope = self.parking.new_scope()
        try:
            with scope:
                yield scope
        except GeneratorExit:  # the reader closed the stream
            raise
        except BaseException as error:
            if scope.cancel_called and not goes_on(error, self.parking):
                raise self.died() from error
            raise
        if scope.cancel_called:
            raise self.died()

    async def run(self, code: Awaitable[T], scope: Scope | None = None, name: str = HANDLER) -> T:
        """Awaits user code with the context variables of this replica.

        Args:
            code: The code.
            scope: The scope from `within_scope` to cancel when the replica ends; the replica must
                be open. None for hooks and clean-up, which that does not cancel.
            name: The name of the code in errors.

        Raises:
            ReplicaDied: The code raised what would end a process, so its replica was killed.
            HandlerFailed: The code raised something other than an `Exception`.
            Exception: What the code raised.
        """
        if scope is not None:
            self._scopes.add(scope)
        replica = running_replica.set(self._identity)
        block = own_block.set(self.block)
        try:
            return await code
        except BaseException:
            with holding(partial(self.told, name=name)):
                raise
        finally:
            own_block.reset(block)
            running_replica.reset(replica)
            if scope is not None:
                self._scopes.remove(scope)
            if self._idle is not None:
                self.look_if_idle()

    def finish(self, how: str, *, again: bool = False) -> None:
        """Records the end of the replica, and ends all work.

        Args:
            how: What happened to the replica, such as ``"was stopped"``.
            again: Whether to replace an end that was recorded before.
        """
        if self.end is not None and not again:
            return
        self.end = how
        self.is_open = False
        self.give_up_jobs()
        for scope in self._scopes:
            scope.cancel()
        self.ended.set()

    def give_up_jobs(self) -> None:
        """Makes all tasks stop waiting for threads."""
        for job in self.jobs:
            job.give_up(self.died())

    async def wait_idle(self) -> None:
        """Waits until all code has ended, including code whose callers no longer wait."""
        while self.jobs or self._scopes:
            self._idle = anyio.Event()
            await self._idle.wait()

    def look_if_idle(self) -> None:
        """Wakes `wait_idle` when nothing runs any more."""
        if self._idle is not None and not self.jobs and not self._scopes:
            self._idle.set()
