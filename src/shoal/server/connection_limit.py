"""A limit on the number of open connections.

The limit is applied before ``accept``. A connection beyond it waits in the kernel's backlog, where
it uses no file descriptor, task or buffer of this process. It is accepted when another connection
ends. Accepting it and answering 503 would use the resources that the limit protects.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    import socket

    from shoal.server.listeners import BoundSocket

_log = logging.getLogger("shoal.server")

# `accept` fails with these when the process or the machine is short of a resource; it is retried.
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_S: Final = 0.1
# `accept` fails with these when no client waits, or when the waiting client has disconnected. Linux
# reports network errors of that client, or that a firewall has refused it.
_NOBODY: Final = frozenset(
    {
        *(errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR, errno.ECONNABORTED, errno.ECONNRESET),
        *(errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ETIMEDOUT),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    }
)
_BACKLOG: Final = 1024
_LOGGED_EVERY_S: Final = 60.0


class Exhaustion:
    """Logs once a minute, for all addresses, that no connection can be accepted."""

    def __init__(self) -> None:
        self._logged_at = -math.inf

    def note(self, error: OSError) -> None:
        now = anyio.current_time()
        if now - self._logged_at >= _LOGGED_EVERY_S:
            self._logged_at = now
            _log.error(
                "can't accept connections at the moment: %s; new connections wait. This is logged"
                " once a minute.",
                error.strerror or error,
            )


def check_descriptors(max_connections: int) -> None:
    """Warns if this process may open fewer files than its connections need."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + len(os.listdir("/dev/fd"))
    if most != resource.RLIM_INFINITY and most < needed:
        _log.warning(
            "this process may open %d files, but --max-connections %d needs %d: raise the limit"
            " (ulimit -n), or lower --max-connections",
            most,
            max_connections,
            needed,
        )


class LimitedListener:
    def __init__(self, bound: BoundSocket, max_connections: int, exhaustion: Exhaustion) -> None:
        self._exhaustion = exhaustion
        self.bound_socket = bound
        self._max_connections = max_connections
        # Invariant: permits in use == sockets returned and not yet released.
        self._permits = anyio.Semaphore(max_connections, max_value=max_connections)
        self._has_warned = False

    def listen(self) -> None:
        self.bound_socket.socket.listen(_BACKLOG)

    async def accept(self) -> socket.socket:
        await self._acquire()
        try:
            while True:
                try:
                    return self.bound_socket.socket.accept()[0]
                except OSError as error:
                    if error.errno in _EXHAUSTED:
                        self._exhaustion.note(error)
                        await anyio.sleep(_RETRY_S)
                    elif error.errno in _NOBODY:
                        await anyio.wait_readable(self.bound_socket.socket)
                    else:
                        raise
        except BaseException:
            self.release()
            raise

    def accept_waiting(self) -> socket.socket | None:
        """Returns a client that has connected already, if the limit allows it."""
        try:
            self._permits.acquire_nowait()
        except anyio.WouldBlock:
            return None
        try:
            return self.bound_socket.socket.accept()[0]
        except OSError:
            self.release()
            return None

    def release(self) -> None:
        self._permits.release()

    def close(self) -> None:
        self.bound_socket.close()

    async def _acquire(self) -> None:
        if self._permits.value == 0 and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the connection limit of %d is reached (--max-connections); more connections will"
                " wait. This is logged once.",
                self._max_connections,
            )
        await self._permits.acquire()
