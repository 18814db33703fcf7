"""``shoal backends ...``, ``scale`` and ``status``: manage the backends of a running server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from shoal.commands.server.client import add_server_arguments, add_verb, ask
from shoal.commands.support.arguments import (
    add_family,
    add_init_arguments,
    count,
    describe,
)
from shoal.commands.support.output import (
    backends_listed,
    config_listed,
    confirm,
    show,
    status_listed,
)
from shoal.commands.support.values import config_of, init_arguments_of
from shoal.serving.clients.wire import config_shown, written

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_EXAMPLE: Final = """\
  shoal backends create small my_models:Classifier placement=process num_replicas=2
  shoal backends update small max_batch_size=64 batch_wait_timeout_s=0.005
  shoal backends scale small 4
  shoal backends list
"""
_STATUS_EXAMPLE: Final = """\
  shoal status
  shoal status --name canary --json
  shoal status --url https://models.example.com --token-file token
"""


def add_arguments(parser: ArgumentParser) -> None:
    commands = add_family(parser, "Manage the backends of a running server.", _EXAMPLE)
    add_verb(
        commands,
        "list",
        _list,
        summary="show the backends",
        description="Show the backends and their state.",
        example="  shoal backends list --json\n",
    )
    _add_create(commands)
    update = add_verb(
        commands,
        "update",
        _update,
        summary="change a backend's options",
        description="Change only the named options, without interrupting requests.",
        example="  shoal backends update small max_batch_size=64 user_config.threshold=0.5\n",
    )
    _add_tag(update)
    _add_options(update, "+")
    delete = add_verb(
        commands,
        "delete",
        _delete,
        summary="delete a backend that no endpoint uses",
        description="Delete a backend once its queued requests have finished.",
        example="  shoal backends delete old --force\n",
    )
    _add_tag(delete)
    delete.add_argument("--force", action="store_true", help="fail its queued requests instead")
    scale = add_verb(
        commands,
        "scale",
        scale_backend,
        summary="change a backend's number of replicas",
        description=_SCALE,
        example="  shoal backends scale small 4\n",
    )
    _add_scale(scale)
    restart = add_verb(
        commands,
        "restart",
        _restart,
        summary="replace a backend's replicas",
        description="Replace the replicas. The old ones drain when all new ones are ready.",
        example="  shoal backends restart small\n",
    )
    _add_tag(restart)
    config = add_verb(
        commands,
        "config",
        _config,
        summary="show a backend's options",
        description="Show the options that were set for a backend.",
        example="  shoal backends config small\n",
    )
    _add_tag(config)


def add_scale_arguments(parser: ArgumentParser) -> None:
    describe(parser, scale_backend, _SCALE, "  shoal scale small 4\n")
    _add_scale(parser)
    add_server_arguments(parser)


def add_status_arguments(parser: ArgumentParser) -> None:
    describe(
        parser,
        _status,
        "Show the backends, replicas and endpoints of a running server.",
        _STATUS_EXAMPLE,
    )
    add_server_arguments(parser)


_SCALE: Final = "Change a backend's number of replicas, and wait until that many are ready."


def _add_create(commands: Any) -> None:
    create = add_verb(
        commands,
        "create",
        _create,
        summary="create a backend",
        description="Create a backend and wait until one of its replicas is ready.",
        example=(
            "  shoal backends create small my_models:Classifier placement=process num_replicas=2\n"
            "  shoal backends create large my_models:Classifier autoscaling.max_replicas=8 \\\n"
            "    --arg large.onnx --kwarg threads=4\n"
            "\nThe server must allow the module: shoal start --allow-module my_models\n"
        ),
    )
    _add_tag(create)
    create.add_argument(
        "code",
        metavar="MODULE:NAME",
        help="a function or class in a module that the server allows",
    )
    _add_options(create, "*")
    add_init_arguments(create)


def _add_scale(parser: ArgumentParser) -> None:
    _add_tag(parser)
    parser.add_argument("num_replicas", type=count, metavar="N", help="the number of replicas")


def _add_tag(parser: ArgumentParser) -> None:
    parser.add_argument("tag", metavar="TAG", help="the backend's name")


def _add_options(parser: ArgumentParser, number: str) -> None:
    parser.add_argument(
        "options",
        nargs=number,
        default=[],  # without it "*" would be required
        metavar="KEY=VALUE",
        help="an option: placement=process (or task, thread, ray), num_replicas=2, "
        "max_batch_size=64, batch_wait_timeout_s=0.005, user_config.threshold=0.5, "
        "autoscaling.max_replicas=4, or any other of shoal.BackendConfig; NAME=none unsets one",
    )


def _list(arguments: Namespace) -> int:
    backends = ask(arguments, lambda client: client.status()).backends
    return show(arguments, json.loads(written(backends)), backends_listed(backends.values()))


def _create(arguments: Namespace) -> int:
    tag: str = arguments.tag
    config = config_of(arguments.options)
    init_args, init_kwargs = init_arguments_of(arguments)
    ask(
        arguments,
        lambda client: client.create_backend(
            tag, arguments.code, *init_args, config=config, init_kwargs=init_kwargs
        ),
        waits_for=f"a replica of {tag} to be ready",
    )
    return confirm(arguments, f"created the backend {tag}")


def _update(arguments: Namespace) -> int:
    tag: str = arguments.tag
    changes = config_of(arguments.options)
    ask(
        arguments,
        lambda client: client.update_backend_config(tag, changes),
        waits_for=f"the replicas of {tag} to apply the change",
    )
    return confirm(arguments, f"updated the backend {tag}")


def _delete(arguments: Namespace) -> int:
    tag: str = arguments.tag
    ask(
        arguments,
        lambda client: client.delete_backend(tag, force=arguments.force),
        waits_for=f"the queued requests of {tag}",
    )
    return confirm(arguments, f"deleted the backend {tag}")


def scale_backend(arguments: Namespace) -> int:
    tag: str = arguments.tag
    ask(
        arguments,
        lambda client: client.scale_backend(tag, arguments.num_replicas),
        waits_for=f"{tag} to have {arguments.num_replicas} replicas",
    )
    return confirm(arguments, f"scaled the backend {tag} to {arguments.num_replicas}")


def _restart(arguments: Namespace) -> int:
    tag: str = arguments.tag
    ask(
        arguments,
        lambda client: client.restart_backend(tag),
        waits_for=f"the replicas of {tag} to be replaced",
    )
    return confirm(arguments, f"restarted the backend {tag}")


def _config(arguments: Namespace) -> int:
    config = config_shown(ask(arguments, lambda client: client.get_backend_config(arguments.tag)))
    return show(arguments, config, config_listed(config))


def _status(arguments: Namespace) -> int:
    status = ask(arguments, lambda client: client.status())
    return show(arguments, json.loads(written(status)), status_listed(status))
