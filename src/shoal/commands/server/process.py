"""The process of a server: serves an application until it is shut down."""

from __future__ import annotations

import gc
import logging
import os
import queue
import signal
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.commands.server.stderr import Progress, configure_logging
from shoal.commands.support.loading import shoal_app_in
from shoal.commands.support.output import CommandError, as_mistakes, say
from shoal.core.extras import needing
from shoal.errors import LifespanFailed, NotAllowed, StateRefused
from shoal.failures.exceptions import first_of
from shoal.failures.hints import server_hint
from shoal.loops.event_loop import EventLoop
from shoal.replicas.code.definition import keeping_loggers_on
from shoal.server.listeners import (
    NO_SOCKETS,
    Address,
    AppAddress,
    PassedSockets,
    Unix,
    bind_for_servers,
)
from shoal.server.log_errors import contained
from shoal.server.run import WorkersFailed
from shoal.serving.model_server import model_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
    from pathlib import Path
    from types import FrameType

    from starlette.types import ASGIApp

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.app.app import App
    from shoal.server.run import Drained, StartFrontEnds
    from shoal.serving.app_file.server import EventLoopName, Server
    from shoal.serving.model_server.listener import ModelServerListener


_COLLECTED_AFTER: Final = gc.get_threshold()
# How long the process may take to end, beyond the graceful timeout.
_MARGIN_S: Final = 4.0
# How long the process may take to end before it reports that it is ending.
_QUIET_S: Final = 2.0
_NOTIFY_TIMEOUT_S: Final = 1.0
_LAST_EXPORT_S: Final = 3.0
# The program of a worker.
WORKER: Final = "shoal.commands.server.front_end"
_log: Final = logging.getLogger("shoal.server")


@dataclass(frozen=True, kw_only=True)
class ServerProcess:
    app: ASGIApp
    spec: str  # the user's name for the application, for messages
    options: HttpOptions
    event_loop: EventLoopName = "trio"
    server: Server = "shoal"
    log_level: str = "info"
    log_format: str = "text"
    otel: bool = False
    state: Path | None = None  # the file that stores run-time changes
    on_listening: Callable[[str], object] = lambda _: None  # called with the URL
    wait_over: Callable[[], Awaitable[object]] = anyio.sleep_forever  # then the server drains
    passed: PassedSockets = NO_SOCKETS  # `options` has the first socket of the application
    workers: int | None = None  # processes that speak HTTP; None to do it here
    answers_early: bool = True  # a `shoal.App` reports that it is not ready while it starts

    @property
    def shoal_app(self) -> App | None:
        """The `shoal.App` in the application, which has a controller; None without one."""
        return shoal_app_in(self.app)

    def run(self) -> int:
        """Serves until a signal or the operator ends the process; returns the exit code."""
        options, app = self.options, self.shoal_app
        need_one = {
            "--state": self.state,
            "--admin-socket": options.admin_socket,
            "--token-file": options.token,
            "--model-server": options.model_server,
            "--otel": self.otel,
            "the socket named admin from systemd": self.passed.admin,
        }
        if app is None and any(need_one.values()):
            named = ", ".join(name for name, given in need_one.items() if given)
            raise CommandError(
                f"{self.spec} is not a shoal.App; leave out {named}, for which it must be one"
            )
        if self.workers is not None and len(self.passed.public) > 1:
            raise CommandError(
                f"there are {len(self.passed.public)} sockets for the application, and --workers "
                "serves one: pass one, or name one address, or leave --workers out"
            )
        configure_logging(self.log_level, self.log_format, options)
        with nullcontext() if app is None or not self.otel else _exported(app):
            if self.state is not None and app is not None:
                _open_state(app, self.state, options)
            return run_in(self.event_loop, partial(_serve, self))


def run_in(event_loop: EventLoopName, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    if event_loop == "trio":
        return anyio.run(main, backend="trio")
    # anyio's runner would mark the context of all tasks and of the threads that copy it, so that
    # code in a thread could not run a loop of its own.
    import asyncio

    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ModuleNotFoundError):
        import uvloop

        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main())


def _open_state(app: App, path: Path, options: HttpOptions) -> None:
    from shoal.serving.state_file import StateFile

    try:
        app.state = StateFile.open(path)
    except StateRefused as error:
        raise CommandError(str(error), 1) from None
    app.allowed_modules = options.allowed_modules


async def _serve(run: ServerProcess) -> int:
    signals = Signals()
    signals.listen()
    try:
        async with model_server(run.options, bind_for_servers) as served:
            drained = await _serve_until_drained(run, signals, served)
    except LifespanFailed as failure:
        if above := failure.details.rstrip().rpartition("\n")[0]:  # the last line is in the message
            say(above)
        if (hint := server_hint(failure.details)) is not None:
            say(f"shoal: {hint}")
        raise CommandError(str(failure), 1) from None
    except (WorkersFailed, NotAllowed) as error:
        raise CommandError(str(error), 1) from None
    except OSError as error:
        raise CommandError(cant_listen(run.options, error), 1) from None
    return _report(drained, signals.first)


async def _serve_until_drained(
    run: ServerProcess, signals: Signals, served: ModelServerListener | None
) -> Drained:
    from shoal.http.app.router import load_the_rest
    from shoal.server.server import serve

    shoal_app = run.shoal_app
    is_up = anyio.Event()
    startup = ExitStack()  # closed once the server listens
    parts = tuple if shoal_app is None else shoal_app.own_pages.loading
    loading = Progress(f"loading {run.spec}", parts)
    front_ends, by = _front_ends(run)

    async def until_ending() -> None:
        """Waits until the operator shuts down the application's controller."""
        await is_up.wait()
        if shoal_app is not None and shoal_app.controller is not None:
            await shoal_app.controller.wait_ending()
        else:
            await anyio.sleep_forever()

    def say_where(url: str) -> None:
        say(f"Shoal serving {run.spec} on {url}{by}")

    def on_listening(url: str) -> None:
        loading.finish(f"loaded {run.spec}")
        startup.close()
        configure_logging(run.log_level, run.log_format, run.options)
        is_up.set()
        skip_what_was_loaded()
        signals.graceful_s = run.options.graceful_timeout_s
        say_where(url)
        if served is not None and shoal_app is not None and shoal_app.controller is not None:
            served.begin(shoal_app.controller)
            say(f"Shoal serving its backends to other Shoal servers at {served.url}")
        run.on_listening(url)
        _notify("READY=1")

    async def shutdown() -> None:
        await first_of(signals.shutdown.wait, run.wait_over, until_ending)
        signals.ask()
        _notify("STOPPING=1")
        begin_drain = getattr(run.app, "begin_drain", getattr(shoal_app, "begin_drain", None))
        if callable(begin_drain):
            with contained("begin_drain failed"):
                begin_drain()
        if served is not None:
            await served.leave(run.options.graceful_timeout_s)

    with startup:
        startup.enter_context(keeping_loggers_on())
        startup.enter_context(loading)
        app, admin = _with_admin_api(run)
        more = [
            AppAddress(address=at, app=app, on_listening=say_where) for at in run.passed.public[1:]
        ]
        return await serve(
            app,
            run.options,
            shutdown=shutdown,
            on_listening=on_listening,
            extra_addresses=(*more, *admin),
            load_later=(lambda: None) if shoal_app is None else load_the_rest,
            front_ends=front_ends,
            # Middleware around it may need what its lifespan makes.
            answers_early=run.answers_early and run.app is shoal_app and run.server == "shoal",
        )


def _front_ends(run: ServerProcess) -> tuple[StartFrontEnds | None, str]:
    """Returns what speaks HTTP in place of this process, if anything, and a text that names it."""
    if run.server == "hypercorn":
        from shoal.commands.server.hypercorn_host import NAME, on_hypercorn

        return on_hypercorn(run.event_loop), f" ({NAME} on {run.event_loop})"
    if run.workers is None:
        return None, ""
    from shoal.front_ends.listener import front_ends

    options, log_form = run.options, run.log_format
    return front_ends(WORKER, run.workers, options, run.event_loop, run.log_level, log_form), ""


def collect_less_often() -> None:
    """Makes the garbage collector run less often; called before the application is loaded."""
    # Imported modules stay, and the objects of a request are freed without the collector. It would
    # scan the objects in use every few requests, for 7% of the CPU time.
    if gc.get_threshold() == _COLLECTED_AFTER:  # the user has not set it
        gc.set_threshold(10_000, *_COLLECTED_AFTER[1:])


def skip_what_was_loaded() -> None:
    """Makes the garbage collector skip the objects that were loaded at the start."""
    gc.freeze()


def _with_admin_api(run: ServerProcess) -> tuple[ASGIApp, Sequence[AppAddress]]:
    app, inner, options = run.app, run.shoal_app, run.options
    admin: list[AppAddress] = []
    at: Address | None = run.passed.admin
    if inner is None or (options.admin_socket is None and options.token is None and at is None):
        return app, admin
    from shoal.http.app.admin_mount import AppAdmin

    if options.admin_socket is not None:
        at = Unix(options.admin_socket)
    make = partial(AppAdmin, inner, allowed_modules=options.allowed_modules, behind=run.app)
    if at is not None:
        # No token: only the socket's owner can open it.
        admin.append(AppAddress(address=at, app=make(token=None), is_admin=True))
    if options.token is not None:
        # Without a token the port has no admin API, not even at a loopback address: a proxy may
        # forward requests to it from anywhere.
        app = make(token=options.token)
    return app, admin


def cant_listen(options: HttpOptions, error: OSError) -> str:
    """Returns why a server can't listen, as the end of a sentence."""
    why = error.strerror or error
    if options.certfile is not None and options.certfile in str(error.filename):
        return f"can't use the certificate in {error.filename}: {why}"
    if error.filename is not None:
        return f"can't listen at {error.filename}: {why}"
    if options.fd is not None:
        return f"can't listen at file descriptor {options.fd}: {why}"
    return f"can't listen at {options.host} port {options.port}: {why}"


def _report(drained: Drained, signum: int | None) -> int:
    if not drained.started:
        say("Shoal was stopped before it had started")
        return 128 + (signum or signal.SIGTERM)
    say(
        f"Shoal served {drained.served:,} requests, drained in {drained.took_s:.1f} s:"
        f" {drained.finished} finished, {drained.cut} cut off"
    )
    if drained.failure is not None:
        say(f"shoal: {drained.failure}")
        return 1
    return 0


def _notify(state: str) -> None:
    """Sends a state such as ``"READY=1"`` to the socket in ``NOTIFY_SOCKET``, if it is set."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # in the abstract namespace
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_NOTIFY_TIMEOUT_S)
            sock.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("systemd could not be notified of %s: %s", state, error)


@contextmanager
def _exported(app: App) -> Generator[None]:
    """Exports an application's traces for this block."""
    with as_mistakes(), needing("--otel", "otel"):
        from shoal.observe.otel.instrument import instrument
        from shoal.observe.otel.providers import set_up_traces

        provider = set_up_traces()
    try:
        # An application may have turned tracing on itself.
        tracing = None if app.tracer is not None else instrument(app)
        yield
        if tracing is not None:
            tracing.uninstrument()
    finally:
        if provider is not None:
            # In a daemon thread: the collector may not answer.
            last_export = threading.Thread(target=provider.shutdown, daemon=True)
            last_export.start()
            last_export.join(_LAST_EXPORT_S)


class Signals:
    """Handles signals: the first asks the server to drain, the second ends it at once."""

    # Plain signal handlers handle signals, not the event loop, because the second signal must work
    # even if an application blocks the loop, or a thread that can't be interrupted keeps it open.
    # For the same reason a watchdog thread ends the process when a drain takes longer than allowed.
    # The thread waits on a `queue.SimpleQueue`, because its `put` is reentrant: a signal handler
    # may call it at any point.
    #
    # SIGHUP, which a process receives when its terminal is closed, also starts a drain, but is not
    # counted as the first of two signals. Closing a terminal sends it twice, from the shell and
    # from the kernel, and some supervisors send it together with SIGTERM, with Python seeing SIGHUP
    # first. If SIGHUP is ignored when the server starts, as under `nohup`, it stays ignored.

    def __init__(self) -> None:
        self.shutdown = anyio.Event()  # set when the process should shut down
        self.first: int | None = None  # the first signal
        self.graceful_s = 0.0  # for running requests, after the first signal; may be changed
        self._soon = EventLoop.here().soon
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def listen(self) -> None:
        threading.Thread(target=self._watch, name="shoal-watchdog", daemon=True).start()
        # Not restored when the server has ended: a second signal must still work while the
        # interpreter waits for the application's own threads.
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._received)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._received)

    def ask(self) -> None:
        """Starts a drain without a signal. Call it in the event loop."""
        self._asked.put(None)
        self.shutdown.set()

    def _received(self, signum: int, _frame: FrameType | None) -> None:
        if self.first not in (None, signal.SIGHUP):
            os._exit(128 + signum)
        self.first = signum
        # SIGHUP arrives more than once, and its default action would kill the ending interpreter.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._asked.put(None)
        try:
            self._soon(self.shutdown.set)
        except RuntimeError:  # the loop has ended
            os._exit(128 + signum)

    def _watch(self) -> None:
        self._asked.get()
        allowed_s = self.graceful_s + _MARGIN_S
        time.sleep(_QUIET_S)
        say(
            f"Shoal is stopping: running requests have {self.graceful_s:g} s to finish, and "
            f"it ends within {allowed_s:g} s; a second Ctrl+C or SIGTERM stops it at once"
        )
        # Normally the process ends during this sleep. A longer one overflows.
        time.sleep(min(allowed_s - _QUIET_S, threading.TIMEOUT_MAX / 2))
        say(
            f"Shoal was stopped by force: still busy {allowed_s:g} s after the signal, with a "
            "thread that can't be interrupted or a blocked event loop"
        )
        os._exit(1)
