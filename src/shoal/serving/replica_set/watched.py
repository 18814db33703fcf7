"""Waiting for the replicas of a backend: for the first, for any, for all to be as they should."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from shoal.errors import BatcherClosed
from shoal.serving.replica_set.failures import Failures

if TYPE_CHECKING:
    from shoal.replicas.code.description import Description
    from shoal.serving.config.config import BackendConfig
    from shoal.serving.replica_set.managed import Kept
    from shoal.serving.replica_set.pool import Pool


class Watched:
    """What there is of a backend's replicas, and who waits for that to change.

    Args:
        name: The backend's tag.
        pool: The replicas that take work.
        config: How they run.

    Attributes:
        config: The config that new replicas are started with.
        wanted: How many there should be.
        kept: Those there are, in whatever state.
        description: What their code can do; None until one has been ready.
        failures: What has become of those that were started.
    """

    def __init__(self, name: str, pool: Pool, config: BackendConfig) -> None:
        self.config = config
        self.wanted = config.num_replicas
        self.kept: list[Kept] = []
        self.description: Description | None = None
        self.failures = Failures(name)
        self._name = name
        self._pool = pool
        self._version = 0
        self._change = anyio.Event()
        self._is_ending = self._is_over = False
        # While a change is under way: those that were there before it, and why one failed since.
        self._before_change: list[Kept] | None = None
        self._lost: Exception | None = None

    def ready(self) -> list[Kept]:
        """Returns the replicas that take work."""
        return [kept for kept in self.kept if kept.life.takes_work]

    async def settle(self) -> None:
        """Waits, during a change, until there are as many replicas of this version as wanted.

        Raises:
            ReplicaNotStarted: One that was started for the change failed to, or died.
        """
        while self._lost is None and not self._is_complete():
            self._check_goes_on()
            await self._change.wait()
        self._check_goes_on()
        if self._lost is not None:
            raise self.failures.not_started(self._lost)

    async def wait_drained(self) -> None:
        """Waits until there are no replicas but those that there should be, or none at all."""
        while self._has_others() and not (self._is_ending or self._is_over):
            await self._change.wait()

    async def wait_restored(self, count: int) -> None:
        """Waits, after a change that failed, until nothing is left of it.

        Replicas that have died meanwhile are waited for only as long as others may be started.

        Args:
            count: How many replicas took work before.
        """
        while (len(self.ready()) < min(count, self.wanted) and not self.failures.is_open) or any(
            kept.version != self._version for kept in self.kept
        ):
            self._check_goes_on()
            await self._change.wait()

    async def first_ready(self) -> Description:
        """Waits for the first replica, and returns what it can do.

        Raises:
            ReplicaNotStarted: None of the first ones could be started.
            BatcherClosed: The backend is closing.
        """
        while self.description is None:
            self._check_goes_on()
            if self.failures.start_failures >= self.config.num_replicas:
                raise self.failures.not_started(self.failures.last)
            await self._change.wait()
        return self.description

    async def described(self) -> Description:
        """Waits until it is known what the code can do.

        Raises:
            BackendUnavailable: No replica has been ready, and none can be started.
            BatcherClosed: The backend is closing.
        """
        while self.description is None:
            await self._may_wait()
        return self.description

    async def any_ready(self) -> Kept:
        """Waits until a replica takes work, and returns one that does.

        Raises:
            BackendUnavailable: There is none, and none can be started.
            BatcherClosed: The backend is closing.
        """
        while not (ready := self.ready()):
            await self._may_wait()
        return ready[0]

    async def _may_wait(self) -> None:
        self._check_goes_on()
        self._pool.check_available()
        await self._change.wait()

    def _check_goes_on(self) -> None:
        if self._is_ending or self._is_over:
            raise BatcherClosed(f"the backend {self._name} is closed")

    def is_over(self) -> None:
        """Tells whoever waits that there will be no replica."""
        self._is_over = True
        self._tell()

    def _is_complete(self) -> bool:
        return sum(kept.version == self._version for kept in self.ready()) >= self.wanted

    def _has_others(self) -> bool:
        # Not those that are worn out: in a busy backend there may always be some on their way out.
        return any(
            not kept.life.is_over
            and (kept.version != self._version or (kept.life.is_leaving and not kept.is_worn_out))
            for kept in self.kept
        )

    def _tell(self) -> None:
        self._change.set()
        self._change = anyio.Event()
