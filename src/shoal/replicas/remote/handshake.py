"""The handshake of a server that forwards batches (an ingress) with a model server.

Both ends send a greeting: a magic number, the protocol, the version of Shoal, and a nonce. If the
protocols differ, each end says so. Then the ingress proves that it knows the token, and after it
the model server: each sends an HMAC over both greetings, with a name for its side, and with the
fingerprint of the model server's certificate if they speak TLS. A server in between that has
another certificate thus can't pass a proof on, so the certificate needs no authority.

All messages have a fixed size, and nothing is unpickled here: frames, which are, come afterwards.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from shoal.core.options.option import checked_token
from shoal.errors import NotAllowed
from shoal.replicas.process.wire.frames import PROTOCOL
from shoal.version import __version__

if TYPE_CHECKING:
    import socket

HANDSHAKE_S: Final = 5.0
"""How long a handshake may take, in seconds."""

LEAST_TOKEN: Final = 32
"""The fewest characters of a token: a shorter one could be guessed from a recorded proof."""

_MAGIC: Final = b"SHOAL-MS"
# Of the handshake and of the content of the messages; the frames have their own version.
_VERSION: Final = 3
# Magic, versions, whether it has a token, the version of Shoal, nonce.
_GREETING: Final = struct.Struct("<8sHH?x20s32s")
_NONCE: Final = 32
_PROOF: Final = hashlib.sha256().digest_size
_ACCEPTED, _REFUSED = b"\x01", b"\x00"


class HandshakeRefused(NotAllowed):
    """The `reason` is a word for metrics."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class _Greeting(NamedTuple):
    protocol: tuple[int, int]
    has_token: bool
    version: str
    data: bytes


def token_in(path: str) -> str:
    """Returns the token in a file; raises `NotAllowed` if it can't be used."""
    try:
        if not (text := Path(path).read_text().strip()):
            raise ValueError("it is empty")
        token = checked_token(text)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", error)
        raise NotAllowed(f"can't use the token in {path}: {why}") from error
    if len(token) < LEAST_TOKEN:
        raise NotAllowed(
            f"{path}: the token of model servers must have at least {LEAST_TOKEN} characters, "
            "since whoever knows it can run code; generate one by: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


async def greet_model_server(sock: Any, token: str | None, fingerprint: bytes) -> None:
    """Authenticates both ends, in the ingress; raises `NotAllowed` or `OSError`."""
    own = _greeting(token)
    await send_all(sock, own)
    other = _read_greeting(await receive(sock, _GREETING.size), "the model server")
    _check_alike(other, token, "the model server")
    context = own, other.data, fingerprint
    await send_all(sock, _proof(token, b"ingress", *context))
    answer = await receive(sock, 1 + _PROOF)
    if answer[:1] != _ACCEPTED:
        raise NotAllowed("the model server has another token")
    if not hmac.compare_digest(answer[1:], _proof(token, b"model server", *context)):
        raise NotAllowed("the model server does not know the token")


async def greet_ingress(sock: Any, token: str | None, fingerprint: bytes) -> None:
    """Authenticates both ends, in the model server; raises `NotAllowed` or `OSError`."""
    own = _greeting(token)
    data = await receive(sock, _GREETING.size)
    # Sent even if the protocols differ, so that the other end can say so as well.
    await send_all(sock, own)
    other = _read_greeting(data, "the client")
    _check_alike(other, token, "the client")
    context = other.data, own, fingerprint
    proof = await receive(sock, _PROOF)
    if not hmac.compare_digest(proof, _proof(token, b"ingress", *context)):
        await send_all(sock, _REFUSED + bytes(_PROOF))
        raise HandshakeRefused("the client has another token", "token")
    await send_all(sock, _ACCEPTED + _proof(token, b"model server", *context))


def _greeting(token: str | None) -> bytes:
    version = __version__.encode()[:20]
    nonce = os.urandom(_NONCE)
    return _GREETING.pack(_MAGIC, _VERSION, PROTOCOL, token is not None, version, nonce)


def _read_greeting(data: bytes, who: str) -> _Greeting:
    magic, version, protocol, has_token, release, _ = _GREETING.unpack(data)
    if magic != _MAGIC:
        raise HandshakeRefused(f"{who} does not speak the protocol of model servers", "not shoal")
    # It is logged before the other end has proved anything.
    text = ascii(release.rstrip(b"\0").decode("latin-1"))[1:-1]
    return _Greeting((version, protocol), has_token, text, data)


def _check_alike(other: _Greeting, token: str | None, who: str) -> None:
    if other.protocol != (_VERSION, PROTOCOL):
        raise HandshakeRefused(
            f"{who} runs Shoal {other.version} with protocol {_dotted(other.protocol)}, and this "
            f"is Shoal {__version__} with protocol {_dotted((_VERSION, PROTOCOL))}; run the same "
            "version on both",
            "version",
        )
    if other.has_token is not (token is not None):
        whose = f"{who} has a token" if other.has_token else f"{who} has no token"
        here = "there is none here" if other.has_token else "there is one here"
        raise HandshakeRefused(f"{whose}, and {here}; give both the same one", "token")


def _dotted(protocol: tuple[int, int]) -> str:
    return ".".join(map(str, protocol))


def _proof(token: str | None, side: bytes, *context: bytes) -> bytes:
    proof = hmac.new((token or "").encode(), side, hashlib.sha256)
    for part in context:
        proof.update(hashlib.sha256(part).digest())
    return proof.digest()


async def receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            count = sock.recv_into(view)
        except BlockingIOError:
            await anyio.wait_readable(sock)
            continue
        if count == 0:
            raise ConnectionResetError("the connection was closed during the handshake")
        view = view[count:]
    return bytes(data)


async def send_all(sock: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.sendmsg([view]) :]
        except BlockingIOError:
            await anyio.wait_writable(sock)
