"""Mutated connections: a few of those that `make fuzz` makes by the hundred thousand."""

from __future__ import annotations

import pytest
from fuzz_clients import PROTOCOLS
from hostile_server import CANARY, flaws_of_log
from mutated_run import run_mutated

pytestmark = pytest.mark.real_time

CONNECTIONS = 120


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_mutated_connections_leave_nothing_behind(server, protocol):
    found = run_mutated(server, CONNECTIONS, protocols=[protocol])
    assert found.connections == CONNECTIONS
    assert found.flaws() == []


@pytest.mark.slow
def test_a_clients_fault_is_one_line_without_what_the_client_sent(server):
    before = server.log_size()
    run_mutated(server, CONNECTIONS, seed=1)
    assert flaws_of_log(server.log()[before:]) == []


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        f"2026-11-23 08:00:00,000 INFO shoal.server: {CANARY}",
        "2026-11-23 08:00:00,000 INFO shoal.server: " + "x" * 201,
    ],
    ids=["traceback", "frame", "secret", "long"],
)
def test_what_should_not_be_in_a_log_is_found(line):
    good = "2026-11-23 08:00:00,000 ERROR shoal.server: an error ended a connection"
    assert flaws_of_log(f"{good}\n{line}\n{good}\n") == [line]
