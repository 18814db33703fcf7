"""Output of commands: results as JSON for programs, as tables and lines for people."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from shoal.commands.support.mistake import CommandError, printable, say

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from shoal.http.app.declarations import EndpointDeclaration
    from shoal.serving.status import BackendStatus, EndpointStatus, GpuStatus, Status

_FIGURE: Final = re.compile(r"\d[\d,.]*(e[+-]\d+)?( ?(%|s|ms|µs|B|kiB|MiB|GiB))?")
_NONE: Final = "-"


def print_out(text: str) -> None:
    """Prints a result; raises `CommandError` without a message if the reader closed the pipe."""
    try:
        sys.stdout.write(f"{printable(text)}\n")
        sys.stdout.flush()
    except OSError as error:
        # Otherwise the interpreter would flush again at its end, and report the error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise CommandError("", 128 + signal.SIGPIPE) from None
        raise CommandError(f"can't write the result: {error.strerror}", 1) from None


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def show(arguments: Namespace, data: Any, text: str) -> int:
    """Prints a result, with ``--json`` the data, else the text; returns the exit code."""
    print_out(as_json(data) if arguments.json else text)
    return 0


def confirm(arguments: Namespace, done: str) -> int:
    return show(arguments, {"done": done}, done)


def save_plot(draw: Callable[[Path], None], path: Path) -> None:
    try:
        draw(path)
    except ImportError as error:
        raise CommandError(str(error)) from None
    except ValueError as error:
        raise CommandError(f"no plot in {path}: {error}") from None
    except OSError as error:
        raise CommandError(f"can't write {path}: {error.strerror}") from None
    say(f"Saved {path}")


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Formats a table, columns of figures aligned to the right; ``no backends`` without rows."""
    if not rows:
        return f"no {heads[0].lower()}s"
    laid_out: list[list[str]] = []
    for head, *values_of_column in zip(heads, *rows, strict=True):
        cells = [_NONE if value is None else str(value) for value in values_of_column]
        width = max(map(len, (head, *cells)))
        values = [cell for cell in cells if cell != _NONE]
        are_figures = bool(values) and all(map(_FIGURE.fullmatch, values))
        align = str.rjust if are_figures else str.ljust
        laid_out.append([align(cell, width) for cell in (head, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*laid_out, strict=True))


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:{width}}  {value}".rstrip() for name, value in pairs)


def keywords(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in options.items()]


def status_listed(status: Status) -> str:
    replicas = [one for backend in status.backends.values() for one in backend.replicas]
    tables: list[tuple[tuple[str, ...], Sequence[Sequence[object]]]] = [
        (
            ("REPLICA", "STATE", "ONGOING", "RUNS", "MEMORY"),
            [(o.tag, o.state, o.ongoing, o.batches, _size(o.memory_bytes)) for o in replicas],
        ),
        (("REPLICA", "MODEL SERVER"), [(o.tag, o.address) for o in replicas if o.address]),
        (
            ("REPLICA", "MODEL", "STATE"),
            [(one.tag, name, state) for one in replicas for name, state in one.models.items()],
        ),
        (
            ("GPU", "KIND", "REPLICAS", "USED", "MEMORY", "BUSY"),
            [(gpu, *_of_gpu(one)) for gpu, one in status.gpus.items()],
        ),
    ]
    failures = [f"{b.tag}: {b.failure}" for b in status.backends.values() if b.failure is not None]
    return "\n\n".join(
        [
            backends_listed(status.backends.values()),
            *(table(heads, rows) for heads, rows in tables if rows),
            endpoints_listed(status.endpoints.values()),
            *failures,
        ]
    )


def _of_gpu(one: GpuStatus) -> tuple[str | None, ...]:
    return (
        one.name,
        ", ".join(f"{replica} {part:.3g}" for replica, part in one.replicas.items()) or None,
        *(_size(one.memory_used_bytes), _size(one.memory_total_bytes)),
        None if one.utilization is None else f"{one.utilization:.0%}",
    )


def backends_listed(backends: Iterable[BackendStatus]) -> str:
    rows = [
        (
            *(one.tag, one.code, one.placement, one.state),
            f"{sum(replica.state == 'ready' for replica in one.replicas)}/{one.wanted}",
            *(one.queued, one.ongoing, one.requests, one.errors, one.deaths),
        )
        for one in backends
    ]
    heads = ("BACKEND", "CODE", "PLACEMENT", "STATE", "READY", "QUEUED", "ONGOING", "REQUESTS")
    return table((*heads, "FAILED IN CODE", "DEATHS"), rows)


def endpoints_listed(endpoints: Iterable[EndpointStatus]) -> str:
    rows = [
        (
            *(one.name, one.route, ",".join(one.methods)),
            *(*routing(one), one.held, one.requests, one.errors),
        )
        for one in endpoints
    ]
    heads = ("ENDPOINT", "ROUTE", "METHODS", "TRAFFIC", "SHADOWS", "HELD", "REQUESTS")
    return table((*heads, "FAILED OR REFUSED"), rows)


def traffic_listed(endpoints: Iterable[EndpointStatus]) -> str:
    rows = [
        (one.name, one.route, tag, share)
        for one in endpoints
        for tag, share in [(tag, _percent(share)) for tag, share in one.traffic.items()]
        or [("held until traffic is set", _NONE)]
    ]
    return table(("ENDPOINT", "ROUTE", "BACKEND", "SHARE"), rows)


def shadows_listed(endpoints: Iterable[EndpointStatus]) -> str:
    rows = [
        (
            *(one.name, shadow.backend, _percent(shadow.proportion)),
            *(shadow.sent, shadow.dropped, shadow.failed),
            *(shadow.compare, shadow.agreed, shadow.disagreed),
        )
        for one in endpoints
        for shadow in one.shadows
    ]
    if not rows:
        return "no shadow traffic"
    heads = ("ENDPOINT", "BACKEND", "SHARE", "SENT", "DROPPED", "FAILED", "COMPARE", "AGREED")
    return table((*heads, "DISAGREED"), rows)


def config_listed(config: Mapping[str, Any]) -> str:
    return "\n".join(keywords(config)) or "all defaults"


def routing(endpoint: EndpointStatus | EndpointDeclaration) -> tuple[str, str]:
    shadows = {shadow.backend: shadow.proportion for shadow in endpoint.shadows}
    return weights(endpoint.traffic) or "held", weights(shadows) or _NONE


def weights(shares: Mapping[str, float]) -> str:
    """Formats shares of traffic: ``small 90%, large 10%``; empty if there are none."""
    return ", ".join(f"{tag} {_percent(share)}" for tag, share in shares.items())


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def _size(size: int | None) -> str | None:
    if size is None:
        return None
    for unit in ("B", "kiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size //= 1024
    return f"{size:,} GiB"
