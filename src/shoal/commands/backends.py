"""``shoal backends ...``, ``scale`` and ``status``: manage the backends of a running server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from shoal.commands.server.client import add_server_arguments, add_verb, ask, change
from shoal.commands.support.arguments import add, add_family, add_init_arguments, count, describe
from shoal.commands.support.output import backends_listed, config_listed, show, status_listed
from shoal.commands.support.values import config_of, init_arguments_of
from shoal.serving.clients.wire import config_shown, written

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

_EXAMPLE: Final = """\
  shoal backends create small my_models:Classifier placement=process num_replicas=2
  shoal backends update small max_batch_size=64 batch_wait_timeout_s=0.005
  shoal backends scale small 4
  shoal backends list
"""
_CREATE_EXAMPLE: Final = """\
  shoal backends create small my_models:Classifier placement=process num_replicas=2
  shoal backends create large my_models:Classifier autoscaling.max_replicas=8 \\
    --arg large.onnx --kwarg threads=4

The server must allow the module: shoal start --allow-module my_models
"""
_STATUS_EXAMPLE: Final = """\
  shoal status
  shoal status --name canary --json
  shoal status --url https://models.example.com --token-file token
"""
_SCALE: Final = "Change a backend's number of replicas, and wait until that many are ready."
_SCALE_EXAMPLE: Final = "  shoal scale small 4\n"
_STATUS: Final = "Show the backends, replicas and endpoints of a running server."


def add_arguments(parser: ArgumentParser) -> None:
    commands = add_family(parser, "Manage the backends of a running server.", _EXAMPLE)
    add_verb(commands, "list", _list, "Show the backends and their state.", _EXAMPLE)
    create = _add_verb_of_one(
        commands,
        "create",
        _create,
        "Create a backend and wait until one of its replicas is ready.",
        _CREATE_EXAMPLE,
    )
    add(create, "code MODULE:NAME", "a function or class in a module that the server allows")
    _add_options(create, "*")
    add_init_arguments(create)
    update = _add_verb_of_one(
        commands,
        "update",
        _update,
        "Change only the named options, without interrupting requests.",
        "  shoal backends update small max_batch_size=64 user_config.threshold=0.5\n",
    )
    _add_options(update, "+")
    delete = _add_verb_of_one(
        commands,
        "delete",
        _delete,
        "Delete a backend once its queued requests have finished.",
        "  shoal backends delete old --force\n",
    )
    add(delete, "--force", "fail its queued requests instead")
    scale = add_verb(commands, "scale", _scale, _SCALE, _SCALE_EXAMPLE)
    _add_scale(scale)
    _add_verb_of_one(
        commands,
        "restart",
        _restart,
        "Replace the replicas. The old ones drain when all new ones are ready.",
        "  shoal backends restart small\n",
    )
    _add_verb_of_one(
        commands,
        "config",
        _config,
        "Show the options that were set for a backend.",
        "  shoal backends config small\n",
    )


def add_scale_arguments(parser: ArgumentParser) -> None:
    describe(parser, _scale, _SCALE, _SCALE_EXAMPLE)
    _add_scale(parser)
    add_server_arguments(parser)


def add_status_arguments(parser: ArgumentParser) -> None:
    describe(parser, _status, _STATUS, _STATUS_EXAMPLE)
    add_server_arguments(parser)


def _add_verb_of_one(
    commands: Any, name: str, run: Callable[[Namespace], int], description: str, example: str
) -> ArgumentParser:
    parser = add_verb(commands, name, run, description, example)
    _add_tag(parser)
    return parser


def _add_scale(parser: ArgumentParser) -> None:
    _add_tag(parser)
    add(parser, "num_replicas N", "the number of replicas", count)


def _add_tag(parser: ArgumentParser) -> None:
    add(parser, "tag TAG", "the backend's name")


def _add_options(parser: ArgumentParser, number: str) -> None:
    add(
        parser,
        "options KEY=VALUE",
        "an option: placement=process (or task, thread, ray), num_replicas=2, "
        "max_batch_size=64, batch_wait_timeout_s=0.005, user_config.threshold=0.5, "
        "autoscaling.max_replicas=4, or any other of shoal.BackendConfig; NAME=none unsets one",
        nargs=number,
    )


def _list(arguments: Namespace) -> int:
    backends = ask(arguments, lambda client: client.status()).backends
    return show(arguments, json.loads(written(backends)), backends_listed(backends.values()))


def _create(arguments: Namespace) -> int:
    tag: str = arguments.tag
    config = config_of(arguments.options)
    init_args, init_kwargs = init_arguments_of(arguments)
    return change(
        arguments,
        lambda client: client.create_backend(
            tag, arguments.code, *init_args, config=config, init_kwargs=init_kwargs
        ),
        f"created the backend {tag}",
        waits_for=f"a replica of {tag} to be ready",
    )


def _update(arguments: Namespace) -> int:
    tag: str = arguments.tag
    changes = config_of(arguments.options)
    return change(
        arguments,
        lambda client: client.update_backend_config(tag, changes),
        f"updated the backend {tag}",
        waits_for=f"the replicas of {tag} to apply the change",
    )


def _delete(arguments: Namespace) -> int:
    tag: str = arguments.tag
    return change(
        arguments,
        lambda client: client.delete_backend(tag, force=arguments.force),
        f"deleted the backend {tag}",
        waits_for=f"the queued requests of {tag}",
    )


def _scale(arguments: Namespace) -> int:
    tag: str = arguments.tag
    return change(
        arguments,
        lambda client: client.scale_backend(tag, arguments.num_replicas),
        f"scaled the backend {tag} to {arguments.num_replicas}",
        waits_for=f"{tag} to have {arguments.num_replicas} replicas",
    )


def _restart(arguments: Namespace) -> int:
    tag: str = arguments.tag
    return change(
        arguments,
        lambda client: client.restart_backend(tag),
        f"restarted the backend {tag}",
        waits_for=f"the replicas of {tag} to be replaced",
    )


def _config(arguments: Namespace) -> int:
    config = config_shown(ask(arguments, lambda client: client.get_backend_config(arguments.tag)))
    return show(arguments, config, config_listed(config))


def _status(arguments: Namespace) -> int:
    status = ask(arguments, lambda client: client.status())
    return show(arguments, json.loads(written(status)), status_listed(status))
