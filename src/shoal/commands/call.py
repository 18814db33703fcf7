"""``shoal call``: calls an endpoint, with or without a route."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from shoal.commands.server.client import add_server_arguments, ask
from shoal.commands.support.arguments import (
    add,
    add_kwarg_argument,
    count,
    describe,
    more_than_0_seconds,
)
from shoal.commands.support.mistake import CommandError, in_one_line
from shoal.commands.support.output import as_json, print_out
from shoal.commands.support.values import json_of, kwargs_of
from shoal.errors import ShoalError
from shoal.replicas.code.endpoint_call import HANDLE_OPTIONS

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from shoal.serving.clients.remote_client import RemoteClient

_EXAMPLE: Final = """\
  shoal call classify '"some text"'
  shoal call generate '{"prompt": "Once"}' --stream
  shoal call classify - --shard-key user-7 < item.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    describe(
        parser,
        _call,
        "Call an endpoint of a running server and print the result as JSON.",
        _EXAMPLE,
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
            raise _named(error, is_stream=arguments.stream) from error

    ask(arguments, call, waits_for=f"{arguments.endpoint} to answer")
    return 0


def _named(error: Exception, *, is_stream: bool) -> CommandError:
    """Returns the error for an error of the user's code, with its class, and exit code 1."""
    message = in_one_line(error)
    what, advice, code = message.partition("; write ")
    if advice and "handle." in code:  # the advice is for a program, not for a command
        return CommandError(f"{what}; {'leave out' if is_stream else 'add'} --stream")
    return CommandError(f"{type(error).__name__}: {message}", 1)
