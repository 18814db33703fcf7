"""What commands write: messages and errors on stderr, results on stdout as JSON, tables or lines.

Text of others in messages is escaped.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from shoal.status import BackendStatus, EndpointStatus, GpuStatus, Status


# The errors of a pipe or a terminal without a reader.
_READER_IS_GONE: Final = frozenset({errno.EPIPE, errno.EIO})


class CommandError(Exception):
    """An error of a command; its message is one line, which says how to correct a mistake."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # 2 for a mistake in the command, 1 for any other error


@contextmanager
def as_mistakes() -> Generator[None]:
    """Converts a mistake to a `CommandError`: wrong types and values, and a missing extra."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise CommandError(in_one_line(error)) from None
    except ModuleNotFoundError as error:
        raise CommandError(in_one_line(error), 1) from None


def failed_code(what: str, error: BaseException) -> CommandError:
    traceback.print_exception(error)
    return CommandError(f"{what}, see above", 1)


def in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def say(line: str) -> None:
    """Writes a line to stderr, escaped, in one write; does nothing if stderr can't be written."""
    with suppress(OSError):
        sys.stderr.write(f"{printable(line)}\n")
        sys.stderr.flush()


def open_closed_streams() -> None:
    """Opens the null device for standard streams that are closed, as by ``2>&-``."""
    # Otherwise a socket or a file would get the stream's number, and its output.
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def drop_unread_output() -> None:
    """Drops output for a reader that is gone, which would fail the interpreter's exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # pyright: ignore[reportUnnecessaryComparison] - it may be closed
            continue
        try:
            stream.flush()
        except OSError as error:
            if error.errno in _READER_IS_GONE:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


# Control characters except tab and line feed, line separators, and marks of text direction.
_ESCAPED: Final = {
    code: f"\\u{code:04x}"
    for code in (
        *(*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)),
        *(0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)),
    )
}


def printable(text: str) -> str:
    """Escapes control characters except line feeds and tabs."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPED)


def indented(text: str) -> str:
    """Escapes text, and indents its lines after the first, so that they forge no record."""
    return printable(text).replace("\n", "\n  ")


_FIGURE: Final = re.compile(r"\d[\d,.]*(e[+-]\d+)?( ?(%|s|ms|µs|MiB))?")
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
    except (ImportError, ValueError, OSError) as error:
        raise CommandError(f"no plot in {path}: {in_one_line(error)}") from None
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
            *routing(one.traffic, {shadow.backend: shadow.proportion for shadow in one.shadows}),
            *(one.held, one.requests, one.errors),
        )
        for one in endpoints
    ]
    heads = ("ENDPOINT", "ROUTE", "METHODS", "TRAFFIC", "SHADOWS", "HELD", "REQUESTS")
    return table((*heads, "FAILED OR REFUSED"), rows)


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


def routing(traffic: Mapping[str, float], shadows: Mapping[str, float]) -> tuple[str, str]:
    return weights(traffic) or "held", weights(shadows) or _NONE


def weights(shares: Mapping[str, float]) -> str:
    """Formats shares of traffic: ``small 90%, large 10%``; empty if there are none."""
    return ", ".join(f"{tag} {_percent(share)}" for tag, share in shares.items())


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def _size(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**20:,.0f} MiB"
