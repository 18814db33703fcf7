"""The listener of a model server: accepts connections, and authenticates them within limits."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from shoal.core.addresses import model_server_address
from shoal.failures.exceptions import ungrouped
from shoal.replicas.remote.handshake import HANDSHAKE_S, HandshakeRefused, token_in
from shoal.replicas.remote.sockets import authenticated
from shoal.serving.model_server.ingress import Ingress
from shoal.status import ModelServerStatus

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Callable, Sequence

    from anyio.abc import TaskGroup

    from shoal.asgi.http_options import HttpOptions
    from shoal.core.addresses import ModelServerAddress
    from shoal.replicas.remote.tls import ServerCertificate
    from shoal.serving.controller.controller import Controller

logger: Final = logging.getLogger("shoal.serving")

_BACKLOG: Final = 128
_MOST_UNKNOWN: Final = 64
"""The most connections that may be in their handshake; further ones are closed at once."""

_LEAVING_S: Final = 2.0
"""How long a server waits for idle ingresses to leave, before its backends close."""

_LAST_ANSWERS_S: Final = 1.0
"""How long the last answers may take to be sent."""

_LOGGED_EACH_S: Final = 60.0
"""The shortest time between two log lines with the same reason about one host."""

_MOST_LOGGED: Final = 64
"""The most such log lines in that time."""

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_S: Final = 0.1


class BoundLike(Protocol):
    socket: socket.socket

    def close(self) -> None: ...


@asynccontextmanager
async def bound(
    options: HttpOptions, bind: Callable[[ModelServerAddress], Sequence[BoundLike]]
) -> AsyncGenerator[ModelServerListener]:
    assert options.model_server is not None
    address = model_server_address("model_server", options.model_server)
    token = certificate = None
    if options.model_server_token_file is not None:
        token = token_in(options.model_server_token_file)
    if address.has_tls:
        from shoal.replicas.remote.tls import ServerCertificate

        assert options.certfile is not None
        certificate = ServerCertificate(options.certfile, options.keyfile)
    listener = ModelServerListener(bind(address), token, certificate, address)
    try:
        async with ungrouped() as listener.tasks:
            yield listener
            listener.tasks.cancel_scope.deadline = anyio.current_time() + _LAST_ANSWERS_S
    finally:
        listener.close()


class ModelServerListener:
    """Serves the backends of a controller at bound sockets.

    Args:
        bound: The bound sockets; `run` listens at them, and closes them.
        token: The token that ingresses must know; None only at a UNIX socket.
        certificate: The certificate, if it speaks TLS.
    """

    def __init__(
        self,
        bound: Sequence[BoundLike],
        token: str | None,
        certificate: ServerCertificate | None = None,
        address: ModelServerAddress | None = None,
    ) -> None:
        self._bound = bound
        self._address = address
        self._token = token
        self._certificate = certificate
        self._unknown = 0
        self._accepted = 0
        self._refused: Counter[str] = Counter()
        # When a host was last logged, by its name and the reason.
        self._logged_at: dict[tuple[str, str], float] = {}
        self._counts = Counter[str]()  # of the messages of all ingresses
        self._is_draining = False
        self._accepting = anyio.CancelScope()
        self.ingresses: set[Ingress] = set()
        self._is_alone = anyio.Event()
        self.tasks: TaskGroup  # for `begin`

    @property
    def url(self) -> str:
        assert self._address is not None
        if self._address.scheme == "unix":
            return str(self._address)
        port: int = self._bound[0].socket.getsockname()[1]
        return str(self._address.at(self._address.host, port))

    def begin(self, controller: Controller) -> None:
        self.tasks.start_soon(self.run, controller)

    async def leave(self, graceful_timeout_s: float) -> None:
        """Drains, and waits a moment until idle ingresses have noticed."""
        self.drain()
        with anyio.move_on_after(min(_LEAVING_S, graceful_timeout_s / 2)):
            await self.wait_alone()

    def status(self) -> ModelServerStatus:
        return ModelServerStatus(
            connections=len(self.ingresses),
            accepted=self._accepted,
            refused=dict(self._refused),
            messages=self._counts["messages"],
            requests=self._counts["requests"],
        )

    async def run(self, controller: Controller) -> None:
        """Serves until it is cancelled; `drain` ends the accepting before."""
        controller.model_server_status = self.status
        async with anyio.create_task_group() as connections:
            try:
                with self._accepting:
                    async with anyio.create_task_group() as listening:
                        for one in self._bound:
                            sock = one.socket
                            sock.listen(_BACKLOG)
                            listening.start_soon(self._accept, sock, connections, controller)
            finally:
                self.close()

    def close(self) -> None:
        for one in self._bound:
            one.close()

    def drain(self) -> None:
        """Accepts no more connections, and notifies the ingresses; their calls go on."""
        self._is_draining = True
        self._accepting.cancel()
        for ingress in self.ingresses:
            ingress.notify_draining()
        if not self.ingresses:
            self._is_alone.set()

    async def wait_alone(self) -> None:
        """Waits, after `drain`, until all ingresses have disconnected."""
        await self._is_alone.wait()

    async def _accept(self, listening: socket.socket, tasks: Any, controller: Controller) -> None:
        while True:
            await anyio.wait_readable(listening)
            try:
                sock, peer = listening.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    why = f"can't accept ingresses: {error.strerror}"
                    self._log("exhausted", "the model server", why, logging.ERROR)
                    await anyio.sleep(_RETRY_S)
                continue
            name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a UNIX socket"
            name = f"the ingress at {name}"
            self._accepted += 1
            if self._unknown >= _MOST_UNKNOWN:
                self._refuse("too many", name, f"{_MOST_UNKNOWN} others are in their handshake")
                sock.close()
                continue
            self._unknown += 1
            tasks.start_soon(self._serve, sock, name, controller)

    async def _serve(self, sock: socket.socket, name: str, controller: Controller) -> None:
        try:
            known = await authenticated(sock, self._token, self._certificate)
        except HandshakeRefused as error:
            return self._refuse(error.reason, name, error)
        except TimeoutError:
            return self._refuse("timeout", name, f"no handshake within {HANDSHAKE_S:g} s")
        except OSError as error:
            return self._refuse("broken", name, error, logging.INFO)
        finally:
            self._unknown -= 1
        ingress = Ingress(known, name, controller, self._counts)
        self.ingresses.add(ingress)
        logger.info("%s is connected", name)
        try:
            if self._is_draining:
                ingress.notify_draining()
            await ingress.run()
        except Exception:
            logger.exception("%s: its connection broke", name)
        finally:
            self.ingresses.discard(ingress)
            if self._is_draining and not self.ingresses:
                self._is_alone.set()
            logger.info("%s is disconnected", name)

    def _refuse(self, reason: str, name: str, why: object, level: int = logging.WARNING) -> None:
        self._refused[reason] += 1
        self._log(reason, name, f"was refused: {why}", level)

    def _log(self, reason: str, name: str, what: str, level: int) -> None:
        host = name.rpartition(":")[0] or name
        now, logged = anyio.current_time(), self._logged_at
        logged = {one: at for one, at in logged.items() if now - at < _LOGGED_EACH_S}
        if (host, reason) not in logged and len(logged) < _MOST_LOGGED:
            logged[host, reason] = now
            text = "%s %s. This is logged once a minute for each host and reason."
            logger.log(level, text, name, what)
        self._logged_at = logged
