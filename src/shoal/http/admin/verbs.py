"""The functions behind the routes of the admin API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.http.admin.bodies import admin_problem, members
from shoal.http.requests.stream_forms import form_for
from shoal.http.requests.streaming import answer_with_stream
from shoal.replicas.code.endpoint_call import HANDLE_OPTIONS
from shoal.serving.clients.arguments import array, mapping
from shoal.serving.clients.wire_forms import shown
from shoal.serving.names import found

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.streaming import ItemStream
    from shoal.serving.clients.protocol import Client, Handle
    from shoal.serving.clients.verbs import Verb
    from shoal.serving.imports import ImportRule

_CALL: Final[Mapping[str, bool]] = dict.fromkeys(("args", "kwargs", "options"), False)
_OPTIONS: Final[Mapping[str, bool]] = dict.fromkeys(HANDLE_OPTIONS, False)


@dataclass(frozen=True)
class AdminRequest:
    """An authorized request; the body is empty if the route takes none."""

    exchange: Exchange
    names: Mapping[str, str]
    body: dict[str, Any]


class Verbs:
    """The routes' functions; each returns a result that is sent as JSON."""

    def __init__(self, client: Client, imports: ImportRule, heartbeat_s: float) -> None:
        self._client = client
        self._imports = imports
        self._heartbeat_s = heartbeat_s

    async def answer(self, verb: Verb, request: AdminRequest) -> Any:
        """Runs a verb of the client."""
        received: dict[str, Any] = dict(request.names)
        if verb.query is not None:
            received[verb.query] = _flag(verb.query, request)
        if verb.body is not None:
            received[verb.body] = request.body
        else:
            received |= members(request.body, verb.members)
        given = verb.arguments(received, self._imports)
        result = await getattr(self._client, verb.function.__name__)(*given.args, **given.kwargs)
        return {} if result is None else shown(result)

    async def show_endpoint(self, request: AdminRequest) -> Any:
        name, endpoints = request.names["name"], await self._client.list_endpoints()
        return found("endpoint", name, endpoints)

    async def call(self, request: AdminRequest) -> Any:
        handle, args, kwargs = await self._handle(request)
        return await handle.call(*args, **kwargs)

    async def stream(self, request: AdminRequest) -> None:
        """``POST endpoints/{name}/call`` with a stream; sends the response itself."""
        handle, args, kwargs = await self._handle(request)
        exchange = request.exchange
        await answer_with_stream(
            exchange,
            cast("ItemStream", handle.stream(*args, **kwargs)),
            form_for(exchange),
            admin_problem,
            self._heartbeat_s,
        )

    async def _handle(self, request: AdminRequest) -> tuple[Handle, Sequence[Any], dict[str, Any]]:
        body = members(request.body, _CALL)
        args = array("args", body.get("args", []))
        kwargs = mapping("kwargs", body.get("kwargs", {}))
        options = mapping("options", body.get("options", {}))
        handle = await self._client.get_handle(request.names["name"])
        if options:
            handle = handle.options(**members(options, _OPTIONS))
        return handle, args, kwargs


def _flag(name: str, request: AdminRequest) -> bool:
    query: bytes = request.exchange.scope.get("query_string", b"")
    if query not in (b"", f"{name}=0".encode(), f"{name}=1".encode()):
        raise ValueError(f"the query must be empty, ?{name}=0 or ?{name}=1")
    return query.endswith(b"1")
