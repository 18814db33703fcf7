"""TLS between servers: a socket as `FrameConnection` needs it, and the certificate."""

from __future__ import annotations

import hashlib
import select
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.replicas.process.wire.frames import Buffer

# OpenSSL must be given the same bytes again after it has asked to wait.
_MOST_AT_ONCE: Final = 2**18


def client_context() -> ssl.SSLContext:
    # The proofs of the handshake include the certificate's fingerprint, so no authority vouches.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class ServerCertificate:
    """The certificate of a model server; raises `OSError` if it can't be used."""

    def __init__(self, certfile: str, keyfile: str | None) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            self.context.load_cert_chain(certfile, keyfile)
        except OSError as error:  # also SSLError, which names no file
            raise OSError(error.errno, error.strerror or str(error), certfile) from error
        with open(certfile, encoding="ascii", errors="replace") as file:
            _, begin, rest = file.read().partition(ssl.PEM_HEADER)
        body, end, _ = rest.partition(ssl.PEM_FOOTER)
        self.fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(begin + body + end)).digest()


class TlsSocket:
    """A socket with TLS, with the few methods of a socket that are used here.

    A thread may read it while others write, although OpenSSL allows one thread at a time: the lock
    is not held while one waits for the network.
    """

    _blocks = False

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, *, server: bool = False
    ) -> None:
        self._socket = context.wrap_socket(
            sock, server_side=server, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )
        self.family = sock.family
        self._lock = threading.Lock()

    async def shake_hands(self) -> None:
        while True:
            try:
                self._socket.do_handshake()
            except ssl.SSLWantReadError:
                await anyio.wait_readable(self._socket)
            except ssl.SSLWantWriteError:
                await anyio.wait_writable(self._socket)
            else:
                return

    def peer_fingerprint(self) -> bytes:
        return hashlib.sha256(self._socket.getpeercert(binary_form=True) or b"").digest()

    def pending(self) -> int:
        return self._socket.pending()

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, blocking: bool) -> None:
        self._blocks = blocking

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._socket.setsockopt(level, option, value)

    def recv_into(self, space: Buffer) -> int:
        while True:
            with suppress(BlockingIOError), self._lock:
                return self._recv_into(memoryview(space))
            self._wait(select.POLLIN)

    def sendmsg(self, parts: Sequence[Buffer]) -> int:
        while True:
            with suppress(BlockingIOError), self._lock:
                return self._sendmsg(parts)
            self._wait(select.POLLOUT)

    def _wait(self, event: int) -> None:
        if not self._blocks:
            raise BlockingIOError
        poll = select.poll()
        poll.register(self._socket, event)
        poll.poll()

    def _recv_into(self, view: memoryview) -> int:
        filled = 0
        while filled < len(view):
            try:
                count = self._socket.recv_into(view[filled:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not count:
                if filled:
                    break  # the end is reported the next time
                return 0
            filled += count
        if not filled:
            raise BlockingIOError
        return filled

    def _sendmsg(self, parts: Sequence[Buffer]) -> int:
        sent = 0
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                try:
                    count = self._socket.send(view[:_MOST_AT_ONCE])
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    if sent:
                        return sent
                    raise BlockingIOError from None
                sent += count
                view = view[count:]
        return sent

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self._socket, how)

    def close(self) -> None:
        self._socket.close()
