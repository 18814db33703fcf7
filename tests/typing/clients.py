"""Every client and every handle is one by its interface, so code may be written against that."""

from collections.abc import Mapping
from typing import Any, assert_type

import shoal
from shoal.batching.calls.stream import ResultIterator
from shoal.serving.clients.handles import ChildHandle, SyncHandle
from shoal.serving.clients.protocol import SyncClient
from shoal.serving.clients.remote_client import RemoteClient, RemoteHandle
from shoal.serving.controller.controller import Controller
from shoal.serving.controller.endpoints import EndpointHandle


def clients(controller: Controller, remote: RemoteClient) -> list[shoal.Client]:
    return [controller, remote]


def handles(here: EndpointHandle, far: RemoteHandle, child: ChildHandle) -> list[shoal.Handle]:
    return [here, far, child]


async def verbs(client: shoal.Client) -> None:
    assert_type(await client.get_handle("e"), shoal.Handle)
    assert_type(await client.get_handle("e", missing_ok=True), shoal.Handle)
    assert_type(await client.list_backends(), Mapping[str, shoal.BackendConfig])
    assert_type(await client.get_backend_config("b"), shoal.BackendConfig)
    assert_type(await client.status(), shoal.status.Status)
    assert_type(client.sync, SyncClient)
    await client.create_backend("b", "module:Name", 1, config={"num_replicas": 2})
    await client.create_backend(5, "module:Name")  # type: ignore[arg-type]
    await client.create_endpoint("e", "b")  # type: ignore[call-arg]
    await client.set_traffic("e", {"b": "1"})  # type: ignore[dict-item]
    await client.shadow_traffic("e", "b", 1.0, compare=lambda first, second: first == second)


async def calls(handle: shoal.Handle) -> None:
    assert_type(handle.options(timeout_s=1.0, priority=2), shoal.Handle)
    assert_type(handle.sync, SyncHandle)
    assert_type(handle.stream(1), ResultIterator)
    async with handle.stream(1) as stream:
        assert_type(stream, ResultIterator)
    handle.options(timeout="1")  # type: ignore[call-arg]
    handle.options(priority="1")  # type: ignore[arg-type]
    result: Any = await handle.call(1, name="x")
    print(result)


async def starting() -> None:
    async with shoal.start(http={"port": 0}) as client:
        assert_type(client, Controller)
        assert_type(await client.get_handle("e"), EndpointHandle)
        assert_type(await client.get_handle("e", missing_ok=True), EndpointHandle)
    async with shoal.start(http=shoal.HttpOptions(port=0), state="file.db"):
        pass
    shoal.start(port=0)  # type: ignore[call-arg]
    shoal.HttpOptions(ports=0)  # type: ignore[call-arg]
    shoal.App(max_body_bytes=1, overload_status=429, middleware=[])
    shoal.App(max_body_bytes="1")  # type: ignore[arg-type]
    shoal.App(max_body=1)  # type: ignore[call-arg]


def declaring(app: shoal.App) -> None:
    @app.endpoint("/e", max_batch_size=4, num_replicas=2)
    def lengths(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    assert_type(lengths(["a"]), list[int])
    app.backend("b", "module:Name", 1, max_batch_size=4)
    app.route("e", backend={"b": 1.0}, path="/e")
    app.backend("b", "module:Name", max_batch_size="4")  # type: ignore[arg-type]
    app.backend("b", "module:Name", batch_size=4)  # type: ignore[call-arg]
