"""The work that a replica in this process has under way, and how all of it is ended at once."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import anyio

from shoal.batching.failures.exceptions import ends_the_program, goes_on, own_copy
from shoal.batching.failures.held import shown
from shoal.batching.failures.holding import holding
from shoal.batching.loops.this_loop import parking_of_this_loop
from shoal.errors import ReplicaDied
from shoal.replicas.code.current import running_replica
from shoal.replicas.code.jobs import HANDLER

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from shoal.batching.decorator.block import BatcherBlock
    from shoal.replicas.code.current import Identity
    from shoal.replicas.code.jobs import Job


class UnderWay:
    """Async code in cancel scopes, and plain code as jobs.

    Args:
        identity: The replica's.
        kill: Ends the replica, with the reason.

    Attributes:
        is_open: Whether work is taken.
        end: How the replica ended, for messages, once it has.
        ended: Set when it has ended.
        jobs: The jobs whose threads are not done with them.
        block: Where batchers open that the code calls; None for where others do.
    """

    def __init__(self, identity: Identity, kill: Callable[[str], object]) -> None:
        self._kill = kill
        self.is_open = False
        self.end: str | None = None
        self.ended = anyio.Event()
        self.jobs: set[Job] = set()
        self.block: BatcherBlock | None = None
        self._identity = identity
        self._scopes: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()

    def check_open(self) -> None:
        """Refuses work before the replica is ready, and after its end.

        Raises:
            ReplicaDied: See there.
        """
        if not self.is_open:
            raise self.died()

    def died(self) -> ReplicaDied:
        """Makes the error of work that dies with the replica, one for each."""
        tag = self._identity.replica
        return ReplicaDied(f"{tag} {self.end or 'is not ready'}", replica=tag)

    @contextmanager
    def identified(self) -> Generator[None]:
        """The user's code runs in this block, and may ask which replica it is in."""
        token = running_replica.set(self._identity)
        try:
            with nullcontext() if self.block is None else self.block.in_context():
                yield
        finally:
            running_replica.reset(token)

    @contextmanager
    def running(self, name: str = HANDLER) -> Generator[None]:
        """The user's code runs in this block, and may raise anything.

        Args:
            name: What to call it in words.

        Raises:
            ReplicaDied: It raised what would end a process, and so it has ended its replica.
            HandlerFailed: It raised what is no `Exception`.
            Exception: What it raised.
        """
        with holding(partial(self.told, name=name)), self.identified():
            yield

    def told(self, error: BaseException, name: str = HANDLER) -> Exception:
        """Makes of what the code raised what its callers are told.

        What would end a process ends the replica, once it is ready.

        Args:
            error: What was raised.
            name: What to call the code in words.
        """
        if isinstance(error, Exception):
            return error
        if self.is_open and ends_the_program(error):
            self._kill(f"{name} raised {shown(error)}")
            return self.died()
        return own_copy(error, name)

    @contextmanager
    def at_work(self, name: str = HANDLER) -> Generator[None]:
        """Async code runs in this block, and is cancelled when the replica ends.

        Args:
            name: What to call it in words.

        Raises:
            ReplicaDied: The replica is not ready, or ended meanwhile.
        """
        with self.within_scope() as scope, self.cancellable(scope), self.running(name):
            yield

    @contextmanager
    def within_scope(self) -> Generator[anyio.CancelScope]:
        """Async code runs in this block, at once or step by step, in a cancel scope of its own.

        Raises:
            ReplicaDied: The replica ended while the code was `cancellable`.
        """
        scope = anyio.CancelScope()
        try:
            with scope:
                yield scope
        except GeneratorExit:  # the steps are not wanted any more
            raise
        except BaseException as error:
            if scope.cancel_called and not goes_on(error, parking_of_this_loop()):
                raise self.died() from error
            raise
        if scope.cancel_called:
            raise self.died()

    @contextmanager
    def cancellable(self, scope: anyio.CancelScope) -> Generator[None]:
        """The code of a scope runs in this block, and is cancelled when the replica ends.

        Raises:
            ReplicaDied: The replica is not ready.
        """
        self.check_open()
        self._scopes.add(scope)
        try:
            yield
        finally:
            self._scopes.remove(scope)
            self._look_if_idle()

    def has_begun(self, job: Job) -> None:
        """Notes that a thread will do a job."""
        self.jobs.add(job)

    def is_done(self, job: Job) -> None:
        """Notes that its thread is done with a job."""
        self.jobs.discard(job)
        self._look_if_idle()

    def finish(self, how: str, *, again: bool = False) -> None:
        """Notes the end, and ends all work.

        Args:
            how: What happened to the replica, such as ``"was stopped"``.
            again: Whether it counts although there was an end before.
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
        """Has nobody wait for a thread any more."""
        for job in self.jobs:
            job.give_up(self.died())

    async def wait_idle(self) -> None:
        """Waits until all code has really ended."""
        while self.jobs or self._scopes:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _look_if_idle(self) -> None:
        if not self.jobs and not self._scopes:
            self._idle.set()
