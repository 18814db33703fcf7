"""Finds the server of a command, runs a request on it, and reports errors.

A server named NAME has its admin socket at ``NAME.sock``, which only its user can open, in a
directory that only its user can read. Beside it are ``NAME.log``, the log of a detached server, and
``NAME.pid``, which contains its process id. The process holds a lock on ``NAME.pid`` while it runs,
so the file of a killed server is recognised as stale.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from shoal.commands.support.arguments import (
    add,
    add_json_argument,
    add_name_argument,
    add_token_argument,
    describe,
    token_of,
)
from shoal.commands.support.output import CommandError, as_mistakes, confirm, in_one_line, say
from shoal.core.addresses import admin_socket_directory
from shoal.errors import ShoalError
from shoal.failures.exceptions import ungrouped
from shoal.serving.clients.remote_client import RemoteClient

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Awaitable, Callable, Generator
    from pathlib import Path


_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600

# A process that checks whether the server runs holds its lock for a moment.
_TRIES: Final = 20
_BETWEEN_S: Final = 0.01


class ServerLocation:
    """The files of a named server; making it creates none of them."""

    def __init__(self, name: str, directory: Path | None = None) -> None:
        try:
            self.directory = directory or admin_socket_directory()
        except ConnectionError as error:
            raise CommandError(str(error), 1) from None
        self.name = name
        self.socket = self.directory / f"{name}.sock"
        self.url = f"unix:{self.socket}"
        self.log = self.directory / f"{name}.log"
        # The running server locks it; it contains its process id.
        self.process = self.directory / f"{name}.pid"
        # Of commands for this server; empty for the default server.
        self.flag = "" if name == "default" else f" --name {name}"

    def make_directory(self) -> None:
        """Creates the directory, accessible only to its user."""
        try:
            self.directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            if self.directory.stat().st_uid != os.getuid():
                raise PermissionError(1, "it belongs to another user")
            self.directory.chmod(_PRIVATE_DIRECTORY)
        except OSError as error:
            raise CommandError(
                f"can't use {self.directory} for sockets: {error.strerror}; set XDG_RUNTIME_DIR "
                "to a directory that only this user can write",
                1,
            ) from None

    def holder(self) -> int | None:
        """Returns the process id of the running server; 0 if it is not written yet."""
        try:
            file = os.open(self.process, os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CommandError(f"can't read {self.process}: {error.strerror}", 1) from None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(file, 20).decode().strip()
            return int(text) if text.isdecimal() else 0
        finally:
            os.close(file)
        return None


@contextmanager
def being_server(location: ServerLocation) -> Generator[None]:
    location.make_directory()
    try:
        file = os.open(location.process, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
    except OSError as error:
        raise CommandError(f"can't write {location.process}: {error.strerror}", 1) from None
    try:
        if not _locked(file):
            raise already_running(location)
        process = os.getpid()
        os.ftruncate(file, 0)
        os.write(file, f"{process}\n".encode())
        try:
            yield
        finally:
            if os.getpid() == process:  # not in a process that the application has forked
                os.ftruncate(file, 0)
                fcntl.flock(file, fcntl.LOCK_UN)  # also for those
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_BETWEEN_S)
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def already_running(location: ServerLocation) -> CommandError:
    flag = location.flag
    process = location.holder()
    whose = f" as process {process}" if process else ""
    return CommandError(
        f"a server named {location.name!r} runs already{whose}; see it with `shoal status{flag}`, "
        f"connect to it at {location.url}, or end it with `shoal stop{flag}`",
        1,
    )


T = TypeVar("T")

# How long a request may take before the terminal shows what it waits for.
_PATIENCE_S: Final = 1.0


def add_server_arguments(parser: ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    which = server.add_mutually_exclusive_group()
    add_name_argument(which)
    add(which, "--url URL", "its URL instead: http://host:port or unix:/path/of.sock")
    add_token_argument(server, "a file with the operator's token, for a server that requires one")
    add_json_argument(parser)


def add_family(
    parser: ArgumentParser, description: str, examples: str
) -> Callable[..., ArgumentParser]:
    """Returns a function that adds a command, such as ``list`` of ``shoal backends list``."""
    describe(parser, None, description, examples)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add_verb(
        name: str, run: Callable[[Namespace], int], about: str, *named: tuple[str, str]
    ) -> ArgumentParser:
        # `named` are the forms and summaries of what it names, such as a backend.
        verb = commands.add_parser(name, help=about.replace("%", "%%"), allow_abbrev=False)
        describe(verb, run, about, examples)
        add_server_arguments(verb)
        for form, summary in named:
            add(verb, form, summary)
        return verb

    return add_verb


def change(
    verb: Callable[[RemoteClient, Namespace], Awaitable[object]], done: str
) -> Callable[[Namespace], int]:
    """Returns a command that changes the server; its text has names of its arguments."""

    def run(arguments: Namespace) -> int:
        ask(arguments, lambda client: verb(client, arguments))
        return confirm(arguments, done.format_map(vars(arguments)))

    return run


def ask(
    arguments: Namespace,
    verb: Callable[[RemoteClient], Awaitable[T]],
    *,
    waits_for: str = "the server to answer",
) -> T:
    """Connects to the server and runs a request; shows `waits_for` on a terminal after a second."""
    url = arguments.url or ServerLocation(arguments.name).url
    with as_mistakes():
        client = RemoteClient(url, token=token_of(arguments))
    try:
        return anyio.run(_asked, client, verb, waits_for, backend="trio")
    except CommandError:
        raise
    except ConnectionRefusedError:
        flag = "" if arguments.name == "default" else f" --name {arguments.name}"
        raise CommandError(
            f"no server answers at {url}; start one with `shoal start --detach{flag}`, or name "
            "another with --name or --url",
            1,
        ) from None
    except (TypeError, ValueError) as error:
        # 2 for a mistake in the command, 1 if the state of the server does not allow it.
        raise CommandError(in_one_line(error), 1 if isinstance(error, ShoalError) else 2) from None
    except Exception as error:  # the user's code may raise anything
        raise CommandError(in_one_line(error), 1) from None


async def _asked(
    client: RemoteClient, verb: Callable[[RemoteClient], Awaitable[T]], waits_for: str
) -> T:
    async with aclosing(client), ungrouped() as tasks:
        if sys.stderr.isatty():
            tasks.start_soon(_show_wait, waits_for)
        try:
            return await verb(client)
        finally:
            tasks.cancel_scope.cancel()


async def _show_wait(waits_for: str) -> None:
    await anyio.sleep(_PATIENCE_S)
    say(f"waiting for {waits_for} ...")
