"""What Hypercorn's protocols need of a server, for either event loop.

Hypercorn takes longer to load than all the rest of the server, so what imports this module is
loaded when it is needed; see `shoal.http.server.client`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
from hypercorn.config import Config
from hypercorn.logging import Logger
from typing_extensions import override

if TYPE_CHECKING:
    from ssl import SSLContext

    from shoal.http.server.refusals import Refusals
    from shoal.serving.http_options import HttpOptions

DISCONNECT: Final = "shoal.disconnect"


def hypercorn_config(options: HttpOptions, refusals: Refusals) -> Config:
    """Returns the configuration for Hypercorn's protocols.

    Args:
        options: The options of the server.
        refusals: Notes the requests that never reach the application.
    """
    hypercorn = Config()
    hypercorn.logger_class = partial(_Log, refusals)  # type: ignore[assignment]  # is called
    hypercorn.errorlog = logging.getLogger("shoal.server")
    hypercorn.accesslog = None
    hypercorn.include_server_header = False
    hypercorn.h2_max_header_list_size = options.max_head_bytes
    hypercorn.websocket_max_message_size = options.max_message_bytes
    # After so many requests Hypercorn ends a connection, and drops those under way.
    hypercorn.keep_alive_max_requests = 2**31
    return hypercorn


class _Log(Logger):
    """Hypercorn's log, which is told of all answers.

    Args:
        refusals: Notes those to requests that never reach the application.
        config: The configuration.
    """

    def __init__(self, refusals: Refusals, config: Config) -> None:
        super().__init__(config)
        self._refusals = refusals

    @override
    async def access(self, request: Any, response: Any, request_time: float) -> None:
        # There is none if the client has left. What the application gets has the extension.
        if response is not None and DISCONNECT not in request["extensions"]:
            self._refusals.note(request, response["status"], 0, request_time)


def tls_context(options: HttpOptions) -> SSLContext | None:
    """Returns the TLS configuration; None if the server does not speak TLS.

    Raises:
        OSError: A file can't be read, or is not what it should be.
    """
    if options.certfile is None:
        return None
    config = Config()
    config.certfile = options.certfile
    config.keyfile = options.keyfile or options.certfile
    try:
        return config.create_ssl_context()
    except OSError as error:  # SSLError is one too, and names no file
        files = " and ".join(dict.fromkeys((options.certfile, config.keyfile)))
        raise OSError(error.errno, error.strerror or str(error), files) from error


class _Event:
    """An event with the interface that Hypercorn's protocols use, for either event loop.

    A connection has many of them, and waits for few.
    """

    __slots__ = ("_is_set", "_waited_for")

    def __init__(self) -> None:
        self._is_set = False
        self._waited_for: anyio.Event | None = None

    async def clear(self) -> None:
        self._is_set = False

    async def set(self) -> None:
        self.set_now()

    def set_now(self) -> None:
        self._is_set = True
        if self._waited_for is not None:
            self._waited_for.set()
            self._waited_for = None

    async def wait(self) -> None:
        if self._is_set:
            await anyio.lowlevel.checkpoint()
            return
        if self._waited_for is None:
            self._waited_for = anyio.Event()
        await self._waited_for.wait()

    def is_set(self) -> bool:
        return self._is_set


class Context:
    """The context of a server that Hypercorn's protocols use, for either event loop.

    Attributes:
        terminated: Set once the server drains.
    """

    event_class = _Event
    sleep = staticmethod(anyio.sleep)

    def __init__(self) -> None:
        self.terminated = _Event()

    def terminate(self) -> None:
        """Lets connections end after their open streams."""
        self.terminated.set_now()

    async def mark_request(self) -> None:
        """Does nothing; Hypercorn counts requests here."""
