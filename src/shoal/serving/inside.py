"""The client of code that runs in a backend: the controller that the backend belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self

from shoal.replicas.calling_out import way_out
from shoal.serving.asking import Asked
from shoal.serving.child_handle import ChildHandle

if TYPE_CHECKING:
    from shoal.serving.client import Client

running_controller: Final[ContextVar[Client]] = ContextVar("shoal.running_controller")
"""The controller that the code which runs belongs to."""


class InsideClient:
    """A controller in this process, for code of its backends: leaving it ends nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class ChildClient:
    """What code in a replica's process has of the controller: the handles of its endpoints."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def get_handle(self, endpoint: str) -> ChildHandle:
        """Returns what calls an endpoint; see `Client.get_handle`.

        That there is no such endpoint is found out by the first call.
        """
        return self.handle(endpoint)

    def handle(self, endpoint: str) -> ChildHandle:
        """Does the same for plain code."""
        return ChildHandle(way_out.get(), endpoint, Asked())


def client_inside() -> InsideClient | ChildClient | None:
    """Returns the client of the code that calls this, if it runs in a backend."""
    if way_out.get(None) is not None:
        return ChildClient()
    client = running_controller.get(None)
    return None if client is None else InsideClient(client)
