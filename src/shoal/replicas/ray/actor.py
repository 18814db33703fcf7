"""The Ray actor of a replica: the program of a worker process, in a thread of the actor.

Ray places the actor, starts it, and reports its death. All work goes over two connections of
Shoal's own, with the frames of a worker process: a call of an actor through Ray costs the caller
several times as much. The actor listens at the address of its node. Only the program that asked Ray
for the actor knows the token, without which nothing is unpickled. The connections are encrypted if
those of Ray are (``RAY_USE_TLS``).

The code runs in an event loop of the same kind as the caller's, and plain code in threads of it. An
error that would end a process ends the replica; Ray does not report such errors by itself.
"""

from __future__ import annotations

import os
import socket
import threading
import traceback
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from shoal.core.addresses import ModelServerAddress
from shoal.failures.held import shown
from shoal.replicas.process.child.async_loop import ReplicaEnds
from shoal.replicas.process.child.control import Control
from shoal.replicas.process.child.main import Child, NotStarted
from shoal.replicas.process.wire.messages import MessageCodec
from shoal.replicas.ray.shards import Shards
from shoal.replicas.remote.sockets import allow_pauses, authenticated
from shoal.replicas.remote.tls import ServerCertificate

if TYPE_CHECKING:
    from shoal.replicas.process.child.calls import CallAnswers

# Its methods: two that last as long as the actor, and one that returns at once.
THREADS: Final = 3


STOPPED: Final = "was stopped"
"""How a replica has ended whose code was closed; if that failed, a traceback follows."""

# How long the listener waits before it accepts again, after an error.
_RETRY_S: Final = 0.1


class ReplicaActor:
    """A replica's code, in the process of a Ray actor; the program must know the token."""

    def __init__(self, replica: str, token: str) -> None:
        self._replica = replica
        self._listener = _Listener(token)
        self._sockets: Any = ()
        self._lock = threading.Lock()
        self._end: Future[str] = Future()
        threading.Thread(target=self._run, name="shoal", daemon=True).start()

    def __repr__(self) -> str:
        return self._replica  # Ray prefixes the actor's output with it

    def ready(self) -> tuple[str, ModelServerAddress]:
        """Returns the id of the actor's node, and where the actor listens."""
        node: str = import_module("ray").get_runtime_context().get_node_id()
        return node, self._listener.address

    def lifeline(self) -> None:
        """Never returns; the call fails when the actor dies."""
        threading.Event().wait()

    def ending(self) -> str:
        """Waits until the replica must end, or its code was closed; returns how it has ended."""
        return self._end.result()

    def _run(self) -> None:
        failures: list[str] = []  # of the code's close()
        try:
            # They stay open until the process ends, so that its end has a reason before.
            self._sockets = data, control_socket = anyio.run(self._listener.connected)
            os.register_at_fork(after_in_child=self._leave_sockets)
            dumps: Any = import_module("ray").cloudpickle.dumps
            control = Control(control_socket, dumps, partial(self._must_end, "lost its program"))
            control.watch()
            Child(
                control,
                MessageCodec(),
                data,
                self._watch_shards,
                lambda: failures.append(f"{STOPPED}:\n{traceback.format_exc()}"),
            ).run()
        except NotStarted:
            return  # the program knows, and ends this actor
        except BaseException as error:
            self._must_end(_how_it_ends(error))
        else:
            self._must_end(failures[0] if failures else STOPPED)

    def _watch_shards(self, answers: CallAnswers) -> None:
        if import_module("ray").util.get_current_placement_group() is not None:
            answers.explain = Shards(answers.instance.target, self._must_end).explain

    def _leave_sockets(self) -> None:
        # In a child that the code forked: it may outlive this process, whose end must show.
        for sock in self._sockets:
            sock.close()

    def _must_end(self, how: str) -> None:
        with self._lock:
            if not self._end.done():
                self._end.set_result(how)


class _Listener:
    # Not a part of the actor: Ray runs the calls of a class with async methods in an event loop.

    def __init__(self, token: str) -> None:
        host: str = import_module("ray").util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self._socket.setblocking(False)
        self._token = token
        self._certificate = _certificate()
        port: int = self._socket.getsockname()[1]
        scheme = "plain-tcp" if self._certificate is None else "tls"
        self.address = ModelServerAddress(scheme, host, port)
        self._connected: list[Any] = []

    async def connected(self) -> list[Any]:
        """Waits for the program's connections for data and for control, in this order."""
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.wait_readable(self._socket)
                try:
                    sock, _ = self._socket.accept()
                except OSError:  # for example, there are too many open files
                    await anyio.sleep(_RETRY_S)
                else:
                    tasks.start_soon(self._greet, sock, tasks.cancel_scope)
        self._socket.close()
        return self._connected

    async def _greet(self, sock: Any, accepting: anyio.CancelScope) -> None:
        with suppress(OSError):  # it is a stranger
            known = await authenticated(sock, self._token, self._certificate)
            known.setblocking(True)
            self._connected.append(known)
            if len(self._connected) == 2:
                allow_pauses(self._connected[0])
                accepting.cancel()


def _certificate() -> ServerCertificate | None:
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    names = "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY"
    return ServerCertificate(*[os.environ[name] for name in names])


def _how_it_ends(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, ReplicaEnds):
        return str(error)
    return f"was killed: its code raised {shown(error)}"
