"""How a command finds the server that it drives, asks it for a verb, and tells of errors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import anyio

from shoal.commands.server.locations import ServerLocation
from shoal.commands.support.arguments import add_json_argument, add_name_argument
from shoal.commands.support.saying import in_one_line, say
from shoal.commands.support.tokens import add_token_argument, token_of
from shoal.errors import ShoalError
from shoal.planning.mistake import CommandError
from shoal.serving.clients.remote_client import connect

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Awaitable, Callable

    from shoal.serving.clients.remote_client import RemoteClient

T = TypeVar("T")

# So long does a verb take before its user is told what it waits for.
_PATIENCE_S: Final = 1.0


def add_server_arguments(parser: ArgumentParser) -> None:
    """Describes which server a command is for, and ``--json``."""
    server = parser.add_argument_group("server")
    which = server.add_mutually_exclusive_group()
    add_name_argument(which)
    which.add_argument(
        "--url",
        metavar="URL",
        help="the server's URL in place of its name: http://host:port or unix:/path/of.sock",
    )
    add_token_argument(server, "a file with the operator's token, for a server that asks for one")
    add_json_argument(parser)


def ask(
    arguments: Namespace,
    verb: Callable[[RemoteClient], Awaitable[T]],
    *,
    waits_for: str | None = None,
) -> T:
    """Asks the server for something.

    Args:
        arguments: What the command line said of the server.
        verb: What to do with a client of it.
        waits_for: What it may have to wait for, which is told on a terminal.

    Raises:
        Mistake: There is no such server, or it refused.
    """
    url = arguments.url or ServerLocation.of(arguments.name).url()
    try:
        client = connect(url, token=token_of(arguments))
    except (TypeError, ValueError) as error:
        raise CommandError(in_one_line(error)) from None
    except ModuleNotFoundError as error:
        raise CommandError(in_one_line(error), 1) from None
    try:
        return anyio.run(_asked, client, verb, waits_for, backend="trio")
    except CommandError:
        raise
    except ConnectionError as error:
        if _is_unreachable(error):
            raise _not_there(arguments, url) from None
        raise CommandError(in_one_line(error), 1) from None
    except (TypeError, ValueError) as error:
        # 2 where the command can't be right, 1 where the server's state is against it.
        raise CommandError(in_one_line(error), 1 if isinstance(error, ShoalError) else 2) from None
    except Exception as error:  # the user's code may raise whatever it likes
        raise CommandError(in_one_line(error), 1) from None


async def _asked(
    client: RemoteClient, verb: Callable[[RemoteClient], Awaitable[T]], waits_for: str | None
) -> T:
    failure: Exception | None = None
    result: Any = None
    try:
        async with anyio.create_task_group() as tasks:
            if waits_for is not None and sys.stderr.isatty():
                tasks.start_soon(_tell, waits_for)
            try:
                result = await verb(client)
            except Exception as error:  # to be raised outside of the group
                failure = error
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await client.aclose()
    if failure is not None:
        raise failure
    return cast("T", result)


async def _tell(waits_for: str) -> None:
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
    named = "" if arguments.name == "default" else f" --name {arguments.name}"
    return CommandError(
        f"no server named {arguments.name!r} runs here; start one with "
        f"`shoal start --detach{named}`, or say where it is with --url",
        1,
    )
