"""Finds the server of a command, runs a request on it, and reports errors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from shoal.commands.server.locations import ServerLocation
from shoal.commands.support.arguments import (
    add,
    add_json_argument,
    add_name_argument,
    add_token_argument,
    describe,
    token_of,
)
from shoal.commands.support.mistake import CommandError, as_mistakes, in_one_line, say
from shoal.commands.support.output import confirm
from shoal.errors import ShoalError
from shoal.failures.exceptions import ungrouped
from shoal.serving.clients.remote_client import RemoteClient

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Awaitable, Callable


T = TypeVar("T")

# How long a request may take before the terminal shows what it waits for.
_PATIENCE_S: Final = 1.0


def add_server_arguments(parser: ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    which = server.add_mutually_exclusive_group()
    add_name_argument(which)
    add(
        which,
        "--url URL",
        "the server's URL instead of its name: http://host:port or unix:/path/of.sock",
    )
    add_token_argument(server, "a file with the operator's token, for a server that requires one")
    add_json_argument(parser)


def add_verb(
    commands: Any,
    name: str,
    run: Callable[[Namespace], int],
    description: str,
    example: str,
    *named: tuple[str, str],
) -> ArgumentParser:
    """Adds a command; `named` are the forms and summaries of what it names, such as a backend."""
    parser: ArgumentParser = commands.add_parser(
        name, help=description.replace("%", "%%"), allow_abbrev=False
    )
    describe(parser, run, description, example)
    add_server_arguments(parser)
    for form, summary in named:
        add(parser, form, summary)
    return parser


def change(
    verb: Callable[[RemoteClient, Namespace], Awaitable[object]], done: str, waits_for: str = ""
) -> Callable[[Namespace], int]:
    """Returns a command that changes the server; its texts have names of its arguments."""

    def run(arguments: Namespace) -> int:
        waits = waits_for.format_map(vars(arguments)) or None
        ask(arguments, lambda client: verb(client, arguments), waits_for=waits)
        return confirm(arguments, done.format_map(vars(arguments)))

    return run


def ask(
    arguments: Namespace,
    verb: Callable[[RemoteClient], Awaitable[T]],
    *,
    waits_for: str | None = None,
) -> T:
    """Connects to the server and runs a request; shows `waits_for` on a terminal after a second."""
    url = arguments.url or ServerLocation.of(arguments.name).url()
    with as_mistakes():
        client = RemoteClient(url, token=token_of(arguments))
    try:
        return anyio.run(_asked, client, verb, waits_for, backend="trio")
    except CommandError:
        raise
    except ConnectionError as error:
        if _is_unreachable(error):
            raise _not_there(arguments, url) from None
        raise CommandError(in_one_line(error), 1) from None
    except (TypeError, ValueError) as error:
        # 2 for a mistake in the command, 1 if the state of the server does not allow it.
        raise CommandError(in_one_line(error), 1 if isinstance(error, ShoalError) else 2) from None
    except Exception as error:  # the user's code may raise anything
        raise CommandError(in_one_line(error), 1) from None


async def _asked(
    client: RemoteClient, verb: Callable[[RemoteClient], Awaitable[T]], waits_for: str | None
) -> T:
    try:
        async with ungrouped() as tasks:
            if waits_for is not None and sys.stderr.isatty():
                tasks.start_soon(_show_wait, waits_for)
            try:
                return await verb(client)
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await client.aclose()


async def _show_wait(waits_for: str) -> None:
    await anyio.sleep(_PATIENCE_S)
    say(f"waiting for {waits_for} ...")


def _is_unreachable(error: ConnectionError) -> bool:
    import httpx

    return isinstance(error.__cause__, (httpx.ConnectError, httpx.ConnectTimeout))


def _not_there(arguments: Namespace, url: str) -> CommandError:
    if arguments.url is not None:
        return CommandError(
            f"no server answers at {url}; start one with `shoal start`, or with "
            "`shoal serve my_module:app`",
            1,
        )
    flag = ServerLocation.of(arguments.name).flag
    return CommandError(
        f"no server named {arguments.name!r} runs here; start one with "
        f"`shoal start --detach{flag}`, or give its URL with --url",
        1,
    )
