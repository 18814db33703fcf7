"""The ``shoal`` command: imports an application, serves it, and ends it well; and plans.

Signals are handled by plain handlers, not in the event loop, because the second one must work when
the loop does not: an application may block it, or a thread that can't be interrupted may hold it
open. For the same reason a watchdog thread stands by, which ends the process when a drain overruns
its time. It waits on a `queue.SimpleQueue`, whose `put` is made to be called from wherever a signal
handler interrupts.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

import trio

from shoal.http.containment import contained
from shoal.http.loading import NotAnApplication, load_application
from shoal.planning import simulate_command, tune_command
from shoal.planning.mistake import Mistake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from shoal.http.server import Drained, ServerConfig

# What the process may take over its own ending, beyond what it was asked to wait for.
_MARGIN_S: Final = 3.0

_EXAMPLE: Final = """\
example:
  my_module.py holds   app = shoal.App()   and endpoints; then

  shoal serve my_module:app --port 8000

  The first SIGTERM or Ctrl-C lets what is under way finish, the second ends at once.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments, or None for the process's own.

    Returns:
        The exit code: 0 after a drain, or with a plan; 1 when serving failed, or no plan meets its
        target; 2 for a mistake in the command.
    """
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except Mistake as mistake:
        _say(f"shoal: {mistake}")
        return mistake.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shoal",
        description="Serve functions in batches, and plan how to.",
        allow_abbrev=False,
    )
    version = importlib.metadata.version("shoal")
    parser.add_argument("--version", action="version", version=f"shoal {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="serve an application over HTTP",
        description="Serve a shoal.App, or any other ASGI application, over HTTP.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    serve.set_defaults(run=_serve)
    serve.add_argument(
        "application",
        metavar="MODULE:ATTRIBUTE",
        help="where the application is, e.g. my_module:app",
    )
    serve.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    serve.add_argument(
        "--port", type=_port, default=8000, help="port to listen at, 0 for a free one (%(default)s)"
    )
    serve.add_argument(
        "--graceful-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=20.0,
        help="how long requests that are under way at shutdown may take (%(default)s)",
    )
    serve.add_argument(
        "--send-timeout",
        metavar="SECONDS",
        type=_positive_seconds,
        default=10.0,
        help="disconnect a client that takes longer over 256 KiB of its answer (%(default)s)",
    )
    serve.add_argument(
        "--max-connections",
        metavar="N",
        type=_count,
        default=1000,
        help="how many connections may be open at once; more wait (%(default)s)",
    )
    serve.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error", "critical"],
        default="info",
        help="what to log, to stderr (%(default)s)",
    )
    simulate_command.add_arguments(
        commands.add_parser(
            "simulate", help="say what options would do at some traffic", allow_abbrev=False
        )
    )
    tune_command.add_arguments(
        commands.add_parser(
            "tune", help="measure a handler, and find options for it", allow_abbrev=False
        )
    )
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"want a number from 0 to 65535, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"want a number from 1 on, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    # NaN fails this, too; an endless wait would make the watchdog useless.
    if not 0 <= seconds <= threading.TIMEOUT_MAX / 2:
        raise argparse.ArgumentTypeError(f"want seconds, e.g. 2.5, got {text!r}")
    return seconds


def _positive_seconds(text: str) -> float:
    seconds = _seconds(text)
    if seconds == 0:
        raise argparse.ArgumentTypeError("want more than 0 seconds")
    return seconds


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from shoal.http.server import ServerConfig
    except ModuleNotFoundError as error:
        raise Mistake(
            f"serving needs {error.name}, which is not here: pip install 'shoal[serve]'", 1
        ) from None
    try:
        app = load_application(arguments.application)
    except NotAnApplication as error:
        raise Mistake(str(error)) from None
    except Exception as error:
        traceback.print_exception(error)
        raise Mistake(f"importing {arguments.application} failed, see above", 1) from None
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    config = ServerConfig(
        host=arguments.host,
        port=arguments.port,
        graceful_timeout_s=arguments.graceful_timeout,
        send_timeout_s=arguments.send_timeout,
        max_connections=arguments.max_connections,
    )
    return trio.run(_run, app, config, arguments.application)


class _Signals:
    """The first signal asks for a drain, the second ends the process."""

    def __init__(self, allowed_s: float) -> None:
        self.shutdown = trio.Event()
        self.first: int | None = None
        self.allowed_s = allowed_s
        self._wake = trio.lowlevel.current_trio_token()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def listen(self) -> None:
        threading.Thread(target=self._watch, name="shoal-watchdog", daemon=True).start()
        # Not put back when the server has ended: a second signal must still be obeyed while the
        # interpreter waits for threads of the application's own.
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._received)

    def _received(self, signum: int, _frame: FrameType | None) -> None:
        if self.first is not None:
            os._exit(128 + signum)
        self.first = signum
        self._bell.put(None)
        try:
            self._wake.run_sync_soon(self.shutdown.set)
        except trio.RunFinishedError:
            os._exit(128 + signum)

    def _watch(self) -> None:
        self._bell.get()
        allowed_s = self.allowed_s
        time.sleep(allowed_s)  # what ends this wait, if all goes well, is the process's end
        _say(
            f"Shoal ended by force: still busy {allowed_s:g} s after the signal, with a thread that"
            " can't be interrupted or a blocked event loop"
        )
        os._exit(1)


async def _run(app: Any, config: ServerConfig, spec: str) -> int:
    from shoal.http.server import serve
    from shoal.http.server_lifespan import LifespanFailed

    signals = _Signals(allowed_s=_MARGIN_S)
    signals.listen()

    def started(url: str) -> None:
        signals.allowed_s = config.graceful_timeout_s + _MARGIN_S
        _say(f"Shoal serving {spec} on {url}")

    async def shutdown() -> None:
        await signals.shutdown.wait()
        begin_drain = getattr(app, "begin_drain", None)
        if callable(begin_drain):
            with contained("begin_drain failed"):
                begin_drain()

    try:
        drained = await serve(app, config, shutdown=shutdown, started=started)
    except LifespanFailed as failure:
        _say(failure.details.rstrip())
        raise Mistake(str(failure), 1) from None
    except OSError as error:
        raise Mistake(
            f"can't listen at {config.host} port {config.port}: {error.strerror or error}", 1
        ) from None
    return _report(drained, signals.first)


def _report(drained: Drained, signum: int | None) -> int:
    if not drained.started:
        _say("Shoal was stopped before it had started")
        return 128 + (signum or signal.SIGTERM)
    _say(
        f"Shoal drained in {drained.took_s:.1f} s:"
        f" {drained.finished} finished, {drained.cut} cut off"
    )
    if drained.failure is not None:
        _say(f"shoal: {drained.failure}")
        return 1
    return 0


def _say(line: str) -> None:
    # In one write, so that no other process's line comes between.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
