"""``shoal check``: shows what an application would run, or reports all its mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shoal.commands.support.arguments import add, add_json_argument, describe
from shoal.commands.support.loading import (
    APPLICATION,
    application_of,
    need,
    say_flaws,
    server_settings,
    shoals_in,
)
from shoal.commands.support.mistake import CommandError, say
from shoal.commands.support.output import keywords, routing, show, table
from shoal.replicas.code.definition import qualified_name
from shoal.replicas.placements import placement_name
from shoal.serving.app_file.flaws import AppFileRefused
from shoal.serving.clients.wire import config_shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping

    from shoal.http.app.declarations import EndpointDeclaration
    from shoal.http.app.inspection import BackendPlan, Plan

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
    from shoal.http.app.inspection import plan_of

    app = shoals_in(application_of(arguments.application))
    if app is None:
        raise CommandError(f"{arguments.application} is not a shoal.App: there is nothing to check")
    plan = plan_of(app)
    if plan.complaints:
        raise _refusal(app, plan)
    for one in plan.backends:
        if one.oddity is not None:
            say(f"backends.{one.tag}: {one.oddity}")
    return show(arguments, _as_data(plan, server_settings(app)), _as_tables(plan))


def _refusal(app: Any, plan: Plan) -> CommandError:
    if app.file is None:
        return say_flaws([f"{'.'.join(one.path)}: {one}" for one in plan.complaints])
    for one in plan.complaints:
        app.file.flaws.add(one.path, str(one))
    return say_flaws(AppFileRefused(app.file.flaws.found).flaws)


def _as_tables(plan: Plan) -> str:
    backends = [
        (
            one.tag,
            one.code,
            one.takes or "?",
            placement_name(one.config.placement),
            _replicas(one),
            _options(one),
        )
        for one in plan.backends
    ]
    endpoints = [
        (one.name, one.path or "-", ",".join(one.methods), *routing(one)) for one in plan.endpoints
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


def _as_data(plan: Plan, server: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "server": dict(server),
        "backends": {
            one.tag: {
                "code": one.code,
                "takes": one.takes,
                "placement": placement_name(one.config.placement),
                "num_replicas": one.config.num_replicas,
                "config": config_shown(one.config),
                "oddity": one.oddity,
            }
            for one in plan.backends
        },
        "endpoints": {one.name: _endpoint_as_data(one) for one in plan.endpoints},
    }


def _endpoint_as_data(endpoint: EndpointDeclaration) -> dict[str, Any]:
    return {
        "route": endpoint.path,
        "methods": list(endpoint.methods),
        "traffic": dict(endpoint.traffic),
        "shadows": {
            shadow.backend: {
                "proportion": shadow.proportion,
                "compare": qualified_name(shadow.compare)
                if callable(shadow.compare)
                else shadow.compare,
            }
            for shadow in endpoint.shadows
        },
    }
