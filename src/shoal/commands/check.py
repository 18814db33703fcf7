"""``shoal check``: shows what an application would run, or reports all its mistakes.

It imports and checks the code without running it, and finds all mistakes that a start would find,
except those inside the user's code: no class is instantiated, and no handler is called.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.batching.handlers.binding import described
from shoal.commands.support.arguments import add, add_json_argument, describe
from shoal.commands.support.loading import (
    APPLICATION,
    application_of,
    need,
    say_flaws,
    server_settings,
    shoal_app_in,
)
from shoal.commands.support.output import CommandError, keywords, routing, say, show, table
from shoal.http.app.code import check_annotations
from shoal.replicas.code.definition import imported, qualified_name
from shoal.replicas.code.instance import adapted, call_of, forms_batches
from shoal.replicas.placements import placement_name
from shoal.serving.app_file.flaws import AppFileRefused
from shoal.serving.backend_options import loaded_converters
from shoal.serving.clients.wire import config_shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Generator, Mapping, Sequence

    from shoal.http.app.declarations import Declarations
    from shoal.replicas.code.definition import Definition
    from shoal.serving.backend_config import BackendConfig
    from shoal.serving.state_records import EndpointRecord


_EXAMPLE: Final = """\
  shoal check app.toml
  shoal check my_module:app --json
"""
# Shown in columns of their own, or not batching options.
_ELSEWHERE: Final = ("num_replicas", "placement", "autoscaling", "user_config", "env")


def add_arguments(parser: ArgumentParser) -> None:
    describe(
        parser,
        _run,
        "Show what an application would run, or report its mistakes, each with its line in the\n"
        "file. The application's code is imported but not run.",
        _EXAMPLE,
    )
    add(parser, f"application {APPLICATION}", "the application to check")
    add_json_argument(parser)


def _run(arguments: Namespace) -> int:
    need("shoal.http.app.app")
    app = shoal_app_in(application_of(arguments.application))
    if app is None:
        raise CommandError(f"{arguments.application} is not a shoal.App: there is nothing to check")
    declared = app._declared  # pyright: ignore[reportPrivateUsage]
    backends, complaints = _inspected(declared)
    if complaints:
        raise _refusal(app, complaints)
    for tag, one in backends.items():
        if one["oddity"] is not None:
            say(f"backends.{tag}: {one['oddity']}")
    data = {
        "server": dict(server_settings(app)),
        "backends": backends,
        "endpoints": {name: _as_data(one) for name, one in declared.endpoints.items()},
    }
    return show(arguments, data, _as_tables(declared, backends))


def _refusal(app: Any, complaints: Sequence[Complaint]) -> CommandError:
    if app.file is None:
        return say_flaws([f"{'.'.join(one.path)}: {one}" for one in complaints])
    for one in complaints:
        app.file.flaws.add(one.path, str(one))
    return say_flaws(AppFileRefused(app.file.flaws.found).flaws)


def _as_tables(declared: Declarations, inspected: Mapping[str, Mapping[str, Any]]) -> str:
    backends: list[Sequence[str]] = []
    for tag, one in inspected.items():
        scaling = declared.backends[tag][1].autoscaling
        replicas = f"{scaling.min_replicas} to {scaling.max_replicas}" if scaling else None
        options = {name: each for name, each in one["config"].items() if name not in _ELSEWHERE}
        backends.append(
            (
                *(tag, one["code"], one["takes"] or "?", one["placement"]),
                *(replicas or str(one["num_replicas"]), " ".join(keywords(options)) or "-"),
            )
        )
    endpoints = [
        (
            *(one.name, one.route or "-", ",".join(one.methods)),
            *routing(one.traffic, {tag: shadow.proportion for tag, shadow in one.shadows.items()}),
        )
        for one in declared.endpoints.values()
    ]
    return "\n\n".join(
        (
            table(("BACKEND", "CODE", "TAKES", "PLACEMENT", "REPLICAS", "OPTIONS"), backends),
            table(("ENDPOINT", "ROUTE", "METHODS", "TRAFFIC", "SHADOWS"), endpoints),
        )
    )


def _as_data(endpoint: EndpointRecord) -> dict[str, Any]:
    shadows: dict[str, dict[str, Any]] = {}
    for tag, shadow in endpoint.shadows.items():
        compare = shadow.compare
        name = qualified_name(compare) if callable(compare) else compare
        shadows[tag] = {"proportion": shadow.proportion, "compare": name}
    return {
        "route": endpoint.route,
        "methods": list(endpoint.methods),
        "traffic": dict(endpoint.traffic),
        "shadows": shadows,
    }


class Complaint(ValueError):
    """A mistake in a declaration, at a path such as ``("backends", tag, "code")``."""

    def __init__(self, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


def _inspected(declared: Declarations) -> tuple[dict[str, dict[str, Any]], list[Complaint]]:
    """Inspects all declarations, and imports their code; returns backends as data, and mistakes."""
    backends: dict[str, dict[str, Any]] = {}
    complaints: list[Complaint] = []
    routed = [one.traffic for one in declared.endpoints.values() if one.route is not None]
    for tag, (definition, config) in declared.backends.items():
        has_route = any(traffic.get(tag, 0) > 0 for traffic in routed)
        try:
            takes, oddity = _inspected_code(("backends", tag), definition, config, has_route)
        except Complaint as complaint:
            complaints.append(complaint)
            continue
        backends[tag] = {
            "code": definition.import_path or definition.name,
            "takes": takes,
            "placement": placement_name(config.placement),
            "num_replicas": config.num_replicas,
            "config": config_shown(config),
            "oddity": oddity,
        }
    for name, endpoint in declared.endpoints.items():
        for shadow in endpoint.shadows.values():
            try:
                _check_compare(("endpoints", name, "shadows"), shadow.compare)
            except Complaint as complaint:
                complaints.append(complaint)
    return backends, complaints


def _inspected_code(
    path: tuple[str, ...], definition: Definition, config: BackendConfig, has_route: bool
) -> tuple[str | None, str | None]:
    """Returns what code takes, such as "lists of up to 64 str", and options that are odd.

    Raises `Complaint` for the first mistake.
    """
    from shoal.http.json.payload import reader_for

    if "python" in config.placed:
        return None, None  # this interpreter may not be able to import the code
    function = _function_of(path, definition)
    with _complaining((*path, "code")):
        handler, batched = adapted(function, definition, fill=config.fill, streams=config.streams)
        if has_route and config.decode is None:
            check_annotations(function)
            reader_for(handler.binding.signature)
    try:
        size = config.batch_options(batched)["max_batch_size"]
        gathers = not batched and not handler.threaded and forms_batches(definition.load())
        slots = config.slots(batched, gathers=gathers)
        oddity = config.oddity(batched)
        loaded_converters(config.decode, config.encode)
    except Exception as error:
        with _complaining((*path, *_option_of(config, str(error)))):
            raise
    signature = handler.binding.signature
    takes = described(signature, size, batched=batched, fill=config.fill, at_once=slots)
    return takes, oddity


def _function_of(path: tuple[str, ...], definition: Definition) -> Callable[..., Any]:
    """Returns the function; for a class, its ``__call__`` as if bound to an instance."""
    with _complaining((*path, "code")):
        loaded = definition.load()
    if not inspect.isclass(loaded):
        return cast("Callable[..., Any]", loaded)
    with _complaining((*path, "init_args" if definition.init_args else "code")):
        definition.check_init(loaded)
    return cast("Callable[..., Any]", call_of(loaded))


def _option_of(config: BackendConfig, error: str) -> tuple[str, ...]:
    """Returns the option that an error names first, or whose value it quotes."""
    options = config.given()
    first = error.partition("=")[0]
    if first in options:
        return (first,)
    quoted = (one for one, value in options.items() if type(value) is str and repr(value) in error)
    return tuple(islice(quoted, 1))


def _check_compare(path: tuple[str, ...], function: Any) -> None:
    if isinstance(function, str):
        with _complaining(path):
            compare = imported(function)
            if not callable(compare):
                raise TypeError(f"{function!r} is not a function, but {compare!r}")


@contextmanager
def _complaining(path: tuple[str, ...]) -> Generator[None]:
    """Turns any error, including one of the user's code, into a `Complaint`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise Complaint(path, " ".join(str(error).split())) from error
    except Exception as error:
        raise Complaint(path, f"importing it failed: {type(error).__name__}: {error}") from error
