"""``shoal top``: shows a running server in the terminal, as its dashboard does in a browser."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.commands.server.client import add_server_arguments, ask
from shoal.commands.server.screen import ServerView
from shoal.commands.support.arguments import describe
from shoal.commands.support.mistake import CommandError
from shoal.commands.support.output import as_json, print_out
from shoal.core.extras import needing
from shoal.errors import NotAllowed, ShutDown
from shoal.failures.exceptions import ungrouped

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from shoal.commands.server.screen import Screen
    from shoal.serving.clients.remote_client import RemoteClient

_DESCRIPTION: Final = """\
Show a running server, each second: throughput, latencies, batches and their dispatch reasons,
queues, replicas, traffic and the last failures. Press Ctrl-C to stop. If the output is not a
terminal, print it once.
"""

_EXAMPLE: Final = """\
  shoal top
  shoal top --name canary --once
  shoal top --url https://models.example.com --token-file token
"""

_log: Final = logging.getLogger("shoal.commands")
# How long to wait before the next attempt to reach a server.
_AGAIN_S: Final = 1.0


def add_arguments(parser: ArgumentParser) -> None:
    describe(parser, _run, _DESCRIPTION, _EXAMPLE)
    parser.add_argument("--once", action="store_true", help="print it once, and end")
    add_server_arguments(parser)


def _run(arguments: Namespace) -> int:
    try:
        with needing("`shoal top`", "client,top"):
            from shoal.commands.server.screen import Screen
    except ModuleNotFoundError as error:
        raise CommandError(str(error), 1) from None
    screen = Screen(arguments.url or arguments.name)
    view = ServerView()
    if arguments.json or arguments.once or not screen.is_live:
        ask(arguments, lambda client: _look_once(client, view))
        print_out(as_json(_as_data(view)) if arguments.json else screen.printed(view))
        return 0
    ask(arguments, lambda client: _Watch(client, view, screen).run())
    return 0


async def _look_once(client: RemoteClient, view: ServerView) -> None:
    """Reads the feed until all figures are known."""
    async with client.watching() as messages:
        async for message in messages:
            _take(view, message)
            if view.is_complete:
                return
    raise CommandError("the server has ended", 1)


def _take(view: ServerView, message: dict[str, Any]) -> bool:
    try:
        return view.take(message)
    except (LookupError, TypeError):
        raise CommandError("the server's feed has the form of another version", 1) from None


def _as_data(view: ServerView) -> dict[str, Any]:
    return {"now": dict(view.latest), **(view.state or {})}


class _Watch:
    def __init__(self, client: RemoteClient, view: ServerView, screen: Screen) -> None:
        self._client = client
        self._view = view
        self._screen = screen
        self._gone_at: float | None = None

    async def run(self) -> None:
        """Shows the server; an error before its first message is raised, later ones are shown."""
        async with ungrouped() as tasks:
            tasks.start_soon(_until_signalled, tasks.cancel_scope.cancel)
            try:
                # The screen opens with the first message; an earlier error ends the command.
                async with self._client.watching() as messages:
                    async for message in messages:
                        _take(self._view, message)
                        break
                with self._screen:
                    await self._show()
            finally:
                tasks.cancel_scope.cancel()

    async def _show(self) -> None:
        while True:
            self._draw()
            # A server that restarts refuses connections, breaks them, or is not open yet.
            try:
                async with self._client.watching() as messages:
                    async for message in messages:
                        self._show_message(message)
            except NotAllowed:
                raise
            except (OSError, ShutDown, RuntimeError) as error:
                _log.debug("not reachable: %s", error)
            if self._gone_at is None:
                self._gone_at = anyio.current_time()
            self._draw()
            await anyio.sleep(_AGAIN_S)

    def _show_message(self, message: dict[str, Any]) -> None:
        is_new = _take(self._view, message) or self._gone_at is not None
        self._gone_at = None
        if self._screen.is_resized() or is_new:
            self._draw()

    def _draw(self) -> None:
        gone_at = self._gone_at
        self._screen.draw(self._view, None if gone_at is None else anyio.current_time() - gone_at)


async def _until_signalled(end: Callable[[], object]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            end()
            return
