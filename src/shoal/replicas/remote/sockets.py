"""Opens and accepts connections between servers, over TCP or a UNIX socket."""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.errors import NotAllowed
from shoal.replicas.remote.handshake import HANDSHAKE_S, greet_ingress, greet_model_server

if TYPE_CHECKING:
    from shoal.core.addresses import ModelServerAddress
    from shoal.replicas.remote.tls import ServerCertificate

# The kernel notices that a network broke after this time, however busy both programs are. It also
# gives up a program that reads nothing for this time, once the buffers of both sockets are full.
_IDLE_S: Final = 2
_PROBES: Final = 3
_UNACKNOWLEDGED_MS: Final = 5000

# Of the process at the other end of a UNIX socket: its id, user and group.
_CREDENTIALS: Final = struct.Struct("3i")


async def connect(address: ModelServerAddress, token: str | None) -> Any:
    """Connects to a model server and authenticates both ends; returns the socket.

    Raises:
        NotAllowed: It is another program, of another version, or has another token.
        OSError: It can't be reached, or took too long.
    """
    sock: Any = None
    try:
        with anyio.fail_after(HANDSHAKE_S):
            sock = await _connected(address)
            prepare(sock)
            if token is None:
                _check_owner(sock)
            fingerprint = b""
            if address.has_tls:
                from shoal.replicas.remote.tls import TlsSocket, client_context

                sock = TlsSocket(sock, client_context())
                await sock.shake_hands()
                fingerprint = sock.peer_fingerprint()
            await greet_model_server(sock, token, fingerprint)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, TimeoutError) and error.errno is None:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {HANDSHAKE_S:g} s") from None
        raise
    return sock


async def authenticated(sock: Any, token: str | None, certificate: ServerCertificate | None) -> Any:
    """Authenticates both ends of an accepted connection, which an error closes.

    Returns:
        The socket, with TLS if there is a certificate.

    Raises:
        HandshakeRefused: The other end is another program, of another version, or has another
            token.
        OSError: The connection broke, or the handshake took too long.
    """
    try:
        with anyio.fail_after(HANDSHAKE_S):
            sock.setblocking(False)
            prepare(sock)
            fingerprint = b""
            if certificate is not None:
                from shoal.replicas.remote.tls import TlsSocket

                sock = TlsSocket(sock, certificate.context, server=True)
                await sock.shake_hands()
                fingerprint = certificate.fingerprint
            await greet_ingress(sock, token, fingerprint)
    except BaseException:
        sock.close()
        raise
    return sock


async def _connected(address: ModelServerAddress) -> socket.socket:
    """Returns a connected socket; of several addresses of a host, the first that accepts."""
    # Not `socket.create_connection` in a thread, which would delay the end of the program.
    names: list[tuple[int, Any]] = [(socket.AF_UNIX, address.path)]
    if address.scheme != "unix":
        found = await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        names = [(family, name) for family, _, _, _, name in found]
    while True:
        family, name = names.pop(0)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await _connect(sock, name)
        except BaseException as error:
            sock.close()
            if not (names and isinstance(error, OSError)):
                raise
        else:
            return sock


async def _connect(sock: socket.socket, name: Any) -> None:
    code = sock.connect_ex(name)
    if code == errno.EAGAIN:  # the backlog of a UNIX socket is full, and nothing reports its end
        raise BlockingIOError(code, "too many connections wait to be accepted")
    if code == errno.EINPROGRESS:
        await anyio.wait_writable(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _check_owner(sock: socket.socket) -> None:
    """Raises `NotAllowed` unless the listening program runs as this user, or as root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    if user not in (0, os.getuid()):
        raise NotAllowed(f"it runs as user {user}; set model_server_token_file")


def prepare(sock: socket.socket) -> None:
    """Makes a TCP socket send at once, and notice when the network breaks."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _IDLE_S),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS),
    ):
        if hasattr(socket, option):
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def allow_pauses(sock: Any) -> None:
    """Lets the other end stop reading for any time; another connection must notice a break.

    To the kernel, a reader whose buffer is full is as silent as a network that broke.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
