"""What the tests of commands share."""

from __future__ import annotations

import pytest
from processes import Terminal


@pytest.fixture
def terminal(tmp_path):
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()
