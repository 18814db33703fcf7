"""The servers of these tests: one process for each event loop, and one with short timeouts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from hostile_server import LOOPS, SHORT_OPTIONS, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostile_server import HostileServer


class Servers:
    """Running servers, each started when it is first needed, and again if it has exited."""

    def __init__(self, folder, stack):
        self._folder = folder
        self._stack = stack
        self._running = {}

    def get(self, loop, *options):
        server = self._running.get((loop, options))
        if server is None or not server.is_up():
            running = serving(self._folder, *options, loop=loop)
            server = self._running[loop, options] = self._stack.enter_context(running)
        return server


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("hostile"), stack)


@pytest.fixture(params=LOOPS)
def server(servers: Servers, request: pytest.FixtureRequest) -> HostileServer:
    """A server with the options that it has by itself."""
    return servers.get(request.param)


@pytest.fixture(params=LOOPS)
def short_server(servers: Servers, request: pytest.FixtureRequest) -> HostileServer:
    """A server with 50 places, whose timeouts are a fraction of a second."""
    return servers.get(request.param, *SHORT_OPTIONS)
