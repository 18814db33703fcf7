"""Handlers of scenes, for the tests of several folders."""

from collections.abc import Iterator

import pytest

from batching.scenes import Held, Recorder, Steps


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def steps() -> Iterator[Steps]:
    with Steps() as steps:
        yield steps
