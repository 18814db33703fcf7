"""Short forms of the runs of `make fuzz`, on one server for each event loop.

They are in one file, since each worker of pytest-xdist would start servers of its own.
"""

import itertools
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from agreed import HANG_S
from checksum_run import CLIENTS, run_checksums
from floods import FLOODS
from good_client import request
from held_places import HOLDERS, MOST_MEMORY, STATES, WAYS, hold_places, leave, leave_queue, ways_of
from hostile_server import (
    CANARY,
    LOOPS,
    SHORT_OPTIONS,
    SHORT_S,
    HostileServer,
    flaws_of_log,
    serving,
)
from mutated_run import run_mutated
from overload_run import REFUSED, ask_while_blocked, run_overload
from termination_run import run_termination

Starts = Callable[..., HostileServer]

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

FLOOD_SIZES = {"connections": 250, "resets": 1_000, "chunks": 20_000}
# A client may hold its place for three times the short timeouts: its stream, its connection and its
# socket are given up one after the other. A busy machine is late.
WITHIN_S = HANG_S

names = (f"leaving-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Finds a running server, or starts one if there is none yet, or if it has exited."""
    folder = tmp_path_factory.mktemp("hostile")
    servers: dict[tuple[str, ...], HostileServer] = {}
    with ExitStack() as stack:

        def find(loop: str, *options: str) -> HostileServer:
            key = (loop, *options)
            if key not in servers or not servers[key].is_up():
                servers[key] = stack.enter_context(serving(folder, *options, loop=loop))
            return servers[key]

        yield find


@pytest.fixture(params=LOOPS)
def server(running, request):
    """A server with the options that it has by itself."""
    return running(request.param)


@pytest.fixture(params=LOOPS)
def short_server(running, request):
    """A server with 50 places, whose timeouts are a fraction of a second."""
    return running(request.param, *SHORT_OPTIONS)


def test_each_answer_is_that_to_its_own_request(server):
    kinds = tuple(kind for kind in CLIENTS if kind != "pipelined")
    assert run_checksums(server, 600, kinds=kinds).flaws() == []


def test_each_of_many_pipelined_requests_is_answered(server):
    assert run_checksums(server, 200, kinds=("pipelined",)).flaws() == []


def test_planted_defects_are_found(tmp_path):
    with serving(tmp_path, plant="leak, mix-up") as defective:
        found = " ".join(run_checksums(defective, 300, kinds=("kept", "websocket")).flaws())
    assert "the memory grew" in found
    assert "answers were wrong" in found


@pytest.mark.parametrize("kind", FLOODS)
def test_in_a_flood_others_are_served_and_nothing_is_left(server, kind):
    assert FLOODS[kind](server, FLOOD_SIZES[kind]).flaws() == []
    assert server.is_up()


def test_mutated_connections_leave_nothing_behind_and_a_fault_is_one_line_of_the_log(server):
    found = run_mutated(server, 360)
    assert found.connections == 360
    assert found.flaws() == found.log_flaws == []


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


# Clients that leave: the handler of their request is cancelled, whatever the state.


@pytest.mark.parametrize(
    ("state", "way"), [(state, way) for state in STATES for way in ways_of(state)]
)
def test_a_client_that_leaves_ends_its_handler(server, state, way):
    assert leave(server, state, way, next(names)) is not None


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_the_queue_never_reaches_the_handler(server, way):
    assert leave_queue(server, way, next(names)) is not None


def test_a_client_that_has_left_before_its_call_begins_is_no_error(server):
    before = server.log_size()
    with server.connect() as blocker:
        blocker.sendall(b"GET /raw/block?300 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with server.connect() as client:
            client.sendall(request("/sum", "left"))
        assert blocker.recv(2**16)
    assert server.ask("POST", "/sum", "behind")[0] == 200
    assert flaws_of_log(server.log()[before:]) == []


# Overload: each request that the kernel has accepted gets an answer, and the memory stays flat.


@pytest.mark.parametrize("path", ["/slow", "/busy"])
def test_at_three_times_its_capacity_it_answers_or_refuses_each_request(server, path):
    # On a busy machine requests come later than they should, so more of them at once.
    for times_capacity in (3, 12, 48, 192):
        found = run_overload(server, 100, path=path, times_capacity=times_capacity)
        assert found.flaws() == []
        assert found.statuses[200] > 0
        if any(found.statuses[status] for status in REFUSED):
            break
    assert len(found.statuses) > 1
    after = run_overload(server, 10, path=path, times_capacity=0.25)
    assert after.flaws() == []
    assert after.statuses.keys() == {200}


def test_what_was_sent_while_the_loop_was_held_is_answered(short_server):
    assert ask_while_blocked(short_server, 10, 2 * SHORT_S) == []


def test_no_client_holds_a_place_for_ever_and_the_others_are_served(short_server):
    held = hold_places(short_server, list(HOLDERS), 3, within_s=WITHIN_S, trickle_s=SHORT_S / 6)
    assert held.kept.total() == 0, held.kept
    assert held.first_s is not None, "who came when all places were held was not served"
    assert held.failure == ""
    assert held.good_s
    assert held.grown < MOST_MEMORY


# The last test ends the servers of all the others.
@pytest.mark.parametrize(("loop", "seed"), [("trio", 2), ("asyncio", 3)])
def test_a_signal_under_load_loses_no_request(running, loop, seed):
    found = run_termination(running(loop), seed=seed)
    assert found.flaws() == []
    assert len(found.began) > 10
