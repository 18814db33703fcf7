"""The process of a server: serves an application until it is shut down."""

from __future__ import annotations

import gc
import logging
import signal
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.commands.server.log_format import write_log
from shoal.commands.server.notify import notify
from shoal.commands.server.progress import Progress
from shoal.commands.server.signals import Signals
from shoal.commands.server.telemetry import exported
from shoal.commands.support.loading import shoals_in
from shoal.commands.support.mistake import CommandError, say
from shoal.errors import LifespanFailed, StateRefused
from shoal.failures.hints import server_hint
from shoal.replicas.code.loggers import loggers_kept_on
from shoal.server.activation import NO_SOCKETS, PassedSockets
from shoal.server.listeners import AppListener, Unix
from shoal.server.log_errors import contained

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from pathlib import Path

    from starlette.types import ASGIApp

    from shoal.asgi.http_options import HttpOptions
    from shoal.commands.server.telemetry import Telemetry
    from shoal.http.app.app import App
    from shoal.server.config import Drained
    from shoal.server.front_end_listener import StartFrontEnds
    from shoal.server.listeners import Address
    from shoal.serving.app_file.server import EventLoop, Server

_COLLECTED_AFTER: Final = gc.get_threshold()
# How long the process may take to end, beyond the graceful timeout.
_MARGIN_S: Final = 4.0


@dataclass(frozen=True, kw_only=True)
class ServerProcess:
    """Serves an application in this process.

    Attributes:
        app: The application.
        spec: The user's name for the application, for messages.
        options: The options of the HTTP server.
        event_loop: The event loop that runs it.
        server: What speaks HTTP.
        log_level: The level of the log.
        log_format: ``"text"`` or ``"json"``.
        otel: Whether traces and metrics are exported.
        state: The file that run-time changes are stored in; None to store none.
        started: Called with the URL once clients can connect.
        wait_over: Awaited beside the server; when it returns, the server drains and ends.
        passed: The sockets that systemd or `Reloader` has passed; `options` has the first of those
            of the application.
        workers: How many processes speak HTTP for this one; None to do it here.
        answers_early: Whether a `shoal.App` is served while it starts, so that it says that it is
            not ready.
    """

    app: ASGIApp
    spec: str
    options: HttpOptions
    event_loop: EventLoop = "trio"
    server: Server = "shoal"
    log_level: str = "info"
    log_format: str = "text"
    otel: bool = False
    state: Path | None = None
    started: Callable[[str], object] = lambda _: None
    wait_over: Callable[[], Awaitable[object]] = anyio.sleep_forever
    passed: PassedSockets = NO_SOCKETS
    workers: int | None = None
    answers_early: bool = True

    @property
    def shoals(self) -> App | None:
        """The `shoal.App` in the application, which has a controller; None if it has none."""
        return shoals_in(self.app)

    def to_its_end(self) -> int:
        """Serves until a signal or the operator ends the process.

        Returns:
            The exit code.

        Raises:
            CommandError: The options do not fit the application, or it did not start.
        """
        options = self.options
        if (self.state or options.admin_socket or options.token) and self.shoals is None:
            raise CommandError(
                f"{self.spec} is not a shoal.App; leave out --state, --admin-socket and "
                "--token-file, which need one"
            )
        if self.passed.admin is not None and self.shoals is None:
            raise CommandError(
                f"{self.spec} is not a shoal.App, which the socket named admin from systemd needs"
            )
        if self.workers is not None and len(self.passed.public) > 1:
            raise CommandError(
                f"there are {len(self.passed.public)} sockets for the application, and --workers "
                "serves one: pass one, or name one address, or leave --workers out"
            )
        write_logs(self.log_level, self.log_format, options)
        app = self.shoals
        with nullcontext() if not self.otel else exported(self.app, app) as telemetry:
            return self._serve(app, telemetry)

    def _serve(self, app: App | None, telemetry: Telemetry | None) -> int:
        if self.state is not None and app is not None:
            _open_state(app, self.state, self.options)
        return run_in(self.event_loop, partial(_serve, self, telemetry))


def write_logs(level: str, form: str, options: HttpOptions) -> None:
    """Sets how this process writes its log, and the access log if there is one.

    Called again once the application has started, which may have configured logging.
    """
    write_log(level, form)
    if options.access_log:
        from shoal.server.access_log import LOGGER

        _write_plainly(LOGGER)


def run_in(event_loop: EventLoop, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs a function in an event loop of this kind."""
    return anyio.run(main, backend="trio") if event_loop == "trio" else _run_on_asyncio(main())


def _write_plainly(name: str) -> None:
    """Makes a logger write bare messages, from level INFO, whatever the log level is.

    They go to stderr, unless the application has given the logger a handler.
    """
    logger = logging.getLogger(name)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _open_state(app: App, path: Path, options: HttpOptions) -> None:
    from shoal.serving.state.file import StateFile

    try:
        app.state = StateFile.open(path)
    except StateRefused as error:
        raise CommandError(str(error), 1) from None
    app.allowed_modules = options.allowed_modules


def _run_on_asyncio(main: Coroutine[Any, Any, int]) -> int:
    import asyncio

    new_loop: Callable[[], asyncio.AbstractEventLoop]
    try:
        import uvloop
    except ModuleNotFoundError:
        new_loop = asyncio.new_event_loop
    else:
        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


async def _serve(run: ServerProcess, telemetry: Telemetry | None) -> int:
    from shoal.http.app.loading import load_the_rest
    from shoal.server.config import WorkersFailed
    from shoal.server.server import serve

    signals = Signals(allowed_s=_MARGIN_S)
    signals.listen()

    is_up = anyio.Event()
    startup = ExitStack()
    startup.enter_context(loggers_kept_on())
    shoals = run.shoals
    loading = Progress(f"loading {run.spec}", tuple if shoals is None else shoals.own_pages.loading)
    startup.enter_context(loading)

    async def until_ending() -> None:
        """Waits until the operator shuts down the application's controller."""
        await is_up.wait()
        if run.shoals is not None and run.shoals.controller is not None:
            await run.shoals.controller.wait_ending()
            signals.ask()

    async def until_over() -> None:
        await run.wait_over()
        signals.ask()

    def started(url: str) -> None:
        loading.finish(f"loaded {run.spec}")
        startup.close()
        write_logs(run.log_level, run.log_format, run.options)
        is_up.set()
        skip_what_was_loaded()
        signals.allowed_s = run.options.graceful_timeout_s + _MARGIN_S
        say_where(url)
        run.started(url)
        notify("READY=1")

    if run.server == "hypercorn":
        from shoal.commands.server.hypercorn_host import NAME, serve_on_hypercorn

        serve_it = partial(serve_on_hypercorn, event_loop=run.event_loop)
        by = f" ({NAME} on {run.event_loop})"
    else:
        serve_it = partial(
            serve,
            load_later=(lambda: None) if shoals is None else load_the_rest,
            front_ends=None if run.workers is None else _front_ends(run, run.workers),
            # Middleware around it may need what its lifespan makes.
            answers_early=run.answers_early and run.app is shoals,
        )
        by = ""

    def say_where(url: str) -> None:
        say(f"Shoal serving {run.spec} on {url}{by}")

    async def shutdown() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_ending)
            tasks.start_soon(until_over)
            if telemetry is not None:
                tasks.start_soon(telemetry.export_metrics)
            await signals.shutdown.wait()
            notify("STOPPING=1")
            tasks.cancel_scope.cancel()
        begin_drain = getattr(run.app, "begin_drain", getattr(run.shoals, "begin_drain", None))
        if callable(begin_drain):
            with contained("begin_drain failed"):
                begin_drain()

    try:
        app, others = _with_admin_api(run)
        more = [
            AppListener(address=at, app=app, started=say_where, may_have_tls=True)
            for at in run.passed.public[1:]
        ]
        with startup:
            drained = await serve_it(
                app,
                run.options,
                shutdown=shutdown,
                started=started,
                extra_listeners=(*more, *others),
            )
    except LifespanFailed as failure:
        if above := failure.details.rstrip().rpartition("\n")[0]:  # the last line is in the message
            say(above)
        if (hint := server_hint(failure.details)) is not None:
            say(f"shoal: {hint}")
        raise CommandError(str(failure), 1) from None
    except WorkersFailed as failure:
        raise CommandError(str(failure), 1) from None
    except OSError as error:
        raise CommandError(cant_listen(run.options, error), 1) from None
    return _report(drained, signals.first)


def _front_ends(run: ServerProcess, count: int) -> StartFrontEnds:
    from shoal.commands.server.workers import front_ends

    return front_ends(count, run.options, run.event_loop, run.log_level, run.log_format)


def collect_less_often() -> None:
    """Has the garbage collector look less often; called before the application is loaded.

    What is imported stays, and the objects of a request go without the collector. It would look at
    those that are under way every few requests, for a tenth of all processor time.
    """
    if gc.get_threshold() == _COLLECTED_AFTER:  # nobody has set it
        gc.set_threshold(10_000, *_COLLECTED_AFTER[1:])


def skip_what_was_loaded() -> None:
    """Has the garbage collector skip what was loaded at the start."""
    gc.freeze()


def _with_admin_api(run: ServerProcess) -> tuple[ASGIApp, Sequence[AppListener]]:
    """Returns the application for the port, and the other listeners."""
    app, inner, options = run.app, run.shoals, run.options
    others: list[AppListener] = []
    at: Address | None = run.passed.admin
    if inner is None or (options.admin_socket is None and options.token is None and at is None):
        return app, others
    from shoal.http.app.admin_mount import AppAdmin

    if options.admin_socket is not None:
        at = Unix(options.admin_socket)
    if at is not None:
        # No token: only the user that the socket belongs to can open it.
        admin = AppAdmin(inner, token=None, allowed_modules=options.allowed_modules, behind=run.app)
        others.append(AppListener(address=at, app=admin))
    if options.token is not None:
        # Without a token the port has no admin API, not even at a loopback address: a proxy may
        # forward requests to it from anywhere.
        app = AppAdmin(
            inner,
            token=options.token,
            allowed_modules=options.allowed_modules,
            behind=run.app,
        )
    return app, others


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
