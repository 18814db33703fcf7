"""No connection is accepted for which there is no place.

The limit stands before ``accept``: a connection beyond it waits in the kernel's backlog, where it
costs no file descriptor, task or buffer of this process, and is served when a place is free. The
rival, to accept and then answer 503, spends on each refused client what the limit should save.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final

import anyio

from shoal.http.server.client_socket import ClientSocket

if TYPE_CHECKING:
    from shoal.http.server.listeners import BoundSocket

_log = logging.getLogger("shoal.server")

# `accept` reports with these that the process or the machine is short of something; a moment later
# it may not be.
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_S: Final = 0.1
# With these it reports that nobody waits, or that who did is gone: Linux hands on whatever error
# the network had for that client, or that a firewall has refused it.
_NOBODY: Final = frozenset(
    {
        *(errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR, errno.ECONNABORTED, errno.ECONNRESET),
        *(errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ETIMEDOUT),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    }
)
_BACKLOG: Final = 1024


class LimitedListener:
    """A bound socket that accepts while there are places.

    Invariant: ``places taken == streams given out and not yet released``.

    Args:
        bound: A bound socket, which this object owns from now on.
        max_connections: How many connections may be open at once.
    """

    def __init__(self, bound: BoundSocket, max_connections: int) -> None:
        self._bound = bound
        self._max_connections = max_connections
        self._places = anyio.Semaphore(max_connections, max_value=max_connections)
        self._said_full = False

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return self._bound.url

    def listen(self) -> None:
        """From here on clients can connect.

        Raises:
            OSError: Somebody else listens at this address.
        """
        self._bound.socket.listen(_BACKLOG)

    async def accept(self) -> ClientSocket:
        """Wait for a place, then for a client. Give the place back with `release`."""
        while True:
            await self._take_place()
            try:
                return await self._accept()
            except OSError as error:
                self.release()
                if error.errno not in _EXHAUSTED:
                    raise
                _log.error("can't accept connections at the moment: %s", error)
                await anyio.sleep(_RETRY_S)
            except BaseException:
                self.release()
                raise

    def accept_waiting(self) -> ClientSocket | None:
        """A client that has connected already, if one has and there is a place; never waits."""
        try:
            self._places.acquire_nowait()
        except anyio.WouldBlock:
            return None
        try:
            accepted, _ = self._bound.socket.accept()
        except OSError:
            self.release()
            return None
        return ClientSocket(accepted)

    def release(self) -> None:
        """A connection has ended."""
        self._places.release()

    def close(self) -> None:
        """From here on the kernel refuses connections."""
        self._bound.close()

    async def _accept(self) -> ClientSocket:
        while True:
            try:
                accepted, _ = self._bound.socket.accept()
            except OSError as error:
                if error.errno not in _NOBODY:
                    raise
                await anyio.wait_readable(self._bound.socket)
            else:
                return ClientSocket(accepted)

    async def _take_place(self) -> None:
        if self._places.value == 0 and not self._said_full:
            self._said_full = True
            _log.warning(
                "all %d places for connections are taken (--max-connections); more will wait."
                " This is said once.",
                self._max_connections,
            )
        await self._places.acquire()
