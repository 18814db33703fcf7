"""The rules of this test tree.

* A test marked ``anyio`` runs on trio and on asyncio, and in virtual time on both: time moves only
  when every task waits, at once, to the next deadline. So no test sleeps, and a wait of an hour is
  as good as one of a second. Where threads, processes or sockets take part virtual time would run
  ahead of them: such a test is marked ``real_time`` and waits for events, never for a time to pass.
* Warnings are errors, so an un-awaited coroutine or an unclosed stream fails the test that left it.
* A test that takes 20 s hangs, and fails.
* A handler that must be held waits on an event of the test.
"""

from __future__ import annotations

from typing import Any

import pytest

from shoal.testing import virtual_backend


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    if request.node.get_closest_marker("real_time") is not None:
        return request.param, {}
    return virtual_backend(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the soak tests out unless they are asked for with ``-m``."""
    if config.option.markexpr:
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    items[:] = [item for item in items if item not in soak]
    if soak:
        config.hook.pytest_deselected(items=soak)
