"""``shoal start``: starts a named server, with an admin socket for the other commands."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import TYPE_CHECKING, Final

from shoal.commands.server.locations import ServerLocation, already_running, being_server
from shoal.commands.server.options import add_server_options, process_options, server_options
from shoal.commands.server.process import ServerProcess, collect_less_often
from shoal.commands.support.arguments import add, add_json_argument, add_name_argument, describe
from shoal.commands.support.loading import (
    APPLICATION,
    application_of,
    empty_application,
    need,
    server_settings,
)
from shoal.commands.support.mistake import CommandError, say
from shoal.commands.support.output import facts, show

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXAMPLE: Final = """\
  shoal start --detach --allow-module my_models --state shoal.db
  shoal backends create small my_models:Classifier placement=process
  shoal endpoints create classify --route /classify --backend small
  shoal status
  shoal logs --follow
  shoal stop
"""
_POLL_S: Final = 0.1
_SHOWN_LINES: Final = 20


def add_arguments(parser: ArgumentParser) -> None:
    describe(
        parser,
        _run,
        "Start a server that the other commands find by its name, with an application or empty.",
        _EXAMPLE,
    )
    add(
        parser,
        f"application {APPLICATION}",
        "an application to serve (none: create backends and endpoints with commands)",
        nargs="?",
    )
    add_name_argument(parser)
    add(
        parser,
        "--detach",
        "return when the server is ready and leave it running; `shoal logs` shows its log",
    )
    parser.add_argument("--ready-fd", type=int, help=SUPPRESS)
    add_json_argument(parser)
    add_server_options(parser)


def _run(arguments: Namespace) -> int:
    location = ServerLocation.of(arguments.name)
    if arguments.detach:
        ready = _start_detached(location, [one for one in arguments.argv if one != "--detach"])
        return show(arguments, ready, facts([(name, str(one)) for name, one in ready.items()]))
    collect_less_often()
    need("shoal.server.server")
    arguments.admin_socket = str(location.socket)
    with being_server(location):
        return _serve(arguments, location)


def _serve(arguments: Namespace, location: ServerLocation) -> int:
    spec: str | None = arguments.application
    if arguments.ready_fd is not None:
        os.set_inheritable(arguments.ready_fd, False)  # so that no child process keeps it open
    app = empty_application() if spec is None else application_of(spec)

    def started(url: str) -> None:
        say(f"Commands reach it at {location.url()}")
        if arguments.ready_fd is not None:
            with open(arguments.ready_fd, "w", encoding="utf-8") as pipe:
                pipe.write(f"{url}\n")

    return ServerProcess(
        app=app,
        spec=spec or location.name,
        options=server_options(arguments, server_settings(app)),
        started=started,
        **process_options(arguments, server_settings(app)),
    ).to_its_end()


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
            while not (written := select.select([pipe], [], [], _POLL_S)[0]):
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
