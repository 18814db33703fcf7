"""Options of the commands that serve an application."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from shoal.asgi.http_options import FLAGGED, HTTP_OPTIONS, HttpOptions
from shoal.commands.server.stderr import LOG_FORMATS
from shoal.commands.support.arguments import add, add_token_argument, token_of
from shoal.commands.support.loading import need
from shoal.commands.support.output import CommandError, as_mistakes
from shoal.core.options.option import summaries_of
from shoal.serving.app_file.server import (
    NOT_ON_HYPERCORN,
    EventLoopName,
    Server,
    Workers,
    checked_workers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.core.options.option import Option


def add_server_options(parser: ArgumentParser) -> None:
    """Adds the options of serving. The application's file has those not given."""
    summaries = summaries_of(HttpOptions)
    for name, one in FLAGGED.items():
        _add_flag(parser, name, one, summaries.get(name, ""))
    loop = "trio, or asyncio, with uvloop if that is installed (trio)"
    add(parser, "--event-loop", loop, choices=get_args(EventLoopName))
    add(
        parser,
        "--server",
        "Shoal's own, or stock Hypercorn (shoal)",
        choices=get_args(Server),
    )
    workers = 'HTTP processes that share the same batches; "auto": one for each other core (none)'
    add(parser, "--workers N", workers, _workers)
    levels = ["debug", "info", "warning", "error", "critical"]
    add(parser, "--log-level", "level of the log on stderr", default="info", choices=levels)
    form = "format of the log on stderr: text, or one JSON object per line"
    add(parser, "--log-format", form, default="text", choices=LOG_FORMATS)
    add(
        parser,
        "--otel",
        "export traces over OTLP, configured with the variables OTEL_...",
    )
    operator = parser.add_argument_group("for the operator")
    add(operator, "--state FILE", "store changes made at run time, and restore them", Path)
    about = "a file with a token; the port then has the admin API, for clients with the token"
    add_token_argument(operator, about)
    module = "a module, with submodules, for backends created at run time; * for any; repeatable"
    add(operator, "--allow-module MODULE", module, action="append", dest="allowed_modules")


def _workers(text: str) -> Workers:
    value = text if text == "auto" else _number(text)
    try:
        return checked_workers("workers", value)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(str(error)) from None


def _flag_of(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def _add_flag(parser: ArgumentParser, name: str, one: Option, summary: str) -> None:
    flag = _flag_of(name)
    noun = flag.rpartition("-")[2].upper()
    default: Any = getattr(HttpOptions, name)
    summary = summary.replace("%", "%%")
    if isinstance(default, bool):
        parser.add_argument(flag, action="store_const", const=True, help=summary)
        return

    if isinstance(default, tuple):
        flag, noun = flag.replace("allowed", "allow").removesuffix("s"), noun.removesuffix("S")
        shown = ", ".join(map(str, cast("tuple[object, ...]", default))) or "none"

        def entry(text: str) -> Any:
            return _checked(name, one, (text,))[0]

        help_ = f"{summary}; repeatable ({shown})"
        parser.add_argument(flag, dest=name, type=entry, action="append", metavar=noun, help=help_)
        return
    is_text = default is None or isinstance(default, str)

    def read(text: str) -> Any:
        return _checked(name, one, text if is_text else _number(text))

    parser.add_argument(
        flag,
        dest=name,
        type=read,
        metavar=noun if is_text else "N" if isinstance(default, int) else "SECONDS",
        help=summary if default in (None, "") else f"{summary} ({_shown(default)})",
    )


def _checked(name: str, one: Option, value: Any) -> Any:
    try:
        return one.checked(name, value)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(str(error)) from None


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def server_options(arguments: Namespace, from_file: Mapping[str, Any]) -> HttpOptions:
    chosen = {name: one for name, one in vars(arguments).items() if one is not None}
    values: dict[str, Any] = {**from_file, **chosen}
    known = {name: one for name, one in values.items() if name in HTTP_OPTIONS}
    with as_mistakes():
        return HttpOptions(**known, token=token_of(arguments))


def process_options(arguments: Namespace, from_file: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "event_loop": arguments.event_loop or from_file.get("event_loop", "trio"),
        "server": _server(arguments, from_file),
        "workers": _worker_count(arguments, from_file),
        "log_level": arguments.log_level,
        "log_format": arguments.log_format,
        "otel": arguments.otel,
        "state": arguments.state,
    }


def _server(arguments: Namespace, from_file: Mapping[str, Any]) -> Server:
    chosen: Server = arguments.server or from_file.get("server", "shoal")
    if chosen == "shoal":
        return chosen
    theirs = "--server hypercorn" if arguments.server else 'server = "hypercorn"'
    for name in NOT_ON_HYPERCORN:
        if getattr(arguments, name) is not None:
            found = _flag_of(name)
        elif name in from_file:
            found = f"{name} under [server]"
        else:
            continue
        raise CommandError(f"{found} is an option of Shoal's own server; leave it out, or {theirs}")
    need(chosen, "--server hypercorn")
    return chosen


def _worker_count(arguments: Namespace, from_file: Mapping[str, Any]) -> int | None:
    """Returns how many worker processes speak HTTP; None to speak it in the server's process."""
    chosen: Workers | None = arguments.workers or from_file.get("workers")
    return max(1, usable_cpus() - 1) if chosen == "auto" else chosen


def usable_cpus() -> int:
    """Returns how many processors this process may use, within its control groups' quotas."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    group = Path("/sys/fs/cgroup")
    with suppress(OSError):
        listed = Path("/proc/self/cgroup").read_text().splitlines()
        group /= next((one[4:] for one in listed if one.startswith("0::/")), "")  # version 2
    for one in (group, *group.parents):
        with suppress(OSError, ValueError):
            allowed, period = (one / "cpu.max").read_text().split()
            count = min(count, max(1, int(allowed) // int(period)))
    return count


def _shown(default: Any) -> str:
    return format(default, "g") if isinstance(default, float) else str(default)
