"""The state of a server as the dashboard shows it: JSON values, without texts of errors."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from shoal.observe.failures import name_of
from shoal.serving.backends.status import status_of

if TYPE_CHECKING:
    from shoal.observe.failures import FailureLog
    from shoal.serving.backends.backend import Backend
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoints.endpoint import Endpoint

_MOST_REPLICAS = 64


def state_of_server(
    controller: Controller, failures: FailureLog, now: float, most: int
) -> dict[str, Any]:
    backends, endpoints = controller.backends, controller.endpoints
    return {
        "backends": [_backend(one) for one in islice(backends.values(), most)],
        "endpoints": [_endpoint(one) for one in islice(endpoints.values(), most)],
        "hidden": max(0, len(backends) - most) + max(0, len(endpoints) - most),
        "failures": [
            {
                "age_s": round(now - one.at, 1),
                "batcher": one.batcher,
                "batch": one.batch,
                "error": one.error,
                "count": one.count,
                "ids": one.ids,
            }
            for one in reversed(failures.kept)
        ],
    }


def _backend(backend: Backend) -> dict[str, Any]:
    status = status_of(backend)
    failure = backend.failure or backend.supervisor.failures.last
    return {
        "name": status.tag,
        "code": status.code,
        "placement": status.placement,
        "state": status.state,
        "wanted": status.wanted,
        "replicas": [
            {
                "name": replica.tag,
                "state": replica.state,
                "running": replica.ongoing,
                "batches": replica.batches,
                "memory_bytes": replica.memory_bytes,
            }
            for replica in status.replicas[:_MOST_REPLICAS]
        ],
        "queued": status.queued,
        "running": backend.running,  # a replica counts an open batch as one request
        "requests": status.requests,
        "errors": status.errors,
        "deaths": status.deaths,
        "restarts": status.restarts,
        # The text of an error is internal; its type is enough to find it in the log.
        "failure": None if failure is None else name_of(failure),
    }


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    status = endpoint.status()
    return {
        "name": status.name,
        "route": status.route,
        "methods": status.methods,
        "held": status.held,
        "requests": status.requests,
        "errors": status.errors,
        "traffic": status.traffic,
        "shadows": [
            {
                "backend": shadow.backend,
                "proportion": shadow.proportion,
                "compares": shadow.compare is not None,
                "sent": shadow.sent,
                "dropped": shadow.dropped,
                "failed": shadow.failed,
                "agreed": shadow.agreed,
                "disagreed": shadow.disagreed,
            }
            for shadow in status.shadows
        ],
    }
