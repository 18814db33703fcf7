"""Imports the modules that an application needs only with an endpoint, or for its metrics."""

from __future__ import annotations

from importlib import import_module
from typing import Final

_NEEDED_LATER: Final = (
    "shoal.serving.backends.backend",
    "shoal.replicas.local.task",
    "shoal.http.requests.endpoint",
    "shoal.http.requests.json_codec",
    "shoal.observe.collector",
    "shoal.observe.gpus",
    "shoal.observe.workers",
    "shoal.http.openapi.document",
    "shoal.http.openapi.viewer",
    "shoal.http.openapi.landing",
    "shoal.http.dashboard.page",
    "shoal.http.dashboard.feed",
)


def load_the_rest() -> None:
    """Takes about half as long as the start of an application without endpoints."""
    # A server calls it in a thread, once clients can connect, so that no request waits for it.
    for module in _NEEDED_LATER:
        import_module(module)
