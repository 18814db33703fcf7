"""The program of a worker of ``shoal serve --workers``, which speaks HTTP for the server.

    python -m shoal.commands.server.front_end PROTOCOL LISTENING CHANNEL [MEMORY]

Only `shoal.front_ends.listener` starts it. It imports no code of the application. It runs a
server at the inherited socket, with the application `shoal.front_ends.front_end`, which forwards
each request.

It ends when the server asks it to drain, or is gone. It ignores Ctrl-C and a closed terminal, which
the server handles. At SIGTERM it drains, and the server starts another worker in its place, unless
the server ends too.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from shoal.asgi.extensions import ConnectionCounts
from shoal.asgi.http_options import HttpOptions
from shoal.commands.server.process import (
    cant_listen,
    collect_less_often,
    run_in,
    skip_what_was_loaded,
)
from shoal.commands.server.stderr import configure_logging
from shoal.commands.support.output import say
from shoal.front_ends.front_end import FrontEnd
from shoal.front_ends.listener import FrontEndStart
from shoal.front_ends.wire import MEMORY, Channel
from shoal.replicas.process.wire.frames import PROTOCOL, FrameReader, receive
from shoal.replicas.process.wire.messages import unpickled
from shoal.replicas.process.wire.shared_memory import SharedMemory
from shoal.server.server import serve
from shoal.server.tls import tls_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ssl import SSLContext

_OTHER_PROTOCOL: Final = 3
# How long it may take to end once the server is gone.
_ENDS_WITHIN_S: Final = 2.0


def main(arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    protocol, listening, channel, *memory = map(int, arguments)
    if protocol != PROTOCOL:
        say("shoal: the worker's version of Shoal is another one than the server's")
        return _OTHER_PROTOCOL
    collect_less_often()
    sock = socket.socket(fileno=channel)
    reader = FrameReader()
    frame = receive(sock, reader)
    if frame is None:
        return 1  # the server is gone
    start = FrontEndStart(**unpickled(frame.body))
    options = replace(HttpOptions(**start.options), fd=listening)
    configure_logging(start.log_level, start.log_format, options)
    try:
        tls = tls_of(options)
    except OSError as error:  # the certificate has changed since the server read it
        say(f"shoal: a worker {cant_listen(options, error)}")
        return 1
    regions = SharedMemory(memory[0] if memory else None, MEMORY)
    return run_in(start.event_loop, partial(_serve, options, tls, sock, reader, regions))


async def _serve(
    options: HttpOptions,
    tls: SSLContext | None,
    sock: socket.socket,
    reader: FrameReader,
    regions: SharedMemory,
) -> int:
    channel = Channel(sock, reader, regions.replies, regions.requests, _raise)
    counts = ConnectionCounts(options.max_connections)
    front_end = FrontEnd(channel, counts.totals, options.retry_after_s)
    code = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_heed_sigterm, front_end)

        async def follow() -> None:
            nonlocal code
            await channel.run(front_end.take)
            code = 1
            threading.Thread(target=_end_late, daemon=True).start()
            say("Shoal: the server's process has ended, and its worker ends as well")
            front_end.lose()
            front_end.must_drain.set()
            if not front_end.may_serve.is_set():
                front_end.serving.cancel()

        tasks.start_soon(follow)
        with front_end.serving:
            channel.post("ready")
            await front_end.may_serve.wait()
            skip_what_was_loaded()
            await serve(
                front_end,
                options,
                shutdown=front_end.must_drain.wait,
                lifespan=False,
                # If each process accepts one at a time, all get their share.
                accepts_at_once=1,
                counts=counts,
                tls=tls,
            )
            front_end.tell_connections()
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
