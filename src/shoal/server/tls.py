"""TLS between a transport and its receiver, without I/O, so the same on both event loops.

The receiver uses it like the transport itself. Received data drives the handshake.
"""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from shoal.server.transport import NOBODY, Receiver

if TYPE_CHECKING:
    from shoal.asgi.http_options import HttpOptions
    from shoal.server.transport import Transport

_log = logging.getLogger("shoal.server")

_READ_SIZE: Final = 2**16
# Forward secrecy and authenticated encryption, which HTTP/2 requires (RFC 9113, 9.2.2).
_CIPHERS: Final = "ECDHE+AESGCM"


def tls_of(options: HttpOptions) -> ssl.SSLContext | None:
    """Returns the TLS configuration of a certificate, if any; raises `OSError` for a bad file."""
    if options.certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_ciphers(_CIPHERS)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2", "http/1.1"])
    keyfile = options.keyfile or options.certfile
    try:
        context.load_cert_chain(options.certfile, keyfile)
    except OSError as error:  # also SSLError, which names no file
        files = " and ".join(dict.fromkeys((options.certfile, keyfile)))
        raise OSError(error.errno, error.strerror or str(error), files) from error
    return context


class TlsTransport(Receiver):
    """The server's side of a TLS connection, with the interface of a `Transport`."""

    receiver: Receiver

    def __init__(self, below: Transport, context: ssl.SSLContext) -> None:
        self._below = below
        below.receiver = self
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_ready = False
        self.is_paused = False
        self.name, self.peer = below.name, below.peer
        self.start, self.read_now, self.has_room = below.start, below.read_now, below.has_room

    @property
    def is_open(self) -> bool:
        return self._below.is_open

    @property
    def unsent(self) -> memoryview | bytes:
        return self._below.unsent

    @property
    def is_blocked(self) -> bool:
        return self._below.is_blocked

    def pause(self) -> None:
        self.is_paused = True
        self._below.pause()

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._below.resume()
            self._pass_on()

    def has_unread(self) -> bool:
        return bool(self._incoming.pending) or self._below.has_unread()

    def send(self, data: bytes) -> bool:
        try:
            left = memoryview(data)
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError:
            self._break()
            return True
        return self._flush()

    def end_sending(self) -> None:
        self._send_close()
        self._below.end_sending()

    def close(self) -> None:
        self._send_close()
        self._below.close()
        self.receiver = NOBODY

    def abort(self) -> None:
        self._below.abort()
        self.receiver = NOBODY

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self._is_ready:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                return
            except ssl.SSLError as error:
                _log.debug("a TLS handshake failed: %s", error)
                self._break()
                return
            self._is_ready = True
            self._flush()
        self._pass_on()

    def client_ended(self) -> None:
        self.receiver.client_ended()

    def all_sent(self) -> None:
        self.receiver.all_sent()

    def connection_lost(self) -> None:
        receiver, self.receiver = self.receiver, NOBODY
        receiver.connection_lost()

    def _pass_on(self) -> None:
        while self._is_ready and not self.is_paused and self.is_open:
            try:
                data = self._tls.read(_READ_SIZE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                data = b""
            except ssl.SSLError as error:
                _log.debug("a TLS connection broke: %s", error)
                self._break()
                return
            if not data:
                self.receiver.client_ended()
                return
            self.receiver.data_received(data)
        self._flush()

    def _flush(self) -> bool:
        encrypted = self._outgoing.read()
        return self._below.send(encrypted) if encrypted else not self._below.unsent

    def _send_close(self) -> None:
        if self._is_ready and self.is_open:
            # It expects the client's reply, which is not awaited.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()

    def _break(self) -> None:
        """Ends the connection after a violation of TLS, and sends the client an alert."""
        self._flush()
        self._below.close()
        self.connection_lost()
