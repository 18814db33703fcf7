"""The model servers of a backend with ``placement="remote"``: which there are at the moment."""

from __future__ import annotations

import logging
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.core.addresses import addresses_in, file_of, model_server_address
from shoal.errors import ReplicaNotStarted
from shoal.loops.unlimited import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from shoal.core.addresses import ModelServerAddress
    from shoal.serving.backend_config import BackendConfig
    from shoal.serving.backends.pool import Pool
    from shoal.serving.backends.supervisor import Supervisor

logger: Final = logging.getLogger("shoal.serving")

_TIMEOUT_S: Final = 10.0

LOOKUP_S: Final = 5.0
"""The pause between two look-ups of names and files."""


class Lookup:
    """Looks up entries again and again. One that fails keeps the addresses it had."""

    def __init__(self, backend: str, entries: Sequence[str]) -> None:
        self._backend = backend
        self._entries = entries
        self._last: dict[str, list[str]] = {}
        self._failures: dict[str, str] = {}
        # The paths that threads are reading. A file on a broken mount, or a pipe, is never read.
        self._being_read: set[str] = set()
        # The version of IP that is used for a name in an entry.
        self._families: dict[tuple[str, ModelServerAddress], int] = {}

    async def addresses(self, ready: Collection[str] = ()) -> tuple[str, ...]:
        """Returns the addresses, each once, in order; model servers were reached at the `ready`."""
        async with anyio.create_task_group() as tasks:
            for entry in self._entries:
                tasks.start_soon(self._look_up, entry, ready)
        found = [one for entry in self._entries for one in self._last.get(entry, ())]
        return tuple(dict.fromkeys(found))

    async def _look_up(self, entry: str, ready: Collection[str]) -> None:
        try:
            with anyio.fail_after(_TIMEOUT_S):
                self._last[entry] = await self._addresses_of(entry, ready)
            self._failures.pop(entry, None)
        except (OSError, ValueError) as error:
            self._note(entry, error)

    async def _addresses_of(self, entry: str, ready: Collection[str]) -> list[str]:
        path = file_of(entry)
        if path is None:
            named = [model_server_address("model_servers", entry)]
        else:
            if path in self._being_read:
                raise TimeoutError
            text = await in_thread(partial(self._read, path), abandon_on_cancel=True)
            if not (named := addresses_in(text)):
                raise ValueError("it has no address")
        return [
            one
            for address in dict.fromkeys(named)
            for one in await self._behind(entry, address, ready)
        ]

    async def _behind(
        self, entry: str, address: ModelServerAddress, ready: Collection[str]
    ) -> list[str]:
        # This machine has one address for each version of IP, and one server.
        if not address.is_name or address.host == "localhost":
            return [str(address)]
        host = address.host
        found: list[Any] = await anyio.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
        families: dict[int, list[str]] = {}
        for family, _, _, _, name in found:
            families.setdefault(family, []).append(str(address.at(name[0])))
        # A server may have an address of each version, and nothing says which belong together. So
        # one version is used: the other one if nothing was reached over it since the last time.
        used = self._families.get((entry, address))
        if used not in families or not any(one in ready for one in families[used]):
            others = [family for family in families if family != used] or families
            used = self._families[entry, address] = next(iter(others))
        return families[used]

    def _read(self, path: str) -> str:
        self._being_read.add(path)
        try:
            return Path(path).read_text()
        finally:
            self._being_read.discard(path)

    def _note(self, entry: str, error: Exception) -> None:
        """Logs a failure once, until another one takes its place."""
        why = str(error) or f"no answer within {_TIMEOUT_S:g} s"
        if self._failures.get(entry) != why:
            self._failures[entry] = why
            logger.warning("%s: can't look up %s: %s", self._backend, entry, why)


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
            if not managed.life.was_asked_to_end and not managed.life.is_over
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
                there = self._supervisor.ready
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
