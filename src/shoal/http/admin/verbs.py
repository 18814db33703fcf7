"""What each route of the admin API does with a client."""

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
    """One request that was let in.

    Attributes:
        exchange: The request.
        names: What its path names, by what the route calls it.
        body: The object in its body; empty where the route takes none.
    """

    def __init__(self, exchange: Exchange, names: Mapping[str, str], body: dict[str, Any]) -> None:
        self.exchange = exchange
        self.names = names
        self.body = body


class Verbs:
    """The routes' functions; each returns what is answered as JSON.

    Args:
        client: What they drive.
        imports: What may be imported.
        heartbeat_s: How long a stream may be silent, in seconds.
    """

    def __init__(self, client: Client, imports: ImportRule, heartbeat_s: float) -> None:
        self._client = client
        self._imports = imports
        self._heartbeat_s = heartbeat_s

    async def status(self, asked: AdminRequest) -> Any:
        """``GET status``."""
        return await self._client.status()

    async def list_backends(self, asked: AdminRequest) -> Any:
        """``GET backends``."""
        configs = await self._client.list_backends()
        return {tag: config_shown(config) for tag, config in configs.items()}

    async def create_backend(self, asked: AdminRequest) -> Any:
        """``POST backends``."""
        body = members(asked.body, ("tag", "definition"), ("init_args", "init_kwargs", "config"))
        definition = self._checked_path("definition", body["definition"])
        config = self._checked_config(body.get("config"))
        init_args, init_kwargs = _arguments(body, "init_args", "init_kwargs")
        await self._client.create_backend(
            body["tag"], definition, *init_args, config=config, init_kwargs=init_kwargs
        )
        return {}

    async def show_backend(self, asked: AdminRequest) -> Any:
        """``GET backends/{tag}``."""
        return config_shown(await self._client.get_backend_config(asked.names["tag"]))

    async def update_backend(self, asked: AdminRequest) -> Any:
        """``PATCH backends/{tag}``: the body has the options that change."""
        config = self._checked_config(without_hidden(asked.body))
        await self._client.update_backend_config(asked.names["tag"], config)
        return {}

    async def delete_backend(self, asked: AdminRequest) -> Any:
        """``DELETE backends/{tag}``, with ``?force=1`` if what is in line need not be answered."""
        query: bytes = asked.exchange.scope.get("query_string", b"")
        if query not in (b"", b"force=0", b"force=1"):
            raise ValueError("the only query is ?force=1")
        await self._client.delete_backend(asked.names["tag"], force=query == b"force=1")
        return {}

    async def scale_backend(self, asked: AdminRequest) -> Any:
        """``POST backends/{tag}/scale``."""
        body = members(asked.body, ("num_replicas",))
        await self._client.scale_backend(asked.names["tag"], body["num_replicas"])
        return {}

    async def restart_backend(self, asked: AdminRequest) -> Any:
        """``POST backends/{tag}/restart``."""
        await self._client.restart_backend(asked.names["tag"])
        return {}

    async def list_endpoints(self, asked: AdminRequest) -> Any:
        """``GET endpoints``."""
        return await self._client.list_endpoints()

    async def create_endpoint(self, asked: AdminRequest) -> Any:
        """``POST endpoints``."""
        body = members(asked.body, ("name", "backend"), ("route", "methods"))
        await self._client.create_endpoint(
            body["name"],
            backend=body["backend"],
            route=body.get("route"),
            methods=body.get("methods", DEFAULT_METHODS),
        )
        return {}

    async def show_endpoint(self, asked: AdminRequest) -> Any:
        """``GET endpoints/{name}``."""
        name, endpoints = asked.names["name"], await self._client.list_endpoints()
        return found("endpoint", name, endpoints)

    async def delete_endpoint(self, asked: AdminRequest) -> Any:
        """``DELETE endpoints/{name}``."""
        await self._client.delete_endpoint(asked.names["name"])
        return {}

    async def set_traffic(self, asked: AdminRequest) -> Any:
        """``PUT endpoints/{name}/traffic``: the body has the weights."""
        await self._client.set_traffic(asked.names["name"], asked.body)
        return {}

    async def shadow_traffic(self, asked: AdminRequest) -> Any:
        """``PUT endpoints/{name}/shadows/{backend}``."""
        body = members(asked.body, ("proportion",), ("compare",))
        compare = body.get("compare")
        if compare is not None:
            compare = self._checked_path("compare", compare)
        names = asked.names
        await self._client.shadow_traffic(
            names["name"], names["backend"], body["proportion"], compare=compare
        )
        return {}

    async def shutdown(self, asked: AdminRequest) -> Any:
        """``POST shutdown``."""
        await self._client.shutdown()
        return {}

    async def call(self, asked: AdminRequest) -> Any:
        """``POST endpoints/{name}/call``."""
        handle, args, kwargs = await self._handle(asked)
        return await handle.call(*args, **kwargs)

    async def stream(self, asked: AdminRequest) -> None:
        """The same for what is answered by a stream; sends the answer itself."""
        handle, args, kwargs = await self._handle(asked)
        await answer_with_stream(
            asked.exchange,
            cast("ResultStream[Any]", handle.stream(*args, **kwargs)),
            admin_problem,
            self._heartbeat_s,
        )

    async def _handle(self, asked: AdminRequest) -> tuple[Handle, Sequence[Any], dict[str, Any]]:
        """Returns what makes a call, and its arguments."""
        body = members(asked.body, (), ("args", "kwargs", "options"))
        args, kwargs = _arguments(body, "args", "kwargs")
        _, options = _arguments(body, "", "options")
        handle = await self._client.get_handle(asked.names["name"])
        if options:
            handle = handle.options(**members(options, (), _OPTIONS))
        return handle, args, kwargs

    def _checked_config(self, config: Any) -> Any:
        if isinstance(config, Mapping):
            return self._imports.checked_config(cast("Mapping[str, Any]", config))
        return config  # pyright: ignore[reportUnknownVariableType] (the client's to check)

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
