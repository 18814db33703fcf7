"""``shoal endpoints``, ``traffic``, ``shadow`` and ``call``: the requests of a running server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from shoal.commands.server.client import add_server_arguments, add_verb, ask, change
from shoal.commands.support.arguments import (
    add,
    add_family,
    add_kwarg_argument,
    count,
    describe,
    more_than_0_seconds,
)
from shoal.commands.support.mistake import CommandError, in_one_line
from shoal.commands.support.output import (
    as_json,
    endpoints_listed,
    print_out,
    shadows_listed,
    show,
    traffic_listed,
    weights,
)
from shoal.commands.support.values import json_of, kwargs_of, proportion_of, weights_of
from shoal.errors import ShoalError
from shoal.replicas.code.endpoint_call import HANDLE_OPTIONS
from shoal.serving.clients.wire import written
from shoal.serving.names import DEFAULT_METHODS, not_there

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping

    from shoal.serving.clients.remote_client import RemoteClient
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


_CALL_EXAMPLE: Final = """\
  shoal call classify '"some text"'
  shoal call generate '{"prompt": "Once"}' --stream
  shoal call classify - --shard-key user-7 < item.json
"""


def add_call_arguments(parser: ArgumentParser) -> None:
    describe(
        parser,
        _call,
        "Call an endpoint of a running server and print the result as JSON.",
        _CALL_EXAMPLE,
    )
    add(parser, "endpoint ENDPOINT", "the endpoint")
    add(parser, "items JSON", "an argument of the call; - reads it from stdin", nargs="*")
    add_kwarg_argument(parser, "an argument by name; repeatable")
    add(parser, "--stream", "for a method that streams: print one result per line")
    add(parser, "--method-name NAME", "the method of the backend's code to call")
    add(parser, "--shard-key KEY", "calls with equal keys go to the same backend")
    add(
        parser, "--timeout SECONDS", "time limit of the call", more_than_0_seconds, dest="timeout_s"
    )
    add(parser, "--priority LEVEL", "from 1, the highest", count)
    add_server_arguments(parser)


def _call(arguments: Namespace) -> int:
    args = [json_of(text) for text in arguments.items]
    kwargs = kwargs_of(arguments)
    flags = vars(arguments)
    options = {name: flags[name] for name in HANDLE_OPTIONS if name in flags}

    async def call(client: RemoteClient) -> None:
        try:
            handle = (await client.get_handle(arguments.endpoint)).options(**options)
            if not arguments.stream:
                result = await handle.call(*args, **kwargs)
                is_text = isinstance(result, str) and not arguments.json
                print_out(result if is_text else as_json(result))
                return
            async with handle.stream(*args, **kwargs) as stream:
                async for result in stream:
                    print_out(json.dumps(result, ensure_ascii=False))
        except (ShoalError, ConnectionError, CommandError):
            raise
        except Exception as error:
            raise _call_error(error, is_stream=arguments.stream) from error

    ask(arguments, call, waits_for=f"{arguments.endpoint} to answer")
    return 0


def _call_error(error: Exception, *, is_stream: bool) -> CommandError:
    """Returns the error for an error of the user's code, with its class, and exit code 1."""
    message = in_one_line(error)
    what, advice, code = message.partition("; write ")
    if advice and "handle." in code:  # the advice is for a program, not for a command
        return CommandError(f"{what}; {'leave out' if is_stream else 'add'} --stream")
    return CommandError(f"{type(error).__name__}: {message}", 1)
