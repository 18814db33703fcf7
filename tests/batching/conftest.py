"""The fixtures of several files."""

import pytest

from batching.open_scenes import Kind
from batching.scene_fixtures import *  # noqa: F403


@pytest.fixture(params=[False, True], ids=["unary", "streams"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(streams=request.param)
