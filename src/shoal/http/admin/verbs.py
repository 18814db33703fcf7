"""The functions behind the routes of the admin API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from shoal.http.admin.bodies import admin_problem, members
from shoal.http.requests.streaming import answer_with_stream
from shoal.serving.clients.wire_forms import config_shown, without_hidden
from shoal.serving.names import DEFAULT_METHODS, found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.batching.calls.stream import ResultStream
    from shoal.http.admin.imports import ImportRule
    from shoal.http.requests.exchange import Exchange
    from shoal.serving.clients.protocol import Client, Handle

_OPTIONS = ("method_name", "shard_key", "http_method", "http_headers", "timeout_s", "priority")


class AdminRequest:
    """One request that was authorized.

    Attributes:
        exchange: The request.
        names: The values of the placeholders in the route's path.
        body: The object in its body; empty if the route takes none.
    """

    def __init__(self, exchange: Exchange, names: Mapping[str, str], body: dict[str, Any]) -> None:
        self.exchange = exchange
        self.names = names
        self.body = body


class Verbs:
    """The routes' functions; each returns a result that is sent as JSON.

    Args:
        client: The client that runs the verbs.
        imports: The rule for what may be imported.
        heartbeat_s: How long a stream may be silent, in seconds.
    """

    def __init__(self, client: Client, imports: ImportRule, heartbeat_s: float) -> None:
        self._client = client
        self._imports = imports
        self._heartbeat_s = heartbeat_s

    async def status(self, request: AdminRequest) -> Any:
        """``GET status``."""
        return await self._client.status()

    async def list_backends(self, request: AdminRequest) -> Any:
        """``GET backends``."""
        configs = await self._client.list_backends()
        return {tag: config_shown(config) for tag, config in configs.items()}

    async def create_backend(self, request: AdminRequest) -> Any:
        """``POST backends``."""
        body = members(request.body, ("tag", "definition"), ("init_args", "init_kwargs", "config"))
        definition = self._checked_path("definition", body["definition"])
        config = self._checked_config(body.get("config"))
        init_args, init_kwargs = _arguments(body, "init_args", "init_kwargs")
        await self._client.create_backend(
            body["tag"], definition, *init_args, config=config, init_kwargs=init_kwargs
        )
        return {}

    async def show_backend(self, request: AdminRequest) -> Any:
        """``GET backends/{tag}``."""
        return config_shown(await self._client.get_backend_config(request.names["tag"]))

    async def update_backend(self, request: AdminRequest) -> Any:
        """``PATCH backends/{tag}``; the body has the options that change."""
        config = self._checked_config(without_hidden(request.body))
        await self._client.update_backend_config(request.names["tag"], config)
        return {}

    async def delete_backend(self, request: AdminRequest) -> Any:
        """``DELETE backends/{tag}``; ``?force=1`` fails the requests in its queue."""
        query: bytes = request.exchange.scope.get("query_string", b"")
        if query not in (b"", b"force=0", b"force=1"):
            raise ValueError("the query must be empty, ?force=0 or ?force=1")
        await self._client.delete_backend(request.names["tag"], force=query == b"force=1")
        return {}

    async def scale_backend(self, request: AdminRequest) -> Any:
        """``POST backends/{tag}/scale``."""
        body = members(request.body, ("num_replicas",))
        await self._client.scale_backend(request.names["tag"], body["num_replicas"])
        return {}

    async def restart_backend(self, request: AdminRequest) -> Any:
        """``POST backends/{tag}/restart``."""
        await self._client.restart_backend(request.names["tag"])
        return {}

    async def list_endpoints(self, request: AdminRequest) -> Any:
        """``GET endpoints``."""
        return await self._client.list_endpoints()

    async def create_endpoint(self, request: AdminRequest) -> Any:
        """``POST endpoints``."""
        body = members(request.body, ("name", "backend"), ("route", "methods"))
        await self._client.create_endpoint(
            body["name"],
            backend=body["backend"],
            route=body.get("route"),
            methods=body.get("methods", DEFAULT_METHODS),
        )
        return {}

    async def show_endpoint(self, request: AdminRequest) -> Any:
        """``GET endpoints/{name}``."""
        name, endpoints = request.names["name"], await self._client.list_endpoints()
        return found("endpoint", name, endpoints)

    async def delete_endpoint(self, request: AdminRequest) -> Any:
        """``DELETE endpoints/{name}``."""
        await self._client.delete_endpoint(request.names["name"])
        return {}

    async def set_traffic(self, request: AdminRequest) -> Any:
        """``PUT endpoints/{name}/traffic``; the body has the weights."""
        await self._client.set_traffic(request.names["name"], request.body)
        return {}

    async def shadow_traffic(self, request: AdminRequest) -> Any:
        """``PUT endpoints/{name}/shadows/{backend}``."""
        body = members(request.body, ("proportion",), ("compare",))
        compare = body.get("compare")
        if compare is not None:
            compare = self._checked_path("compare", compare)
        names = request.names
        await self._client.shadow_traffic(
            names["name"], names["backend"], body["proportion"], compare=compare
        )
        return {}

    async def shutdown(self, request: AdminRequest) -> Any:
        """``POST shutdown``."""
        await self._client.shutdown()
        return {}

    async def call(self, request: AdminRequest) -> Any:
        """``POST endpoints/{name}/call``."""
        handle, args, kwargs = await self._handle(request)
        return await handle.call(*args, **kwargs)

    async def stream(self, request: AdminRequest) -> None:
        """``POST endpoints/{name}/call`` answered by a stream; sends the answer itself."""
        handle, args, kwargs = await self._handle(request)
        await answer_with_stream(
            request.exchange,
            cast("ResultStream[Any]", handle.stream(*args, **kwargs)),
            admin_problem,
            self._heartbeat_s,
        )

    async def _handle(self, request: AdminRequest) -> tuple[Handle, Sequence[Any], dict[str, Any]]:
        """Returns the handle for a call, and the call's arguments."""
        body = members(request.body, (), ("args", "kwargs", "options"))
        args, kwargs = _arguments(body, "args", "kwargs")
        _, options = _arguments(body, "", "options")
        handle = await self._client.get_handle(request.names["name"])
        if options:
            handle = handle.options(**members(options, (), _OPTIONS))
        return handle, args, kwargs

    def _checked_config(self, config: Any) -> Any:
        if isinstance(config, Mapping):
            return self._imports.checked_config(cast("Mapping[str, Any]", config))
        return config  # pyright: ignore[reportUnknownVariableType] (checked by the client)

    def _checked_path(self, what: str, path: Any) -> str:
        if not isinstance(path, str):
            raise TypeError(
                f"{what} must be an import path such as 'package.module:Name', not {path!r}"
            )
        return self._imports.checked(path)


def _arguments(
    body: Mapping[str, Any], positional: str, named: str
) -> tuple[Sequence[Any], dict[str, Any]]:
    args, kwargs = body.get(positional, []), body.get(named, {})
    if not isinstance(args, list):
        raise TypeError(f"{positional} must be an array, not {args!r}")
    if not isinstance(kwargs, dict):
        raise TypeError(f"{named} must be an object, not {kwargs!r}")
    return cast("Sequence[Any]", args), cast("dict[str, Any]", kwargs)
