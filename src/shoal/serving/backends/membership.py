"""The model servers of a backend with ``placement="remote"``: which there are at the moment."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from shoal.errors import ReplicaNotStarted
from shoal.replicas.remote.lookup import Lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.serving.backend_config import BackendConfig
    from shoal.serving.backends.pool import Pool
    from shoal.serving.backends.supervisor import Supervisor

logger: Final = logging.getLogger("shoal.serving")

LOOKUP_S: Final = 5.0
"""The pause between two look-ups of names and files."""


class Membership:
    """Looks up the addresses of a backend's model servers, and follows their changes."""

    def __init__(
        self, name: str, pool: Pool, supervisor: Supervisor, start_task: Callable[..., object]
    ) -> None:
        self._name = name
        self._pool = pool
        self._supervisor = supervisor
        self._start_task = start_task
        self._entries: Sequence[str] = ()
        self._addresses: tuple[str, ...] = ()
        self._known: set[str] = set()  # that were ever found: those that come back are no news
        self._scope: anyio.CancelScope | None = None

    async def begin(self, config: BackendConfig) -> None:
        """Looks up the addresses for the first time, before the first replicas are started."""
        self._entries = config.placed["model_servers"]
        lookup = Lookup(self._name, self._entries)
        self._follow(await lookup.addresses())
        self._start(lookup)

    async def prepare(self, config: BackendConfig) -> int:
        # For replicas of another placement, before they start; returns how many to start.
        self.end()
        self._entries = ()
        if not config.is_remote:
            return config.num_replicas
        lookup = Lookup(self._name, config.placed["model_servers"])
        if not (addresses := await lookup.addresses()):
            raise ReplicaNotStarted("model_servers leads to no address")
        self._entries, self._addresses = config.placed["model_servers"], addresses
        self._start(lookup)
        return len(addresses)

    def configure(self, config: BackendConfig) -> None:
        """Follows another list of model servers, or none with another placement."""
        entries = config.placed["model_servers"] if config.is_remote else ()
        if entries == self._entries:
            return
        self._entries = entries
        self.end()
        if entries:
            self._start(Lookup(self._name, entries), at_once=True)

    def end(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None

    def address_for_new(self) -> str:
        """Returns the address of the next replica: the one with the fewest."""
        if not self._addresses:
            raise ReplicaNotStarted("model_servers leads to no address")
        taken = [
            managed.replica.blueprint.address
            for managed in self._supervisor.managed
            if not managed.life.is_leaving and not managed.life.is_over
        ]
        return min(self._addresses, key=taken.count)

    def _start(self, lookup: Lookup, *, at_once: bool = False) -> None:
        self._scope = anyio.CancelScope()
        self._start_task(self._run, lookup, self._scope, at_once)

    async def _run(self, lookup: Lookup, scope: anyio.CancelScope, at_once: bool) -> None:
        with scope:
            while True:
                if not at_once:
                    await anyio.sleep(LOOKUP_S)
                at_once = False
                there = self._supervisor.ready()
                ready = {managed.replica.blueprint.address for managed in there}
                addresses = await lookup.addresses(ready)
                # Those that are there stay while nothing is found: a file may be being written.
                if addresses and set(addresses) != set(self._addresses):
                    self._follow(addresses)

    def _follow(self, addresses: tuple[str, ...]) -> None:
        if self._addresses:
            shown = ", ".join(addresses) or "none"
            logger.info("%s: the model servers are now %s", self._name, shown)
        is_news = not self._known.issuperset(addresses)
        self._known.update(addresses)
        self._addresses = addresses
        self._supervisor.follow(addresses, is_news=is_news)
        if addresses and not is_news:
            return
        nothing = ReplicaNotStarted("model_servers leads to no address")
        self._pool.fail(None if addresses else nothing)
