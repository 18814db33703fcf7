"""What Hypercorn's protocols need of a server, for either event loop."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
from hypercorn.config import Config

if TYPE_CHECKING:
    from shoal.serving.http_options import HttpOptions


def hypercorn_config(options: HttpOptions) -> Config:
    """Returns the configuration for Hypercorn's protocols."""
    hypercorn = Config()
    hypercorn.errorlog = logging.getLogger("shoal.server")
    hypercorn.accesslog = None
    hypercorn.include_server_header = False
    hypercorn.keep_alive_timeout = options.keep_alive_timeout_s
    return hypercorn


class _Event:
    """An event with the interface that Hypercorn's protocols use, for either event loop."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    async def clear(self) -> None:
        self._event = anyio.Event()

    async def set(self) -> None:
        self._event.set()

    def set_now(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()

    def is_set(self) -> bool:
        return self._event.is_set()


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
