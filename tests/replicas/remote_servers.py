"""Model servers in the test's own process, for remote replicas."""

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from anyio.abc import TaskStatus

from shoal.failures.exceptions import ungrouped
from shoal.replicas.code.instance import Description
from shoal.replicas.contract import Blueprint, Replica
from shoal.replicas.local.task import TaskReplica
from shoal.replicas.remote.replica import RemoteReplica
from shoal.server.listeners import BoundSocket
from shoal.serving.backend_config import BackendConfig
from shoal.serving.controller.controller import Controller
from shoal.serving.model_server.listener import ModelServerListener

TOKEN = "a token of thirty-two characters, or a few more".replace(" ", "-")


def bound(address: str) -> socket.socket:
    """A socket bound at ``unix:/PATH``, or at a free port of this machine."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(address.removeprefix("unix:"))
    else:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
    sock.listen()
    sock.setblocking(False)
    return sock


@asynccontextmanager
async def listening(
    controller: Controller, address: str, token: str | None = None, certificate: Any = None
) -> AsyncGenerator[tuple[ModelServerListener, str]]:
    """Lets a controller be a model server during a block; yields its address as well."""
    sock = bound(address)
    if address == "tcp":
        address = f"tcp://127.0.0.1:{sock.getsockname()[1]}"
    elif address == "tls":
        address = f"tls://127.0.0.1:{sock.getsockname()[1]}"
    listener = ModelServerListener([BoundSocket(sock)], token, certificate)
    async with ungrouped() as tasks:
        tasks.start_soon(listener.run, controller)
        try:
            yield listener, address
        finally:
            tasks.cancel_scope.cancel()
            sock.close()


class ServedReplica(RemoteReplica):
    """A remote replica with a model server of its own, which starts and ends with it."""

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        async with Controller() as controller:
            blueprint = self.blueprint
            identity = blueprint.identity

            def local(made: Blueprint) -> Replica:
                return TaskReplica(replace(made, identity=identity))

            config = BackendConfig(
                placement=local,
                user_config=blueprint.user_config,
                start_timeout_s=blueprint.options.start_timeout_s,
                cancel_grace_s=blueprint.options.cancel_grace_s,
                graceful_shutdown_timeout_s=0,
            )
            await controller.declare_backend(identity.backend, blueprint.definition, config)
            async with listening(controller, str(self._address)):
                await super().serve(task_status=task_status)


def served(folder: Path) -> Callable[[Blueprint], Replica]:
    """A placement of `ServedReplica`s."""
    numbers = iter(range(1000))

    def make(blueprint: Blueprint) -> Replica:
        return ServedReplica(replace(blueprint, address=f"unix:{folder}/{next(numbers)}.sock"))

    return make
