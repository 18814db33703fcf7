"""What a process serves, as an object."""

from __future__ import annotations

from shoal.commands.server.process import ServerProcess
from shoal.serving.http_options import HttpOptions


def test_the_token_is_not_shown():
    run = ServerProcess(app=None, spec="app:app", options=HttpOptions(token="s3cret"))
    assert "s3cret" not in repr(run)
