"""A promise that every test here checks: who completes an answer does not watch the client then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shoal.testing.asgi import Call

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def nobody_listens_to_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    calls: list[Call] = []
    make = Call.__init__

    def make_and_note(call: Call, *args, **kwargs) -> None:
        calls.append(call)
        make(call, *args, **kwargs)

    monkeypatch.setattr(Call, "__init__", make_and_note)
    yield
    assert [call for call in calls if call.listened_to_the_end] == []
