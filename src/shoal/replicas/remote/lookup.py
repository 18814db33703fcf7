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
    from collections.abc import Sequence

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

    async def addresses(self) -> tuple[str, ...]:
        """Returns the addresses, each once, in the order of the entries."""
        async with anyio.create_task_group() as tasks:
            for entry in self._entries:
                tasks.start_soon(self._look_up, entry)
        found = [one for entry in self._entries for one in self._last.get(entry, ())]
        return tuple(dict.fromkeys(found))

    async def _look_up(self, entry: str) -> None:
        try:
            with anyio.fail_after(_TIMEOUT_S):
                self._last[entry] = await self._addresses_of(entry)
            self._failures.pop(entry, None)
        except (OSError, ValueError) as error:
            self._note(entry, error)

    async def _addresses_of(self, entry: str) -> list[str]:
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
        return [str(one) for address in named for one in await _behind(address)]

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


async def _behind(address: ModelServerAddress) -> list[ModelServerAddress]:
    # This machine has one address for each version of IP, and one server.
    if not address.is_name or address.host == "localhost":
        return [address]
    found: list[Any] = await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    # A server with addresses of both versions of IP is one server.
    family = found[0][0]
    return [address.at(name[0]) for one, _, _, _, name in found if one == family]
