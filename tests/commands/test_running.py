"""What a process serves, as an object."""

from __future__ import annotations

import gc

from shoal.asgi.http_options import HttpOptions
from shoal.commands.server import process
from shoal.commands.server.process import ServerProcess


def test_the_token_is_not_shown():
    run = ServerProcess(app=None, spec="app:app", options=HttpOptions(token="s3cret"))
    assert "s3cret" not in repr(run)


def test_garbage_is_looked_for_less_often_unless_somebody_has_said_how_often(monkeypatch):
    before = gc.get_threshold()
    try:
        gc.set_threshold(700)
        monkeypatch.setattr(process, "_COLLECTED_AFTER", gc.get_threshold())
        process.collect_less_often()
        assert gc.get_threshold()[0] == 10_000
        gc.set_threshold(5)
        process.collect_less_often()
        assert gc.get_threshold()[0] == 5
    finally:
        gc.set_threshold(*before)
