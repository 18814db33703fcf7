"""The routes under ``/-/``: what an operator asks a running application.

========================  ==========================================================================
``/-/healthz``            200 while the process answers at all
``/-/readyz``             200 while every batcher is alive and nothing drains, else 503; either way
                          the state of each endpoint
``/-/metrics``            the figures, for Prometheus
``/-/routes``             what is served where
========================  ==========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from prometheus_client.exposition import choose_encoder

from shoal.http.asgi import JSON
from shoal.http.payload import encoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client import CollectorRegistry

    from shoal.http.asgi import Exchange
    from shoal.http.endpoint import Endpoint

Phase = Literal["not open", "opening", "open", "draining", "closed"]
"""Where an application is in its life."""

_FRESH = ((b"cache-control", b"no-store"),)


async def answer_alive(exchange: Exchange) -> None:
    """Answers ``/-/healthz``."""
    await exchange.answer(200, JSON, b'{"status":"alive"}', _FRESH)


async def answer_ready(
    exchange: Exchange, phase: Phase, endpoints: Iterable[Endpoint], *, debug: bool
) -> None:
    """Answers ``/-/readyz``."""
    states = {endpoint.name: _state(endpoint, debug=debug) for endpoint in endpoints}
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
    exchange: Exchange, endpoints: Iterable[Endpoint], mounts: Mapping[str, Any]
) -> None:
    """Answers ``/-/routes``."""
    routes = [
        {
            "path": endpoint.path,
            "methods": endpoint.methods,
            "name": endpoint.name,
            "takes": endpoint.takes,
            "streams": endpoint.source.streams,
        }
        for endpoint in endpoints
    ]
    body = encoded({"endpoints": routes, "mounts": [prefix or "/" for prefix in mounts]})
    await exchange.answer(200, JSON, body, _FRESH)


def _state(endpoint: Endpoint, *, debug: bool) -> dict[str, Any]:
    batcher = endpoint.batcher
    if batcher is None:
        return {"path": endpoint.path, "state": "new", "alive": False}
    statistics = batcher.statistics()
    state: dict[str, Any] = {
        "path": endpoint.path,
        "state": statistics.state,
        "alive": batcher.is_alive,
        "queued": statistics.queued + statistics.parked,
        "running": statistics.running,
    }
    if batcher.failure is not None:
        # The text of an error is internal; its type is enough to know it again in the log.
        failure = batcher.failure
        state["failure"] = repr(failure) if debug else type(failure).__name__
    return state
