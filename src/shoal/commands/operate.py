"""The commands for a running server: its backends, endpoints, traffic, shadows, and calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from shoal.commands.server.client import add_family, add_server_arguments, ask, change
from shoal.commands.support.arguments import (
    add,
    add_init_arguments,
    add_kwarg_argument,
    count,
    describe,
    more_than_0_seconds,
)
from shoal.commands.support.output import (
    CommandError,
    as_json,
    backends_listed,
    config_listed,
    confirm,
    endpoints_listed,
    in_one_line,
    print_out,
    shadows_listed,
    show,
    status_listed,
    weights,
)
from shoal.commands.support.values import (
    config_of,
    init_arguments_of,
    json_of,
    proportion_of,
    weights_of,
)
from shoal.errors import ShoalError
from shoal.replicas.code.endpoint_call import HANDLE_OPTIONS
from shoal.serving.clients.wire import config_shown, written
from shoal.serving.names import DEFAULT_METHODS, found

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Awaitable, Mapping

    from shoal.serving.clients.remote_client import RemoteClient
    from shoal.status import EndpointStatus


_BACKENDS_EXAMPLE: Final = """\
  shoal backends create small my_models:Classifier placement=process num_replicas=2
  shoal backends create large my_models:Classifier autoscaling.max_replicas=8 \\
    --arg large.onnx --kwarg threads=4
  shoal backends update small max_batch_size=64 user_config.threshold=0.5
  shoal backends scale small 4
  shoal backends delete large --force

The server must allow the module: shoal start --allow-module my_models
"""
_STATUS_EXAMPLE: Final = """\
  shoal status --name canary --json
  shoal status --url https://models.example.com --token-file token
"""
_SCALE: Final = "Change a backend's number of replicas, and wait until that many are ready."
_SCALE_EXAMPLE: Final = "  shoal scale small 4\n"
_TAG: Final = ("tag TAG", "the backend's name")
_NUMBER: Final = ("num_replicas N", "the number of replicas", count)
_OPTIONS: Final = (
    "options KEY=VALUE",
    (
        "an option of shoal.BackendConfig, like placement=process, max_batch_size=64 or "
        "autoscaling.max_replicas=4; NAME=none unsets one"
    ),
)
_STATUS: Final = "Show the backends, replicas and endpoints of a running server."


def add_backend_arguments(parser: ArgumentParser) -> None:
    verb = add_family(parser, "Manage the backends of a running server.", _BACKENDS_EXAMPLE)
    verb("list", _list, "Show the backends and their state.")
    create = verb(
        "create",
        change(_create, "created the backend {tag}"),
        "Create a backend and wait until one of its replicas is ready.",
        _TAG,
        ("code MODULE:NAME", "a function or class in a module that the server allows"),
    )
    add(create, *_OPTIONS, nargs="*")
    add_init_arguments(create)
    update = verb(
        "update",
        change(_update, "updated the backend {tag}"),
        "Change only the named options, without interrupting requests.",
        _TAG,
    )
    add(update, *_OPTIONS, nargs="+")
    delete = verb(
        "delete",
        change(_delete, "deleted the backend {tag}"),
        "Delete a backend once its queued requests have finished.",
        _TAG,
    )
    add(delete, "--force", "fail its queued requests instead")
    add(verb("scale", _scale, _SCALE, _TAG), *_NUMBER)
    verb(
        "restart",
        change(_restart, "restarted the backend {tag}"),
        "Replace the replicas. The old ones drain when all new ones are ready.",
        _TAG,
    )
    verb("config", _config, "Show the options that were set for a backend.", _TAG)


def add_scale_arguments(parser: ArgumentParser) -> None:
    describe(parser, _scale, _SCALE, _SCALE_EXAMPLE)
    add(parser, *_TAG)
    add(parser, *_NUMBER)
    add_server_arguments(parser)


def add_status_arguments(parser: ArgumentParser) -> None:
    describe(parser, _status, _STATUS, _STATUS_EXAMPLE)
    add_server_arguments(parser)


def _list(arguments: Namespace) -> int:
    backends = ask(arguments, lambda client: client.status()).backends
    return show(arguments, json.loads(written(backends)), backends_listed(backends.values()))


def _create(client: RemoteClient, given: Namespace) -> Awaitable[object]:
    args, kwargs = init_arguments_of(given)
    config = config_of(given.options)
    return client.create_backend(given.tag, given.code, *args, config=config, init_kwargs=kwargs)


def _update(client: RemoteClient, given: Namespace) -> Awaitable[object]:
    return client.update_backend_config(given.tag, config_of(given.options))


def _delete(client: RemoteClient, given: Namespace) -> Awaitable[object]:
    return client.delete_backend(given.tag, force=given.force)


def _restart(client: RemoteClient, given: Namespace) -> Awaitable[object]:
    return client.restart_backend(given.tag)


_scale = change(
    lambda client, given: client.scale_backend(given.tag, given.num_replicas),
    "scaled the backend {tag} to {num_replicas}",
)


def _config(arguments: Namespace) -> int:
    config = config_shown(ask(arguments, lambda client: client.get_backend_config(arguments.tag)))
    return show(arguments, config, config_listed(config))


def _status(arguments: Namespace) -> int:
    status = ask(arguments, lambda client: client.status())
    return show(arguments, json.loads(written(status)), status_listed(status))


_ENDPOINTS_EXAMPLE: Final = """\
  shoal endpoints create classify --route /classify --method POST --backend small
  shoal endpoints list
  shoal endpoints delete classify
"""
_TRAFFIC_EXAMPLE: Final = """\
  shoal traffic set classify small=0.9 large=0.1
  shoal traffic set classify small=90% large=10%
"""
_SHADOW_EXAMPLE: Final = """\
  shoal shadow show classify --json
  shoal shadow set classify large 10% --compare my_models:alike
  shoal shadow set classify large 0
"""
_NAME: Final = ("endpoint ENDPOINT", "the endpoint's name")
_ANY_NAME: Final = ("endpoint ENDPOINT", "the endpoint's name (all endpoints)")
_TRAFFIC: Final = "Divide an endpoint's requests among backends."
_SHADOW: Final = "Copy a share of an endpoint's requests to a backend, and discard its results."


def add_endpoint_arguments(parser: ArgumentParser) -> None:
    verb = add_family(parser, "Manage the endpoints of a running server.", _ENDPOINTS_EXAMPLE)
    verb("list", _list_endpoints, "Show the endpoints and their traffic.")
    create = verb(
        "create",
        change(_create_endpoint, "created the endpoint {endpoint}"),
        "Create an endpoint. Without --backend, it holds its requests until its traffic is set.",
        _NAME,
    )
    add(create, "--backend TAG", "the backend for all its requests")
    add(create, "--route PATH", "its HTTP path (none: no HTTP route)")
    method = f"an HTTP method that it accepts; repeatable ({' and '.join(DEFAULT_METHODS)})"
    add(create, "--method METHOD", method, action="append", dest="methods")
    verb(
        "delete",
        change(_delete_endpoint, "deleted the endpoint {endpoint}"),
        "Delete an endpoint. Its backends are kept.",
        _NAME,
    )


def add_traffic_arguments(parser: ArgumentParser) -> None:
    verb = add_family(parser, _TRAFFIC, _TRAFFIC_EXAMPLE)
    about = f"{_TRAFFIC} The shares must sum to 1, or to 100%."
    set_traffic = verb("set", _set_traffic, about, _NAME)
    share = "a backend's share, from 0 to 1 or like 5%%; numbers that sum to 100 are percentages"
    add(set_traffic, "weights BACKEND=WEIGHT", share, nargs="+")


def add_shadow_arguments(parser: ArgumentParser) -> None:
    verb = add_family(parser, _SHADOW, _SHADOW_EXAMPLE)
    about = "Show how many copies were sent, dropped, failed and compared."
    add(verb("show", _show_shadows, about), *_ANY_NAME, nargs="?")
    verb(
        "set",
        _set_shadow,
        _SHADOW,
        _NAME,
        ("backend BACKEND", "the backend that gets the copies"),
        ("proportion PROPORTION", "the share, from 0 to 1 or like 5%%; 0 stops"),
        ("--compare MODULE:FUNCTION", "a function that returns whether two results agree"),
    )


def _list_endpoints(arguments: Namespace) -> int:
    endpoints = ask(arguments, lambda client: client.status()).endpoints
    return show(arguments, json.loads(written(endpoints)), endpoints_listed(endpoints.values()))


def _create_endpoint(client: RemoteClient, given: Namespace) -> Awaitable[object]:
    methods = given.methods or DEFAULT_METHODS
    return client.create_endpoint(
        given.endpoint, backend=given.backend, route=given.route, methods=methods
    )


def _delete_endpoint(client: RemoteClient, given: Namespace) -> Awaitable[object]:
    return client.delete_endpoint(given.endpoint)


def _show_shadows(arguments: Namespace) -> int:
    name: str | None = arguments.endpoint

    async def shown(client: RemoteClient) -> Mapping[str, EndpointStatus]:
        endpoints = (await client.status()).endpoints
        return endpoints if name is None else {name: found("endpoint", name, endpoints)}

    endpoints = ask(arguments, shown)
    data = {name: json.loads(written(one.shadows)) for name, one in endpoints.items()}
    return show(arguments, data, shadows_listed(endpoints.values()))


def _set_traffic(arguments: Namespace) -> int:
    name: str = arguments.endpoint
    shares = weights_of(arguments.weights)
    ask(arguments, lambda client: client.set_traffic(name, shares))
    return confirm(arguments, f"traffic of {name}: {weights(shares)}")


def _set_shadow(arguments: Namespace) -> int:
    name, backend = arguments.endpoint, arguments.backend
    proportion = proportion_of(arguments.proportion)
    done = f"no shadow traffic of {name} to {backend}"
    if proportion:
        done = f"shadow traffic of {name}: {weights({backend: proportion})}"
    compare = arguments.compare
    ask(arguments, lambda one: one.shadow_traffic(name, backend, proportion, compare=compare))
    return confirm(arguments, done)


_CALL_EXAMPLE: Final = """\
  shoal call classify '"some text"'
  shoal call generate '{"prompt": "Once"}' --stream
  shoal call classify - --shard-key user-7 < item.json
"""


def add_call_arguments(parser: ArgumentParser) -> None:
    about = "Call an endpoint of a running server and print the result as JSON."
    describe(parser, _call, about, _CALL_EXAMPLE)
    add(parser, "endpoint ENDPOINT", "the endpoint")
    add(parser, "items JSON", "an argument of the call; - reads it from stdin", nargs="*")
    add_kwarg_argument(parser, "an argument by name; repeatable")
    add(parser, "--stream", "for a method that streams: print one result per line")
    add(parser, "--method-name NAME", "the method of the backend's code to call")
    add(parser, "--shard-key KEY", "calls with equal keys go to the same backend")
    limit = "time limit of the call"
    add(parser, "--timeout SECONDS", limit, more_than_0_seconds, dest="timeout_s")
    add(parser, "--priority LEVEL", "from 1, the highest", count)
    add_server_arguments(parser)


def _call(arguments: Namespace) -> int:
    args = [json_of(text) for text in arguments.items]
    kwargs = config_of(arguments.kwarg)
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

    ask(arguments, call)
    return 0


def _call_error(error: Exception, *, is_stream: bool) -> CommandError:
    """Returns the error for an error of the user's code, with its class, and exit code 1."""
    message = in_one_line(error)
    what, advice, code = message.partition("; write ")
    if advice and "handle." in code:  # the advice is for a program, not for a command
        return CommandError(f"{what}; {'leave out' if is_stream else 'add'} --stream")
    return CommandError(f"{type(error).__name__}: {message}", 1)
