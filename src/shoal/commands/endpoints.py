"""``shoal endpoints``, ``traffic`` and ``shadow``: route the requests of a running server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from shoal.commands.server.client import add_verb, ask, change
from shoal.commands.support.arguments import add, add_family
from shoal.commands.support.mistake import CommandError
from shoal.commands.support.output import (
    endpoints_listed,
    shadows_listed,
    show,
    traffic_listed,
    weights,
)
from shoal.commands.support.values import proportion_of, weights_of
from shoal.serving.clients.wire import written
from shoal.serving.names import DEFAULT_METHODS, not_there

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping

    from shoal.serving.status import EndpointStatus

_EXAMPLE: Final = """\
  shoal endpoints create classify --route /classify --method POST --backend small
  shoal endpoints list
"""
_TRAFFIC_EXAMPLE: Final = """\
  shoal traffic show
  shoal traffic set classify small=0.9 large=0.1
  shoal traffic set classify small=90% large=10%
"""
_SHADOW_EXAMPLE: Final = """\
  shoal shadow set classify large 10% --compare my_models:alike
  shoal shadow set classify large 0
"""


_TRAFFIC: Final = "Divide an endpoint's requests among backends."
_SHADOW: Final = "Copy a share of an endpoint's requests to a backend, and discard its results."


def add_arguments(parser: ArgumentParser) -> None:
    commands = add_family(parser, "Manage the endpoints of a running server.", _EXAMPLE)
    add_verb(commands, "list", _list, "Show the endpoints and their traffic.", _EXAMPLE)
    create = add_verb(
        commands,
        "create",
        _create,
        "Create an endpoint. Without --backend, it holds its requests until its traffic is set.",
        "  shoal endpoints create classify --route /classify --backend small\n",
    )
    _add_endpoint(create)
    add(create, "--backend TAG", "the backend for all its requests")
    add(create, "--route PATH", "its HTTP path (none: no HTTP route)")
    add(
        create,
        "--method METHOD",
        f"an HTTP method that it accepts; repeatable ({' and '.join(DEFAULT_METHODS)})",
        action="append",
        dest="methods",
    )
    delete = add_verb(
        commands,
        "delete",
        _delete,
        "Delete an endpoint. Its backends are kept.",
        "  shoal endpoints delete classify\n",
    )
    _add_endpoint(delete)


def add_traffic_arguments(parser: ArgumentParser) -> None:
    commands = add_family(parser, _TRAFFIC, _TRAFFIC_EXAMPLE)
    _add_show(
        add_verb(
            commands,
            "show",
            _show_traffic,
            "Show the share of each backend, by endpoint.",
            "  shoal traffic show\n  shoal traffic show classify --json\n",
        )
    )
    set_traffic = add_verb(
        commands,
        "set",
        _set_traffic,
        f"{_TRAFFIC} The shares must sum to 1, or to 100%.",
        _TRAFFIC_EXAMPLE,
    )
    _add_endpoint(set_traffic)
    add(
        set_traffic,
        "weights BACKEND=WEIGHT",
        "a backend's share, from 0 to 1, or a percentage; numbers that sum to 100 are percentages",
        nargs="+",
    )


def add_shadow_arguments(parser: ArgumentParser) -> None:
    commands = add_family(parser, _SHADOW, _SHADOW_EXAMPLE)
    _add_show(
        add_verb(
            commands,
            "show",
            _show_shadows,
            "Show how many copies were sent, dropped, failed and compared.",
            "  shoal shadow show\n  shoal shadow show classify --json\n",
        )
    )
    set_shadow = add_verb(commands, "set", _set_shadow, _SHADOW, _SHADOW_EXAMPLE)
    _add_endpoint(set_shadow)
    add(set_shadow, "backend BACKEND", "the backend that gets the copies")
    add(set_shadow, "proportion PROPORTION", "the share, from 0 to 1 or like 5%%; 0 stops")
    add(
        set_shadow,
        "--compare MODULE:FUNCTION",
        "a function that returns whether two results agree; its verdicts are counted",
    )


def _add_endpoint(parser: ArgumentParser) -> None:
    add(parser, "endpoint ENDPOINT", "the endpoint's name")


def _add_show(parser: ArgumentParser) -> None:
    add(parser, "endpoint ENDPOINT", "the endpoint's name (all endpoints)", nargs="?")


def _list(arguments: Namespace) -> int:
    endpoints = ask(arguments, lambda client: client.status()).endpoints
    return show(arguments, json.loads(written(endpoints)), endpoints_listed(endpoints.values()))


def _create(arguments: Namespace) -> int:
    name: str = arguments.endpoint
    return change(
        arguments,
        lambda client: client.create_endpoint(
            name,
            backend=arguments.backend,
            route=arguments.route,
            methods=arguments.methods or DEFAULT_METHODS,
        ),
        f"created the endpoint {name}",
    )


def _delete(arguments: Namespace) -> int:
    name: str = arguments.endpoint
    return change(
        arguments, lambda client: client.delete_endpoint(name), f"deleted the endpoint {name}"
    )


def _shown(arguments: Namespace) -> Mapping[str, EndpointStatus]:
    name: str | None = arguments.endpoint
    endpoints = ask(arguments, lambda client: client.status()).endpoints
    if name is None:
        return endpoints
    if name not in endpoints:
        raise CommandError(not_there("endpoint", name, endpoints), 1)
    return {name: endpoints[name]}


def _show_traffic(arguments: Namespace) -> int:
    endpoints = _shown(arguments)
    data = {name: dict(one.traffic) for name, one in endpoints.items()}
    return show(arguments, data, traffic_listed(endpoints.values()))


def _show_shadows(arguments: Namespace) -> int:
    endpoints = _shown(arguments)
    data = {name: json.loads(written(one.shadows)) for name, one in endpoints.items()}
    return show(arguments, data, shadows_listed(endpoints.values()))


def _set_traffic(arguments: Namespace) -> int:
    name: str = arguments.endpoint
    if "=" in name:
        raise CommandError(
            f"name the endpoint first: shoal traffic set ENDPOINT {name} "
            f"{' '.join(arguments.weights)}"
        )
    shares = weights_of(arguments.weights)
    done = f"traffic of {name}: {weights(shares)}"
    return change(arguments, lambda client: client.set_traffic(name, shares), done)


def _set_shadow(arguments: Namespace) -> int:
    name, backend = arguments.endpoint, arguments.backend
    proportion = proportion_of(arguments.proportion)
    done = f"shadow traffic of {name}: {weights({backend: proportion})}"
    return change(
        arguments,
        lambda client: client.shadow_traffic(name, backend, proportion, compare=arguments.compare),
        done if proportion else f"no shadow traffic of {name} to {backend}",
    )
