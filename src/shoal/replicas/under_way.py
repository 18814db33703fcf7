"""The work that a replica in this process has under way, and how all of it is ended at once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from shoal.errors import ReplicaDied
from shoal.replicas.current import running_replica

if TYPE_CHECKING:
    from collections.abc import Generator

    from shoal.replicas.current import Identity
    from shoal.replicas.jobs import Job


class UnderWay:
    """Async code in cancel scopes, and plain code as jobs.

    Args:
        identity: The replica's.

    Attributes:
        is_open: Whether work is taken.
        end: How the replica ended, for messages, once it has.
        ended: Set when it has ended.
        jobs: The jobs whose threads are not done with them.
    """

    def __init__(self, identity: Identity) -> None:
        self.is_open = False
        self.end: str | None = None
        self.ended = anyio.Event()
        self.jobs: set[Job] = set()
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
            yield
        finally:
            running_replica.reset(token)

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Async code runs in this block, and is cancelled when the replica ends.

        Raises:
            ReplicaDied: The replica is not ready, or ended meanwhile.
        """
        self.check_open()
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope, self.identified():
                yield
        except Exception as error:
            if scope.cancel_called:
                raise self.died() from error
            raise
        finally:
            self._scopes.remove(scope)
            self._look_if_idle()
        if scope.cancel_called:
            raise self.died()

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
