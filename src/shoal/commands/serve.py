"""``shoal serve``, and ``shoal start`` with a name and an admin socket for the other commands."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.commands.server.client import ServerLocation, already_running, being_server
from shoal.commands.server.options import add_server_options, process_options, server_options
from shoal.commands.server.process import ServerProcess, collect_less_often
from shoal.commands.server.reload import Turn, serve_versions
from shoal.commands.server.stderr import Progress
from shoal.commands.support.arguments import add, add_json_argument, add_name_argument, describe
from shoal.commands.support.loading import (
    APPLICATION,
    application_of,
    empty_application,
    file_settings,
    import_code,
    need,
    server_settings,
)
from shoal.commands.support.output import CommandError, facts, say, show
from shoal.server.listeners import NO_SOCKETS, Inherited, PassedSockets, passed_sockets
from shoal.server.run import address_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp

    from shoal.asgi.http_options import HttpOptions


_EXAMPLE: Final = """\
  shoal serve my_module:app --port 8000        my_module.py contains app = shoal.App()
  shoal serve app.toml                         with [backends.small] and [endpoints.classify]
  shoal serve my_module:app --reload           while you write it
  shoal serve my_module:app --workers auto     on all cores

  The first SIGTERM or Ctrl-C drains: running requests may finish. The second ends at once.
"""


def add_arguments(parser: ArgumentParser) -> None:
    about = "Serve a shoal.App, or one declared in a TOML file, or any other ASGI application."
    describe(parser, _run, about, _EXAMPLE)
    add(parser, f"application {APPLICATION}", "the application to serve")
    add_server_options(parser)
    add(
        parser,
        "--admin-socket PATH",
        "the admin API at this UNIX socket, which only this user can open",
    )
    add(parser, "--reload", "for development: reload the application when its files change")
    directory = "with --reload: a directory with its files; repeatable (the current directory)"
    add(parser, "--reload-dir DIRECTORY", directory, Path, action="append")
    parser.add_argument("--version-fds", type=int, nargs="+", help=SUPPRESS)


def _run(arguments: Namespace) -> int:
    collect_less_often()
    need("shoal.server.server")
    if arguments.version_fds is not None:
        control, *listening = arguments.version_fds
        return _serve_version(arguments, listening, Turn(control))
    if arguments.reload:
        return _reload(arguments)
    if arguments.reload_dir:
        raise CommandError("--reload-dir needs --reload")
    passed = _passed(arguments)
    return _process(arguments, _imported(arguments), passed).run()


def _imported(arguments: Namespace) -> ASGIApp:
    spec = arguments.application
    with Progress(f"importing {spec}") as progress:
        app = application_of(spec)
        progress.finish(f"imported {spec}")
    return app


def _reload(arguments: Namespace) -> int:
    passed = _passed(arguments)
    if passed.admin is not None or len(passed.public) > 1:
        raise CommandError("--reload takes one socket from systemd, for the application")
    options = _on_passed(passed, server_options(arguments, file_settings(arguments.application)))
    return serve_versions(
        arguments.argv,
        address_of(options),
        arguments.reload_dir or [Path()],
        options.graceful_timeout_s,
    )


def _serve_version(arguments: Namespace, listening: Sequence[int], turn: Turn) -> int:
    app = _imported(arguments)
    import_code(app)
    passed = PassedSockets(tuple(map(Inherited, listening)))
    process = _process(arguments, app, passed, wait_over=turn.wait_over)
    return process.run() if turn.wait() else 0


def _passed(arguments: Namespace) -> PassedSockets:
    """Returns the sockets that systemd has passed, unless the command names an address as well."""
    try:
        passed = passed_sockets()
    except ValueError as error:
        raise CommandError(str(error), 1) from None
    in_place_of_public = ("host", "port", "uds") if passed.public else ()
    in_place_of_admin = ("admin_socket",) if passed.admin is not None else ()
    for name in (*in_place_of_public, *in_place_of_admin):
        if getattr(arguments, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise CommandError(f"systemd has passed a socket in place of {flag}; leave {flag} out")
    return passed


def _on_passed(passed: PassedSockets, options: HttpOptions) -> HttpOptions:
    """Returns options with which the server listens at the first passed socket, if any."""
    if not passed.public:
        return options
    return replace(options, uds=None, fd=passed.public[0].fd)


def _process(
    arguments: Namespace, app: ASGIApp, passed: PassedSockets = NO_SOCKETS, **more: Any
) -> ServerProcess:
    settings = server_settings(app)
    return ServerProcess(
        app=app,
        spec=arguments.application or arguments.name,
        options=_on_passed(passed, server_options(arguments, settings)),
        passed=passed,
        # Clients of a socket that systemd holds wait, as they did before this process started.
        answers_early=not passed.public,
        **process_options(arguments, settings),
        **more,
    )


_START_EXAMPLE: Final = """\
  shoal start --detach --allow-module my_models --state shoal.db
  shoal backends create small my_models:Classifier placement=process
  shoal endpoints create classify --route /classify --backend small
  shoal status
  shoal logs --follow
  shoal stop
"""
_START_POLL_S: Final = 0.1
_SHOWN_LINES: Final = 20


def add_start_arguments(parser: ArgumentParser) -> None:
    about = "Start a server that the other commands find by its name, with an application or empty."
    describe(parser, _start, about, _START_EXAMPLE)
    add(parser, f"application {APPLICATION}", "an application to serve (none)", nargs="?")
    add_name_argument(parser)
    add(parser, "--detach", "return when the server is ready; `shoal logs` shows its log")
    parser.add_argument("--ready-fd", type=int, help=SUPPRESS)
    add_json_argument(parser)
    add_server_options(parser)


def _start(arguments: Namespace) -> int:
    location = ServerLocation(arguments.name)
    if arguments.detach:
        ready = _start_detached(location, [one for one in arguments.argv if one != "--detach"])
        return show(arguments, ready, facts([(name, str(one)) for name, one in ready.items()]))
    collect_less_often()
    need("shoal.server.server")
    arguments.admin_socket = str(location.socket)
    with being_server(location):
        return _serve_named(arguments, location)


def _serve_named(arguments: Namespace, location: ServerLocation) -> int:
    spec: str | None = arguments.application
    if arguments.ready_fd is not None:
        os.set_inheritable(arguments.ready_fd, False)  # so that no child process keeps it open
    app = empty_application() if spec is None else application_of(spec)

    def started(url: str) -> None:
        say(f"Commands reach it at {location.url}")
        if arguments.ready_fd is not None:
            with open(arguments.ready_fd, "w", encoding="utf-8") as pipe:
                pipe.write(f"{url}\n")

    return _process(arguments, app, on_listening=started).run()


def _start_detached(location: ServerLocation, argv: Sequence[str]) -> dict[str, str | int]:
    """Starts a server in a session of its own, and waits until it writes its URL to a pipe."""
    if location.holder() is not None:
        raise already_running(location)
    location.make_directory()
    try:
        log_fd = os.open(location.log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise CommandError(f"can't write {location.log}: {error.strerror}", 1) from None
    readable, writable = os.pipe()
    command = [sys.executable, "-m", "shoal", *argv, "--ready-fd", str(writable)]
    with open(log_fd, "ab+") as log, open(readable, encoding="utf-8") as pipe:
        begun_at = log.seek(0, os.SEEK_END)
        with open(writable, "wb"):
            child = subprocess.Popen(  # noqa: S603 - the user's own arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[writable],
                start_new_session=True,
            )
        if sys.stderr.isatty():
            say(f"waiting for the server to be ready; its log is {location.log} ...")
        try:
            # Its forked children may hold the pipe open, so the end of the pipe is not enough.
            while not (written := select.select([pipe], [], [], _START_POLL_S)[0]):
                if child.poll() is not None:
                    break
            url = pipe.readline().strip() if written else ""
        except BaseException:
            child.terminate()
            raise
        if url:
            child.returncode = 0  # so that Popen does not warn that it still runs
            files = {"socket": str(location.socket), "log": str(location.log)}
            return {"url": url, **files, "pid": child.pid}
        code = child.wait()
        log.seek(begun_at)
        lines = log.read().decode(errors="replace").strip().splitlines()
    *others, last = lines or [f"the server ended with exit code {code} and wrote nothing"]
    for line in others[-_SHOWN_LINES:]:
        say(line)
    raise CommandError(last.removeprefix("shoal: "), code if code in (1, 2) else 1)
