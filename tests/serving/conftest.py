"""The fixtures of several files."""

import pytest

from batching.scene_fixtures import *  # noqa: F403
from serving.scenes import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()
