"""``shoal top``: shows a running server in the terminal, as its dashboard does in a browser."""

from __future__ import annotations

import math
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.commands.server.client import add_server_arguments, ask
from shoal.commands.server.view import ServerView
from shoal.commands.support.mistake import CommandError
from shoal.commands.support.output import as_json, print_out
from shoal.commands.support.parser import describe
from shoal.errors import NotAllowed, ShoalError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from rich.console import Console

    from shoal.serving.clients.remote_client import RemoteClient

_DESCRIPTION: Final = """\
Show what a running server does, each second: throughput, latencies, batches and why they were
dispatched, queues, replicas, traffic and the last failures. Ctrl-C ends it. Where the output is no
terminal, it is printed once.
"""

_EXAMPLE: Final = """\
  shoal top
  shoal top --name canary --once
  shoal top --url https://models.example.com --token-file token
"""

_AGAIN_S: Final = 1.0
"""How long to wait before another attempt to reach a server that has gone."""

_PIPED_WIDTH: Final = 160


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the command's arguments."""
    describe(parser, _run, _DESCRIPTION, _EXAMPLE)
    parser.add_argument("--once", action="store_true", help="print it once, and end")
    add_server_arguments(parser)


def _run(arguments: Namespace) -> int:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        raise CommandError("`shoal top` needs 'rich': pip install 'shoal[top]'", 1) from None
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    source = arguments.url or arguments.name
    view = ServerView()
    is_live = console.is_terminal and not console.is_dumb_terminal
    if arguments.json or arguments.once or not is_live:
        ask(arguments, lambda client: _look_once(client, view))
        print_out(as_json(_as_data(view)) if arguments.json else _printed(view, source, console))
        return 0
    ask(arguments, lambda client: _Watch(client, view, source, console).run())
    return 0


async def _look_once(client: RemoteClient, view: ServerView) -> None:
    """Reads the feed until all is known."""
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
        raise CommandError("the server's feed is not that of this version", 1) from None


def _as_data(view: ServerView) -> dict[str, Any]:
    return {"now": dict(view.latest), **(view.state or {})}


def _printed(view: ServerView, source: str, console: Console) -> str:
    from rich.text import Text

    from shoal.commands.server.screen import screen

    plain = console.options.ascii_only
    shown = screen(view, source, Text("now"), width=console.width, plain=plain)
    with console.capture() as capture:
        console.print(shown)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(lines)


class _Watch:
    """Shows a server until the user ends it.

    Args:
        client: The server.
        view: What is known of it.
        source: Its name or its URL.
        console: The terminal.
    """

    def __init__(
        self, client: RemoteClient, view: ServerView, source: str, console: Console
    ) -> None:
        self._client = client
        self._view = view
        self._source = source
        self._console = console
        self._gone_at = math.inf
        self._size = console.size

    async def run(self) -> None:
        """Shows it.

        Raises:
            ConnectionError: The server could not be reached at first; later that is shown, and
                tried again.
            Exception: As every verb of a client.
        """
        from rich.live import Live

        failures: list[Exception] = []
        # What is shown begins with the first message, so that an error is an ordinary one.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_signalled, tasks.cancel_scope.cancel)
            try:
                async with self._client.watching() as messages:
                    await self._first(messages)
                with Live(
                    console=self._console,
                    screen=True,
                    auto_refresh=False,
                    redirect_stdout=False,
                    redirect_stderr=False,
                    vertical_overflow="crop",
                ) as live:
                    await self._show(lambda: live.update(self._drawn(), refresh=True))
            except Exception as error:  # raised outside the task group
                failures.append(error)
            tasks.cancel_scope.cancel()
        if failures:
            raise failures.pop()

    async def _first(self, messages: Any) -> None:
        async for message in messages:
            _take(self._view, message)
            return

    async def _show(self, draw: Callable[[], object]) -> None:
        while True:
            try:
                draw()
                async with self._client.watching() as messages:
                    async for message in messages:
                        is_new = _take(self._view, message) or self._gone_at < math.inf
                        self._gone_at = math.inf
                        if is_new or self._is_resized():
                            draw()
            except NotAllowed:
                raise
            except (OSError, ShoalError, RuntimeError):  # it restarts, or has too many viewers
                pass
            self._gone_at = min(self._gone_at, anyio.current_time())
            draw()
            await anyio.sleep(_AGAIN_S)

    def _is_resized(self) -> bool:
        before, self._size = self._size, self._console.size
        return before != self._size

    def _drawn(self) -> Any:
        from rich.text import Text

        from shoal.commands.server.screen import screen

        if self._gone_at == math.inf:
            status = Text("live", "green")
        else:
            gone_s = anyio.current_time() - self._gone_at
            status = Text(f"not reachable for {gone_s:.0f} s, trying again", "bold red")
        width, plain = self._console.width, self._console.options.ascii_only
        return screen(self._view, self._source, status, width=width, plain=plain)


async def _until_signalled(end: Callable[[], object]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            end()
            return
