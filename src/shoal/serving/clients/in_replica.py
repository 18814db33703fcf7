"""The client for code of a backend, of the controller that the backend belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

from shoal.errors import NoSuchName
from shoal.replicas.code.endpoint_call import IS_THERE, CallOut, parent_channel
from shoal.replicas.threads import check_may_block
from shoal.serving.clients.handles import ChildHandle, ChildSyncHandle, running_controller
from shoal.serving.names import checked_tag

if TYPE_CHECKING:
    from shoal.replicas.process.child.endpoints import ParentChannel


class _OnlyHandles:
    """Its missing verbs raise an error that says where they are."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(f"a client has no attribute {name!r}")
            raise AttributeError(
                f"the client in a replica's process only has get_handle(), not {name!r}; to "
                "operate the server, connect to it:\n"
                "    async with shoal.connect(url) as client: ...",
                name=name,
            )


class ChildClient(_OnlyHandles):
    """The client in a replica's process, which only makes handles."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    def __enter__(self) -> ChildSyncClient:
        return self.sync

    def __exit__(self, *exc_info: object) -> None:
        return None

    @property
    def sync(self) -> ChildSyncClient:
        return ChildSyncClient()

    async def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildHandle:
        channel: ParentChannel = parent_channel.get()
        is_there = await channel.call_async(CallOut(endpoint, options=IS_THERE))
        return _handle_of(channel, endpoint, is_there=is_there, missing_ok=missing_ok)


class ChildSyncClient(_OnlyHandles):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def get_handle(self, endpoint: str, missing_ok: bool = False) -> ChildSyncHandle:
        channel: ParentChannel = parent_channel.get()
        is_there = channel.call(CallOut(endpoint, options=IS_THERE))
        return _handle_of(channel, endpoint, is_there=is_there, missing_ok=missing_ok).sync


def _handle_of(
    channel: ParentChannel, endpoint: str, *, is_there: bool, missing_ok: bool
) -> ChildHandle:
    if missing_ok:
        checked_tag("an endpoint's name", endpoint)
    elif not is_there:
        raise NoSuchName(f"there is no endpoint {endpoint!r}")
    return ChildHandle(endpoint, channel)


class InsideClient:
    """A controller's client for code of its backends; leaving it shuts nothing down."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    def __enter__(self) -> Any:
        check_may_block("async with shoal.connect() as client:")
        return self._client.sync

    def __exit__(self, *exc_info: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def client_inside() -> InsideClient | ChildClient | None:
    """Returns None if the calling code does not run in a backend."""
    if parent_channel.get(None) is not None:
        return ChildClient()
    client = running_controller.get(None)
    return None if client is None else InsideClient(client)
