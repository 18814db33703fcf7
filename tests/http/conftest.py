"""An application whose answers are held, and a promise that every test here checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from held_app import Held

import shoal
from shoal.testing.asgi import Call

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def app(held: Held) -> shoal.App:
    """An application with one endpoint, whose handler is held."""
    app = shoal.App()
    app.endpoint("/held", name="held", max_batch_size=100)(held)
    return app


@pytest.fixture(autouse=True)
def nobody_listens_to_the_end(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Who completes an answer does not watch the client then."""
    if request.node.get_closest_marker("soak") is not None:
        yield  # it measures what is kept
        return
    calls: list[Call] = []
    make = Call.__init__

    def make_and_note(call: Call, *args, **kwargs) -> None:
        calls.append(call)
        make(call, *args, **kwargs)

    monkeypatch.setattr(Call, "__init__", make_and_note)
    yield
    assert [call for call in calls if call.listened_to_the_end] == []
