"""Starts the workers of ``shoal serve --workers``."""

from __future__ import annotations

import math
import sys
from functools import partial
from pickle import dumps
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shoal.asgi.http_options import HttpOptions, ServerKeywords
from shoal.front_ends.listener import FrontEnds

if TYPE_CHECKING:
    from shoal.server.config import StartFrontEnds
    from shoal.serving.app_file.server import EventLoopName

# The server's process ends requests that take too long. A worker does so later, if that fails.
_LATER_S: Final = 5.0


class FrontEndStart(NamedTuple):
    options: dict[str, Any]
    event_loop: EventLoopName
    log_level: str
    log_format: str


def front_ends(
    count: int,
    options: HttpOptions,
    event_loop: EventLoopName,
    log_level: str,
    log_format: str = "text",
) -> StartFrontEnds:
    server_options = {name: getattr(options, name) for name in ServerKeywords.__annotations__}
    server_options |= {
        "uds": None,
        "max_connections": math.ceil(options.max_connections / count),
        "graceful_timeout_s": options.graceful_timeout_s + _LATER_S,
    }
    # -P: modules in the current directory must not shadow the library's
    command = [sys.executable, "-P", "-m", "shoal.commands.server.front_end"]
    start = dumps(FrontEndStart(server_options, event_loop, log_level, log_format)._asdict())
    return partial(FrontEnds, count, command, start)
