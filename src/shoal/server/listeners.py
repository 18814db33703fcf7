"""The addresses of a server: TCP addresses, UNIX sockets, and sockets from systemd.

An address is bound before the application starts, and the server listens once it has started.
Between the two, a UNIX socket refuses connections, as the socket file of a dead server does. A lock
on a file beside the socket shows whether its server is alive. The kernel releases the lock when the
process ends, for whatever reason.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from starlette.types import ASGIApp

    from shoal.core.addresses import ModelServerAddress


_PROBE_TIMEOUT_S: Final = 1.0
_FREE_PORTS_TRIED: Final = 8
_NO_SUCH_ADDRESS: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@dataclass(frozen=True)
class Tcp:
    host: str  # IPv4, IPv6, or a name
    port: int  # 0 for a free one

    def bind(self) -> list[BoundSocket]:
        """Binds a socket, or one to each address of a name; raises `OSError`."""
        for _ in range(_FREE_PORTS_TRIED if self.port == 0 else 0):
            with suppress(OSError):  # the port is free at the first address, but not at another
                return _bind_names(self)
        return _bind_names(self)


@dataclass(frozen=True)
class Unix:
    """A UNIX socket. The file of a dead server is replaced."""

    path: str
    mode: int = 0o600

    def bind(self) -> list[BoundSocket]:
        path = os.path.abspath(self.path)
        lock = _lock(f"{path}.lock")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale(path)
            bound.bind(path)
            # No client can connect before listen().
            os.chmod(path, self.mode)
            made = os.lstat(path)
        except BaseException as error:
            bound.close()
            _unlock(f"{path}.lock", lock)
            if isinstance(error, OSError) and "too long" in str(error):
                why = "a UNIX socket's path is too long"
                raise OSError(errno.ENAMETOOLONG, why, path) from None
            raise

        def release() -> None:
            with suppress(OSError):
                current = os.lstat(path)
                if (current.st_dev, current.st_ino) == (made.st_dev, made.st_ino):
                    os.unlink(path)
            _unlock(f"{path}.lock", lock)

        return [BoundSocket(bound, release)]


@dataclass(frozen=True)
class Inherited:
    """A bound stream socket that this process inherited; the server closes it at the end."""

    fd: int

    def bind(self) -> list[BoundSocket]:
        bound = socket.socket(fileno=self.fd)
        if bound.type != socket.SOCK_STREAM:
            bound.detach()  # leave it open
            raise OSError(errno.EPROTOTYPE, f"file descriptor {self.fd} is not a stream socket")
        return [BoundSocket(bound)]


Address: TypeAlias = Tcp | Unix | Inherited


@dataclass(frozen=True, kw_only=True)
class AppAddress:
    address: Address
    app: ASGIApp
    on_listening: Callable[[str], object] = lambda _: None  # called with the URL
    # The operator's: it has no TLS, no worker processes, and connection counts of its own, and
    # trusts no proxy. The lifespan of its application is not run.
    is_admin: bool = False


class BoundSocket:
    """A bound socket, and the clean-up that follows its closing."""

    def __init__(self, bound: socket.socket, release: Callable[[], object] = lambda: None) -> None:
        bound.setblocking(False)
        bound.set_inheritable(False)
        self.socket = bound
        self._release: Callable[[], object] | None = release  # called after the socket was closed

    @property
    def url(self) -> str:
        name = self.socket.getsockname()
        address = host_and_port(name)
        if address is None:
            return f"unix:{os.fsdecode(name)}"
        host, port = address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def close(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            self.socket.close()
            release()


def bind_for_servers(address: ModelServerAddress) -> list[BoundSocket]:
    """Binds the address at which other Shoal servers forward batches; raises `OSError`."""
    if address.scheme == "unix":
        return Unix(address.path).bind()
    return Tcp(address.host, address.port).bind()


def host_and_port(address: Any) -> tuple[str, int] | None:
    """Returns a socket's address in ASGI's form; None for a UNIX socket."""
    return None if isinstance(address, (str, bytes)) else (address[0], address[1])


def address_text(address: Any) -> str:
    host_port = host_and_port(address)
    return "a UNIX socket" if host_port is None else f"{host_port[0]}:{host_port[1]}"


def _bind_names(address: Tcp) -> list[BoundSocket]:
    """Binds a socket to each address of a host that this machine has, at the same port."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    names = dict.fromkeys((family, name) for family, _, _, _, name in found)
    bound: list[BoundSocket] = []
    failure: OSError | None = None
    port = address.port
    with ExitStack() as undo:
        for family, (host, _, *rest) in names:
            try:
                one = _bound_to(family, (host, port, *rest), is_only=len(names) == 1)
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                failure = error
                continue
            undo.callback(one.close)
            bound.append(one)
            port = one.socket.getsockname()[1]
        if failure is not None and not bound:
            raise failure
        undo.pop_all()
    return bound


def _bound_to(family: int, name: Any, *, is_only: bool) -> BoundSocket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Allows a restart while the kernel still keeps connections of the previous server.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not is_only:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(name)
    except BaseException:
        bound.close()
        raise
    return BoundSocket(bound)


def _lock(path: str) -> int:
    """Returns the descriptor that holds the lock; raises `OSError` if a process holds it."""
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:  # name the socket: the user does not know the lock file
            raise OSError(error.errno, error.strerror, path.removesuffix(".lock")) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file after it was opened here.
            if os.path.samestat(os.fstat(lock), os.lstat(path)):
                return lock
            os.close(lock)
        except FileNotFoundError:
            os.close(lock)
        except BlockingIOError:
            os.close(lock)
            raise _in_use(path.removesuffix(".lock")) from None


def _unlock(path: str, lock: int) -> None:
    with suppress(OSError):
        os.unlink(path)
    os.close(lock)


def _remove_stale(path: str) -> None:
    """Removes the socket file of a dead server; raises `OSError` if it is another file."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "a file that is not a socket exists there", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except TimeoutError:
            pass  # it is alive, but busy
    raise _in_use(path)


def _in_use(path: str) -> OSError:
    return OSError(errno.EADDRINUSE, "another server listens there", path)


# systemd's protocol for socket activation. systemd listens before the server starts and after it
# has stopped, so new connections wait rather than fail. LISTEN_PID is the process that the sockets
# are for, LISTEN_FDS their number, from descriptor 3 on, and LISTEN_FDNAMES their names, which
# FileDescriptorName= sets. The socket named "admin" serves the admin API, every other socket the
# application.
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
    named = _socket_names(names, len(fds))
    for fd, name in zip(fds, named, strict=True):
        _check_passed(fd, name)
    admin = [Inherited(fd) for fd, name in zip(fds, named, strict=True) if name == _ADMIN]
    if len(admin) > 1:
        raise ValueError(f"{len(admin)} of the sockets from systemd are named {_ADMIN!r}, not one")
    public = [Inherited(fd) for fd, name in zip(fds, named, strict=True) if name != _ADMIN]
    return PassedSockets(tuple(public), admin[0] if admin else None)


def _socket_names(text: str, count: int) -> Sequence[str]:
    names = text.split(":") if text else [""] * count
    if len(names) != count:
        raise ValueError(f"LISTEN_FDNAMES has {len(names)} names, for {count} sockets")
    return names


def _check_passed(fd: int, name: str) -> None:
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
