"""The event loops that tests run on, and one that all tests of a file share."""

import asyncio
from typing import Any

import pytest
import sniffio

from shoal.testing import virtual_backend


def backend_of(name: str, is_in_real_time: bool) -> tuple[str, dict[str, Any]]:
    """What anyio's plugin runs a test with."""
    if name == "uvloop":
        return "asyncio", {"use_uvloop": True}
    backend, options = (name, {}) if is_in_real_time else virtual_backend(name)
    if backend == "asyncio":
        options = {"loop_factory": untold(options.get("loop_factory", asyncio.new_event_loop))}
    return backend, options


def untold(new_loop: Any) -> Any:
    """Makes event loops whose callbacks and tasks are not told which library runs them."""

    def make() -> asyncio.AbstractEventLoop:
        # The runner told this context before it made its loop, and copies it for what runs there.
        sniffio.current_async_library_cvar.set(None)
        return new_loop()

    return make


@pytest.fixture(scope="module", name="anyio_backend")
def one_loop_for_the_file(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Has all tests of the file that imports it run on one event loop.

    So a fixture of the whole file can be asynchronous, such as a running application. It names this
    one as a parameter, so that it ends before the next loop. All tests of the file are in real
    time, or none.
    """
    is_in_real_time = request.node.get_closest_marker("real_time") is not None
    return backend_of(request.param, is_in_real_time)
