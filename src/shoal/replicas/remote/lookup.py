"""The addresses of model servers: as they were given, behind a host's name, or in a file."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from shoal.core.addresses import addresses_in, file_of, model_server_address
from shoal.loops.unlimited import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shoal.core.addresses import ModelServerAddress

logger: Final = logging.getLogger("shoal.serving")

_TIMEOUT_S: Final = 10.0


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
            text = await anyio.to_thread.run_sync(
                self._read, path, abandon_on_cancel=True, limiter=UNLIMITED
            )
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
