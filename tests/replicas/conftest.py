from __future__ import annotations

import pytest

from shoal.testing.replicas.code import Folder


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(str(tmp_path))
