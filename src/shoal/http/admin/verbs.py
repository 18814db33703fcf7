"""The functions behind the routes of the admin API, and its bodies.

Only the names of a request's members are checked here. The client's verbs check their values, so
that errors are the same with a local client.

Only the operator may use the admin API, and a remote client recreates a verb's error from the
problem. The problem therefore contains the error's text, even of an error in user code, unlike
those of `shoal.http.requests.problem`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import from_json

from shoal.core.options.names import suggested
from shoal.http.json.scan import encoding_flaw, not_json
from shoal.http.json.stream_forms import form_for
from shoal.http.requests.problem import Problem, Refused
from shoal.http.requests.streaming import ItemStream, answer_with_stream
from shoal.replicas.code.endpoint_call import HANDLE_OPTIONS
from shoal.serving.clients.verbs import Verb, array, mapping
from shoal.serving.clients.wire import error_to_wire, shown
from shoal.serving.names import found

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.http.requests.exchange import Exchange
    from shoal.serving.clients.handles import Handle
    from shoal.serving.clients.protocol import Client
    from shoal.serving.imports import ImportRule

# The limit for requests other than calls.
MAX_BODY_BYTES: Final = 2**20


async def read_object(exchange: Exchange, max_bytes: int) -> dict[str, Any]:
    """Raises TypeError if the body is not an object."""
    media_type = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    coding = exchange.headers.get(b"content-encoding", b"identity").strip().lower()
    if media_type != b"application/json" or coding != b"identity":
        raise Refused.of(
            "unsupported-media-type",
            "The admin API takes JSON; send Content-Type: application/json.",
        )
    body = await exchange.body(max_bytes)
    try:
        value: Any = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise not_json(encoding_flaw(body) or str(error)) from None
    if not isinstance(value, dict):
        raise TypeError(f"the body must be a JSON object, not {type(value).__name__}")
    return cast("dict[str, Any]", value)


def members(body: dict[str, Any], known: Mapping[str, bool]) -> dict[str, Any]:
    """Returns the object if it has all required members (True in `known`) and no unknown ones."""
    names = sorted(known, key=lambda name: not known[name])
    for name in names:
        if known[name] and name not in body:
            raise TypeError(f"the body must have {name!r}")
    for name in body:
        if name not in known:
            hint = suggested(name, names) or f"it takes {', '.join(names)}"
            raise TypeError(f"the body can't have {name!r}; {hint}")
    return body


# The status of all other errors is 500.
_KINDS_BY_STATUS: Final = {
    403: ("not-allowed",),
    404: ("no-such-model", "no-such-name"),
    408: ("slow-reader",),
    409: ("in-use", "name-taken", "not-durable", "not-enough-gpus"),
    413: ("item-too-large",),
    422: ("replica-not-started", "type-error", "value-error"),
    502: ("replica-died",),
    503: ("backend-unavailable", "closed", "not-open", "overloaded", "shut-down"),
    504: ("deadline-exceeded", "handler-timeout"),
}
_RETRY: Final = ((b"retry-after", b"1"),)


def admin_problem(error: Exception) -> Problem:
    described = error_to_wire(error)
    status = next((one for one, kinds in _KINDS_BY_STATUS.items() if described.kind in kinds), 500)
    title = described.kind.replace("-", " ").capitalize()
    headers = _RETRY if status == 503 else ()
    return Problem(status, described.kind, title, described.text, headers, described.more)


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
        received: dict[str, Any] = dict(request.names)
        if verb.query is not None:
            received[verb.query] = _flag(verb.query, request)
        if verb.body is not None:
            received[verb.body] = request.body
        else:
            received |= members(request.body, verb.members)
        bound = verb.arguments(received, self._imports)
        result = await getattr(self._client, verb.function.__name__)(*bound.args, **bound.kwargs)
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
