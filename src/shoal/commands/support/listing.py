"""Tables of backends, replicas and endpoints, for people."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.serving.status import BackendStatus, EndpointStatus, Status

_FIGURE: Final = re.compile(r"\d[\d,]*( (B|kiB|MiB|GiB))?")
_NONE: Final = "-"


def listed(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table, with columns of numbers aligned to the right, all others to the left."""
    columns = list(zip(heads, *rows, strict=True))
    laid_out: list[list[str]] = []
    for head, *cells in columns:
        width = max(map(len, (head, *cells)))
        values = [cell for cell in cells if cell != _NONE]
        are_figures = bool(values) and all(map(_FIGURE.fullmatch, values))
        align = str.rjust if are_figures else str.ljust
        laid_out.append([align(cell, width) for cell in (head, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*laid_out, strict=True))


def status_listed(status: Status) -> str:
    """Returns the tables of a controller's backends, replicas and endpoints."""
    parts = [backends_listed(status.backends.values())]
    replicas = [
        (
            replica.tag,
            replica.state,
            str(replica.ongoing),
            str(replica.batches),
            _size(replica.memory_bytes),
        )
        for backend in status.backends.values()
        for replica in backend.replicas
    ]
    if replicas:
        parts.append(listed(("REPLICA", "STATE", "ONGOING", "BATCHES", "MEMORY"), replicas))
    parts.append(endpoints_listed(status.endpoints.values()))
    parts += [
        f"{backend.tag}: {backend.failure}"
        for backend in status.backends.values()
        if backend.failure is not None
    ]
    return "\n\n".join(parts)


def backends_listed(backends: Iterable[BackendStatus]) -> str:
    """Returns the table of backends."""
    rows = [
        (
            one.tag,
            one.code,
            one.placement,
            one.state,
            f"{sum(replica.state == 'ready' for replica in one.replicas)}/{one.wanted}",
            str(one.queued),
            str(one.ongoing),
            str(one.requests),
            str(one.errors),
            str(one.deaths),
        )
        for one in backends
    ]
    if not rows:
        return "no backends"
    heads = ("BACKEND", "CODE", "PLACEMENT", "STATE", "READY", "QUEUED", "ONGOING", "REQUESTS")
    return listed((*heads, "ERRORS", "DEATHS"), rows)


def endpoints_listed(endpoints: Iterable[EndpointStatus]) -> str:
    """Returns the table of endpoints."""
    rows = [
        (
            one.name,
            _NONE if one.route is None else one.route,
            ",".join(one.methods),
            weights(one.traffic) or "held",
            weights({shadow.backend: shadow.proportion for shadow in one.shadows}) or _NONE,
            str(one.held),
            str(one.requests),
            str(one.errors),
        )
        for one in endpoints
    ]
    if not rows:
        return "no endpoints"
    heads = ("ENDPOINT", "ROUTE", "METHODS", "TRAFFIC", "SHADOWS", "HELD", "REQUESTS", "ERRORS")
    return listed(heads, rows)


def traffic_listed(endpoints: Iterable[EndpointStatus]) -> str:
    """Returns the table of traffic, with a line for each endpoint and backend."""
    rows = [
        (one.name, _NONE if one.route is None else one.route, tag, share)
        for one in endpoints
        for tag, share in [(tag, _percent(share)) for tag, share in one.traffic.items()]
        or [("held until traffic is set", _NONE)]
    ]
    return listed(("ENDPOINT", "ROUTE", "BACKEND", "SHARE"), rows) if rows else "no endpoints"


def shadows_listed(endpoints: Iterable[EndpointStatus]) -> str:
    """Returns the table of shadow traffic, with a line for each endpoint and backend."""
    rows = [
        (
            one.name,
            shadow.backend,
            _percent(shadow.proportion),
            str(shadow.sent),
            str(shadow.dropped),
            str(shadow.failed),
            _NONE if shadow.compare is None else shadow.compare,
            str(shadow.agreed),
            str(shadow.disagreed),
        )
        for one in endpoints
        for shadow in one.shadows
    ]
    if not rows:
        return "no shadow traffic"
    heads = ("ENDPOINT", "BACKEND", "SHARE", "SENT", "DROPPED", "FAILED", "COMPARE", "AGREED")
    return listed((*heads, "DISAGREED"), rows)


def config_listed(config: Mapping[str, Any]) -> str:
    """Returns options, with a line for each."""
    return "\n".join(f"{name}={value!r}" for name, value in config.items()) or "all defaults"


def weights(shares: Mapping[str, float]) -> str:
    """Formats shares of traffic: ``small 90%, large 10%``; empty if there are none."""
    return ", ".join(f"{tag} {_percent(share)}" for tag, share in shares.items())


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def _size(size: int | None) -> str:
    if size is None:
        return _NONE
    for unit in ("B", "kiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size //= 1024
    return f"{size:,} GiB"
