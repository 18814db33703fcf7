"""Sockets that systemd has opened for this process: its protocol for socket activation.

systemd listens before it starts the server, and after it has ended, so that clients who connect
meanwhile wait rather than fail. What it passes is in three variables: ``LISTEN_PID`` is the process
that the sockets are for, ``LISTEN_FDS`` is how many there are, from descriptor 3 on, and
``LISTEN_FDNAMES`` has their names, which ``FileDescriptorName=`` sets. A socket named ``admin``
gets the admin API, every other one the application.
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
    """The sockets that systemd has passed to this process.

    Attributes:
        public: Those of the application; none if systemd passed none.
        admin: That of the admin API, or None.
    """

    public: tuple[Inherited, ...] = ()
    admin: Inherited | None = None


NO_SOCKETS: Final = PassedSockets()


def passed_sockets(environment: MutableMapping[str, str] | None = None) -> PassedSockets:
    """Takes the sockets that are for this process, and their variables out of the environment.

    So no child process takes them for its own. Without such variables, or if they are for another
    process, there are none.

    Args:
        environment: The environment; None for that of the process.

    Raises:
        ValueError: A socket can't be listened at, is not named once, or would let everyone on this
            machine open the admin API.
    """
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
    """Checks that a descriptor is a socket to listen at, and that no child process gets it."""
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
        return True  # an address, or the name of an abstract socket, has no permissions
    return bool(stat.S_IMODE(os.stat(path).st_mode) & stat.S_IWOTH)
