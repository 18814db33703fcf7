"""The client for code that runs in a backend, of the controller that the backend belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from shoal.replicas.process.child.endpoints import parent_channel
from shoal.serving.clients.child_handle import ChildClient, running_controller
from shoal.serving.clients.sync import check_may_block

if TYPE_CHECKING:
    from shoal.serving.clients.protocol import Client, SyncClient


class InsideClient:
    """The client of a controller in this process, for code of its backends.

    Leaving its context does not shut the controller down.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    def __enter__(self) -> SyncClient:
        check_may_block("async with shoal.connect() as client:")
        return self._client.sync

    def __exit__(self, *exc_info: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def client_inside() -> InsideClient | ChildClient | None:
    """Returns the client for the calling code, if that runs in a backend; None if not."""
    if parent_channel.get(None) is not None:
        return ChildClient()
    client = running_controller.get(None)
    return None if client is None else InsideClient(client)
