"""The fixtures of several files."""

from collections.abc import Iterator

import pytest

from batching.open_scenes import Kind
from batching.scenes import Held, Recorder, Steps


@pytest.fixture(params=[False, True], ids=["unary", "streams"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(streams=request.param)


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
