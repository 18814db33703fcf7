"""``shoal check``: shows what an application would run, or reports all its mistakes.

It imports and checks the code without running it, and finds all mistakes that a start would find,
except those inside the user's code: no class is instantiated, and no handler is called.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    from collections.abc import Callable, Generator, Iterable, Sequence

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
    backends, complaints = _plans_of(declared)
    if complaints:
        raise _refusal(app, complaints)
    for one in backends:
        if one.oddity is not None:
            say(f"backends.{one.tag}: {one.oddity}")
    endpoints = declared.endpoints.values()
    data = {
        "server": dict(server_settings(app)),
        "backends": {one.tag: _backend_as_data(one) for one in backends},
        "endpoints": {one.name: _endpoint_as_data(one) for one in endpoints},
    }
    return show(arguments, data, _as_tables(backends, endpoints))


def _refusal(app: Any, complaints: Sequence[Complaint]) -> CommandError:
    if app.file is None:
        return say_flaws([f"{'.'.join(one.path)}: {one}" for one in complaints])
    for one in complaints:
        app.file.flaws.add(one.path, str(one))
    return say_flaws(AppFileRefused(app.file.flaws.found).flaws)


def _as_tables(plans: Iterable[BackendPlan], declared: Iterable[EndpointRecord]) -> str:
    backends = [
        (
            one.tag,
            one.code,
            one.takes or "?",
            placement_name(one.config.placement),
            _replicas(one),
            _options(one),
        )
        for one in plans
    ]
    endpoints = [
        (
            *(one.name, one.route or "-", ",".join(one.methods)),
            *routing(one.traffic, {tag: shadow.proportion for tag, shadow in one.shadows.items()}),
        )
        for one in declared
    ]
    return "\n\n".join(
        (
            table(("BACKEND", "CODE", "TAKES", "PLACEMENT", "REPLICAS", "OPTIONS"), backends),
            table(("ENDPOINT", "ROUTE", "METHODS", "TRAFFIC", "SHADOWS"), endpoints),
        )
    )


def _replicas(one: BackendPlan) -> str:
    scaling = one.config.autoscaling
    if scaling is None:
        return str(one.config.num_replicas)
    return f"{scaling.min_replicas} to {scaling.max_replicas}"


def _options(one: BackendPlan) -> str:
    shown = config_shown(one.config)
    pairs = keywords({name: one for name, one in shown.items() if name not in _ELSEWHERE})
    return " ".join(pairs) or "-"


def _backend_as_data(one: BackendPlan) -> dict[str, Any]:
    return {
        "code": one.code,
        "takes": one.takes,
        "placement": placement_name(one.config.placement),
        "num_replicas": one.config.num_replicas,
        "config": config_shown(one.config),
        "oddity": one.oddity,
    }


def _endpoint_as_data(endpoint: EndpointRecord) -> dict[str, Any]:
    return {
        "route": endpoint.route,
        "methods": list(endpoint.methods),
        "traffic": dict(endpoint.traffic),
        "shadows": {
            backend: {
                "proportion": shadow.proportion,
                "compare": qualified_name(shadow.compare)
                if callable(shadow.compare)
                else shadow.compare,
            }
            for backend, shadow in endpoint.shadows.items()
        },
    }


class Complaint(ValueError):
    """A mistake in a declaration, at a path such as ``("backends", tag, "code")``."""

    def __init__(self, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, kw_only=True)
class BackendPlan:
    tag: str
    code: str
    config: BackendConfig
    # Such as "lists of up to 64 str"; None if the code was not inspected.
    takes: str | None = None
    # Options that are allowed but probably a mistake.
    oddity: str | None = None


def _plans_of(declared: Declarations) -> tuple[list[BackendPlan], list[Complaint]]:
    """Inspects all declarations of an application, and imports its code."""
    complaints: list[Complaint] = []
    backends: list[BackendPlan] = []
    for tag, (definition, config) in declared.backends.items():
        plan = BackendPlan(tag=tag, code=definition.import_path or definition.name, config=config)
        try:
            has_route = any(
                one.route is not None and one.traffic.get(tag, 0) > 0
                for one in declared.endpoints.values()
            )
            plan = _inspected(plan, definition, has_route)
        except Complaint as complaint:
            complaints.append(complaint)
        backends.append(plan)
    for name, endpoint in declared.endpoints.items():
        for shadow in endpoint.shadows.values():
            try:
                _check_compare(("endpoints", name, "shadows"), shadow.compare)
            except Complaint as complaint:
                complaints.append(complaint)
    return backends, complaints


def _inspected(plan: BackendPlan, definition: Definition, has_route: bool) -> BackendPlan:
    """Completes a plan from the code; raises `Complaint` for the first mistake."""
    from shoal.http.json.payload import reader_for

    path, config = ("backends", plan.tag), plan.config
    if "python" in config.placed:
        return plan  # this interpreter may not be able to import the code
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
    takes = described(
        handler.binding.signature, size, batched=batched, fill=config.fill, at_once=slots
    )
    return replace(plan, takes=takes, oddity=oddity)


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
