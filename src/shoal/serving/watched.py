"""Waiting for the replicas of a backend: for the first, for any, for all to be as they should."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from shoal.errors import BatcherClosed
from shoal.serving.failures import Failures

if TYPE_CHECKING:
    from shoal.replicas.description import Description
    from shoal.serving.config import BackendConfig
    from shoal.serving.keeping import Kept
    from shoal.serving.pool import Pool


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

    def ready(self) -> list[Kept]:
        """Returns the replicas that take work."""
        return [kept for kept in self.kept if kept.life.takes_work]

    async def settle(self) -> None:
        """Waits until there are as many replicas as wanted, all of this version, and no others.

        Raises:
            ReplicaNotStarted: One could not be started meanwhile.
        """
        before = self.failures.start_failures
        while not self._is_settled():
            self._check_goes_on()
            if self.failures.start_failures > before:
                raise self.failures.not_started()
            await self._change.wait()
        self._check_goes_on()

    async def first_ready(self) -> Description:
        """Waits for the first replica, and returns what it can do.

        Raises:
            ReplicaNotStarted: None of the first ones could be started.
            BatcherClosed: The backend is closing.
        """
        while self.description is None:
            self._check_goes_on()
            if self.failures.start_failures >= self.config.num_replicas:
                raise self.failures.not_started()
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

    def _is_settled(self) -> bool:
        ready = [kept for kept in self.ready() if kept.version == self._version]
        # Not those that are worn out: in a busy backend there may always be some on their way out.
        others = [
            kept
            for kept in self.kept
            if not kept.life.is_over
            and (kept.version != self._version or (kept.life.is_leaving and not kept.is_worn_out))
        ]
        return len(ready) >= self.wanted and not others

    def _tell(self) -> None:
        self._change.set()
        self._change = anyio.Event()
