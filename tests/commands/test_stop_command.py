"""How long `shoal stop` waits."""

from types import SimpleNamespace

import pytest

from shoal.cli import main
from shoal.commands import named
from shoal.commands.server.client import ServerLocation, being_server


def test_asking_and_waiting_together_take_no_longer_than_allowed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    now = 100.0

    async def ask_to_end(location, timeout_s):
        nonlocal now
        now += timeout_s - 1
        raise TimeoutError("no answer")

    def sleep(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(named, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    monkeypatch.setattr(named, "_ask_to_end", ask_to_end)
    with being_server(ServerLocation("default")):
        assert main(["stop", "--timeout", "5"]) == 1
    assert now == pytest.approx(105.0, abs=0.1)
    assert "no answer" in capsys.readouterr().err
