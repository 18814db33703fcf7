"""Sockets that systemd has opened for this process: its protocol for socket activation.

systemd listens before the server starts and after it has stopped, so new connections wait rather
than fail. Three variables describe the sockets: ``LISTEN_PID`` is the process that they are for,
``LISTEN_FDS`` is their number, from descriptor 3 on, and ``LISTEN_FDNAMES`` has their names, which
``FileDescriptorName=`` sets. The socket named ``admin`` serves the admin API, every other socket
the application.
"""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.server.listeners import Inherited

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

_FIRST_FD: Final = 3
_ADMIN: Final = "admin"
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


@dataclass(frozen=True)
class PassedSockets:
    public: tuple[Inherited, ...] = ()  # sockets of the application
    admin: Inherited | None = None


NO_SOCKETS: Final = PassedSockets()


def passed_sockets(environment: MutableMapping[str, str] | None = None) -> PassedSockets:
    """Returns the sockets for this process; raises `ValueError` for an unusable one."""
    # They are removed from the environment, so that no child process takes the sockets for its own.
    variables = os.environ if environment is None else environment
    pid, count, names, _ = (variables.pop(name, "") for name in _VARIABLES)
    if not pid or pid != str(os.getpid()):
        return NO_SOCKETS
    if not (count.isascii() and count.isdigit()):
        raise ValueError(f"LISTEN_FDS must be how many sockets were passed, not {count!r}")
    fds = range(_FIRST_FD, _FIRST_FD + int(count))
    named = _names(names, len(fds))
    for fd, name in zip(fds, named, strict=True):
        _check(fd, name)
    admin = [Inherited(fd) for fd, name in zip(fds, named, strict=True) if name == _ADMIN]
    if len(admin) > 1:
        raise ValueError(f"{len(admin)} of the sockets from systemd are named {_ADMIN!r}, not one")
    public = [Inherited(fd) for fd, name in zip(fds, named, strict=True) if name != _ADMIN]
    return PassedSockets(tuple(public), admin[0] if admin else None)


def _names(text: str, count: int) -> Sequence[str]:
    names = text.split(":") if text else [""] * count
    if len(names) != count:
        raise ValueError(f"LISTEN_FDNAMES has {len(names)} names, for {count} sockets")
    return names


def _check(fd: int, name: str) -> None:
    """Checks that a descriptor is a listening socket, and keeps it from child processes."""
    what = f"file descriptor {fd} ({name or 'without a name'}) from systemd"
    try:
        os.set_inheritable(fd, False)
        passed = socket.socket(fileno=os.dup(fd))
    except OSError as error:
        raise ValueError(f"{what} is not a socket: {error.strerror}") from None
    with passed:
        if passed.type != socket.SOCK_STREAM:
            raise ValueError(f"{what} is not a stream socket; write ListenStream= in its unit")
        if not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ValueError(f"{what} does not listen; write Accept=no in its unit")
        if name == _ADMIN and _is_open_to_all(passed):
            raise ValueError(
                f"{what} would open the admin API to everyone on this machine; let its unit have a "
                "path as ListenStream=, and SocketMode=0600"
            )


def _is_open_to_all(passed: socket.socket) -> bool:
    path = passed.getsockname()
    if passed.family != socket.AF_UNIX or not path or path[0] in ("\0", 0):
        return True  # addresses and abstract sockets have no permissions
    return bool(stat.S_IMODE(os.stat(path).st_mode) & stat.S_IWOTH)
