"""The end: every request that the server took is answered, or its client is told otherwise."""

from __future__ import annotations

import pytest
from hostile_server import LOOPS, serving
from protocol_clients import Answer
from termination_run import accepted_late, cut_off, run_termination

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


@pytest.mark.parametrize(
    ("loop", "seed"), [("trio", 0), ("asyncio", 1), ("trio", 2), ("asyncio", 3)]
)
def test_a_signal_under_load_loses_no_request(tmp_path, loop, seed):
    with serving(tmp_path, loop=loop) as server:
        found = run_termination(server, seed=seed)
    assert found.flaws() == []
    assert len(found.began) > 10


@pytest.fixture(scope="module", params=LOOPS)
def ends(request, tmp_path_factory):
    """What clients got whose requests outlasted the graceful time, by their kind."""
    folder = tmp_path_factory.mktemp("end")
    with serving(folder, "--graceful-timeout", "0.3", loop=request.param) as server:
        found = cut_off(server)
    assert server.process.returncode == 0
    return found


@pytest.mark.parametrize("kind", ["stream", "HTTP/2 stream"])
def test_a_stream_that_is_cut_off_gets_its_error_event(ends, kind):
    assert isinstance(ends[kind], Answer)
    assert b'{"error":' in ends[kind].body.splitlines()[-1]


def test_a_call_that_is_cut_off_is_answered_with_503(ends):
    assert isinstance(ends["call"], Answer)
    assert ends["call"].status == 503


def test_a_websocket_is_told_that_the_server_restarts(ends):
    assert ends["WebSocket"] == 1012


@pytest.mark.parametrize("loop", LOOPS)
def test_a_websocket_that_is_accepted_late_is_told_too(tmp_path, loop):
    with serving(tmp_path, "--graceful-timeout", "1", loop=loop) as server:
        assert accepted_late(server) == 1012
