"""How long `shoal stop` waits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shoal.cli import main
from shoal.commands import stop as stop_command
from shoal.commands.server.locations import ServerLocation, ServerLock


def test_asking_and_waiting_together_take_no_longer_than_allowed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    now = 100.0
    waits = []

    async def ask_to_end(location, timeout_s):
        nonlocal now
        now += timeout_s - 1
        raise TimeoutError("no answer")

    def wait(timeout_s):
        waits.append(timeout_s)
        return False

    monkeypatch.setattr(stop_command, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(stop_command, "_ask_to_end", ask_to_end)
    monkeypatch.setattr(stop_command, "_watched_end", lambda location: SimpleNamespace(wait=wait))
    with ServerLock(ServerLocation.of("default")):
        assert main(["stop", "--timeout", "5"]) == 1
    assert waits == [pytest.approx(1.0)]
    assert "no answer" in capsys.readouterr().err
