"""The fixtures of several files."""

from pathlib import Path

import pytest

from batching.scene_fixtures import *  # noqa: F403
from serving.scenes import Stage


@pytest.fixture
def at(tmp_path: Path) -> str:
    """The address of a model server."""
    return f"unix:{tmp_path}/a"


@pytest.fixture
def also(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/b"


@pytest.fixture
def stage() -> Stage:
    return Stage()
