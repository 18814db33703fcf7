"""The program of a worker of ``shoal serve --workers``, which speaks HTTP for the server.

    python -m shoal.commands.server.front_end PROTOCOL LISTENING CHANNEL [MEMORY]

Only `shoal.http.front_ends.remote_front_end` starts it. It imports no code of the application. It
has a server of its own, at the socket that it was given, whose application passes each request on;
see `shoal.http.front_ends.front_end`.

It ends when the server tells it to drain, or is gone. Ctrl-C and a terminal that closes are for the
server. SIGTERM has it drain, and the server starts another one in its place, unless it ends too.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pickle import dumps
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import anyio.lowlevel

from shoal.commands.server.process import run_in, settle_memory, write_logs
from shoal.commands.support.mistake import say
from shoal.http.front_ends.channel import Channel
from shoal.http.front_ends.front_end import FrontEnd
from shoal.http.front_ends.listener import FrontEndOptions
from shoal.http.front_ends.wire import MEMORY, FrontKind
from shoal.http.server.server import serve
from shoal.replicas.process.wire.frames import PROTOCOL, FrameReader, receive
from shoal.replicas.process.wire.messages import unpickled
from shoal.replicas.process.wire.shared_memory import SharedMemory
from shoal.serving.http_options import HttpOptions, ServerKeywords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.serving.app_file.server import EventLoop

_OTHER_PROTOCOL: Final = 3
# The server's process cuts requests off, and this one only if that does not.
_LATER_S: Final = 5.0
# How long it may take to end once the server is gone.
_ENDS_WITHIN_S: Final = 2.0


class _Start(NamedTuple):
    """What a front end is told at its start.

    Attributes:
        options: The options of its server.
        event_loop: The event loop.
        log_level: The level of the log.
    """

    options: dict[str, Any]
    event_loop: EventLoop
    log_level: str


def front_ends(
    count: int, options: HttpOptions, event_loop: EventLoop, log_level: str
) -> FrontEndOptions:
    """Returns how the front ends of a server are started.

    Args:
        count: How many there are.
        options: The options of the server.
        event_loop: The event loop.
        log_level: The level of the log.
    """
    given = {name: getattr(options, name) for name in ServerKeywords.__annotations__}
    given |= {
        "uds": None,
        "max_connections": math.ceil(options.max_connections / count),
        "graceful_timeout_s": options.graceful_timeout_s + _LATER_S,
    }
    return FrontEndOptions(
        count=count,
        # -P: modules in the current directory must not shadow the library's
        command=[sys.executable, "-P", "-m", "shoal.commands.server.front_end"],
        start=dumps(_Start(given, event_loop, log_level)._asdict()),
    )


def main(arguments: Sequence[str]) -> int:
    """Serves until the server's process ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    protocol, listening, channel, *memory = map(int, arguments)
    if protocol != PROTOCOL:
        say("shoal: the worker's version of Shoal is another one than the server's")
        return _OTHER_PROTOCOL
    sock = socket.socket(fileno=channel)
    reader = FrameReader[FrontKind](FrontKind)
    frame = receive(sock, reader)
    if frame is None:
        return 1  # the server is gone
    start = _Start(**unpickled(frame.body))
    options = replace(HttpOptions(**start.options), fd=listening)
    write_logs(start.log_level, options)
    regions = SharedMemory(memory[0], MEMORY) if memory else None
    return run_in(start.event_loop, partial(_serve, options, sock, reader, regions))


async def _serve(
    options: HttpOptions,
    sock: socket.socket,
    reader: FrameReader[FrontKind],
    regions: SharedMemory | None,
) -> int:
    channel = Channel(
        sock,
        reader,
        None if regions is None else regions.replies,
        None if regions is None else regions.requests,
        _raise,
    )
    front_end = FrontEnd(channel)
    code = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_heed_sigterm, front_end)
        serving = anyio.CancelScope()

        async def follow() -> None:
            nonlocal code
            await channel.run(front_end.take)
            code = 1
            threading.Thread(target=_end_late, daemon=True).start()
            say("Shoal: the server's process has ended, and its worker ends as well")
            front_end.lose()
            for _ in range(2):  # the refusals are sent
                await anyio.lowlevel.checkpoint()
            serving.cancel()

        async def end_by_force() -> None:
            await front_end.must_end.wait()
            serving.cancel()

        tasks.start_soon(follow)
        tasks.start_soon(end_by_force)
        with serving:
            channel.post(FrontKind.READY)
            await front_end.may_serve.wait()
            settle_memory()
            await serve(
                front_end,
                options,
                shutdown=front_end.must_drain.wait,
                lifespan=False,
                # Where each process takes one at a time, all get their share.
                accepts_at_once=1,
            )
        channel.flush()
        tasks.cancel_scope.cancel()
    return code


async def _heed_sigterm(front_end: FrontEnd) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            front_end.may_serve.set()
            front_end.must_drain.set()


def _end_late() -> None:
    time.sleep(_ENDS_WITHIN_S)
    os._exit(1)


def _raise(error: Exception) -> None:
    raise error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
