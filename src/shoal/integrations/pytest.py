"""Fixtures for pytest: ``pytest_plugins = ["shoal.integrations.pytest"]`` in the root conftest.py.

There is no entry point, which would load this in every project that has Shoal installed, and put
all its tests with anyio into virtual time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shoal.batching.decorator.decorator import open_batchers
from shoal.testing import virtual_backend

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "real_time: runs on the real clock, for threads, processes and sockets (Shoal)"
    )


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Runs each test with the mark ``anyio`` on both event loops, in virtual time."""
    if request.node.get_closest_marker("real_time") is not None:
        return request.param, {}
    return virtual_backend(request.param)


@pytest.fixture
async def batchers() -> AsyncGenerator[None]:
    """Opens batched functions at their first call in a test."""
    async with open_batchers():
        yield
