"""The answers of an application's own routes under ``/-/``, for operators.

========================  ==========================================================================
``/-/healthz``            200 while the process answers at all
``/-/readyz``             200 while every backend can take calls and nothing drains, else 503; with
                          the state of each endpoint
``/-/metrics``            the metrics, for Prometheus
``/-/routes``             the endpoints and mounted applications, and their paths
========================  ==========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from prometheus_client.exposition import choose_encoder

from shoal.http.requests.exchange import JSON
from shoal.http.requests.payload import encoded, reader_for
from shoal.serving.backends.status import state_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from shoal.http.app.declarations import Declarations
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.payload import Reader
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoints.endpoint import Endpoint

Phase = Literal["not open", "opening", "open", "draining", "closed"]
"""The phase of an application's life."""

_FRESH = ((b"cache-control", b"no-store"),)


async def answer_alive(exchange: Exchange) -> None:
    """Answers ``/-/healthz``."""
    await exchange.answer(200, JSON, b'{"status":"alive"}', _FRESH)


async def answer_ready(
    exchange: Exchange, phase: Phase, controller: Controller | None, *, debug: bool
) -> None:
    """Answers ``/-/readyz``."""
    endpoints: Mapping[str, Endpoint] = {} if controller is None else controller.endpoints
    states = {name: _state(endpoint, debug=debug) for name, endpoint in endpoints.items()}
    stopped = [name for name, state in states.items() if not state["alive"]]
    if phase == "open" and stopped:
        status = f"not ready: {', '.join(stopped)}"
    else:
        status = "ready" if phase == "open" else phase
    body = encoded({"status": status, "endpoints": states})
    await exchange.answer(200 if status == "ready" else 503, JSON, body, _FRESH)


async def answer_metrics(exchange: Exchange, registry: CollectorRegistry) -> None:
    """Answers ``/-/metrics``."""
    accept = exchange.headers.get(b"accept", b"").decode("latin-1")
    encode, media_type = choose_encoder(accept)
    await exchange.answer(200, media_type.encode("ascii"), encode(registry), _FRESH)


async def answer_routes(
    exchange: Exchange,
    declared: Declarations,
    controller: Controller | None,
    mounts: Mapping[str, Any],
) -> None:
    """Answers ``/-/routes``: the controller's endpoints, or the declared ones without one."""
    if controller is None:
        routes = [
            _route(e.name, e.path, e.methods, e.reader, streams=bool(e.code and e.code.streams))
            for e in declared.endpoints.values()
        ]
    else:
        routes = [_route_of(endpoint) for endpoint in controller.endpoints.values()]
    body = encoded({"endpoints": routes, "mounts": [prefix or "/" for prefix in mounts]})
    await exchange.answer(200, JSON, body, _FRESH)


def _route_of(endpoint: Endpoint) -> dict[str, Any]:
    for backend in endpoint.backends():
        method_batcher = backend.method_batchers.get("__call__")
        if method_batcher is not None:
            try:
                reader = reader_for(method_batcher.batcher.signature)
            except TypeError:  # it can be called by handles only, even if it has a route
                reader = None
            return _route(
                endpoint.name,
                endpoint.route,
                endpoint.methods,
                reader,
                streams=method_batcher.streams,
            )
    return _route(endpoint.name, endpoint.route, endpoint.methods, None, streams=False)


def _route(
    name: str,
    path: str | None,
    methods: Sequence[str],
    reader: Reader | None,
    *,
    streams: bool,
) -> dict[str, Any]:
    return {
        "path": path,
        "methods": methods,
        "name": name,
        "takes": None if reader is None else reader.takes,
        "streams": streams,
    }


def _state(endpoint: Endpoint, *, debug: bool) -> dict[str, Any]:
    backends = {backend.tag: backend for backend in endpoint.backends()}
    words = {tag: state_of(backend) for tag, backend in backends.items()}
    alive = all(word in ("ready", "degraded") for word in words.values())
    state: dict[str, Any] = {
        "path": endpoint.route,
        "state": "held" if not words else "open" if alive else "not ready",
        "alive": alive,
        "queued": endpoint.held + sum([b.queued for b in backends.values()]),
        "running": sum([b.running for b in backends.values()]),
        "backends": words,
    }
    for backend in backends.values():
        failure = backend.failure
        if failure is not None:
            # The text of an error is internal; its type is enough to find it in the log.
            state["failure"] = repr(failure) if debug else type(failure).__name__
    return state
