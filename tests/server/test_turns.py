"""The turns of connections: few go on at once, the others in later passes, in their order."""

from types import SimpleNamespace

import anyio
import h2.events
import pytest
from echo_app import EchoApp
from live_server import http2, live

from shoal.loops.this_loop import parking_of_this_loop
from shoal.loops.timers import LoopTimers
from shoal.server.shared import Turns
from shoal.server.streams import connection
from shoal.server.streams.http2 import Http2Connection
from shoal.server.timeouts import Timeout
from shoal.testing import settle

AT_ONCE = 4
EXPIRED_AT_ONCE = 16


@pytest.fixture
def clock():
    return SimpleNamespace(time=0.0)


@pytest.fixture
async def turns(clock):
    async with anyio.create_task_group() as tasks:
        yield Turns(tasks, lambda: clock.time)


async def most_at_once(taken, count):
    """The most that are taken in one pass of the event loop, until so many are."""
    most = 0
    while (before := len(taken)) < count:
        await anyio.lowlevel.checkpoint()
        # Trio shuffles the tasks of a pass, so there may be two of the others' passes in one here.
        most = max(most, (len(taken) - before + 1) // 2)
    return most


async def test_few_are_taken_at_once_and_the_others_in_their_order(turns):
    taken = []
    for number in range(6 * AT_ONCE):
        turns.take(lambda number=number: taken.append(number))
    assert taken == list(range(AT_ONCE))
    assert await most_at_once(taken, 6 * AT_ONCE) <= AT_ONCE
    assert taken == list(range(6 * AT_ONCE))


async def test_what_a_turn_asks_for_waits_behind_the_others(turns, clock):
    taken = []

    def first():
        clock.time += 1.0
        turns.take(lambda: taken.append("again"))
        taken.append("first")

    for _ in range(AT_ONCE):
        turns.take(lambda: taken.append("earlier"))
    turns.take(first)
    turns.take(lambda: taken.append("second"))
    await settle()
    assert taken[AT_ONCE:] == ["first", "second", "again"]


async def test_after_a_while_turns_are_taken_at_once_again(turns, clock):
    taken = []
    for number in range(AT_ONCE):
        turns.take(lambda number=number: taken.append(number))
    clock.time += 0.002
    turns.take(lambda: taken.append("later"))
    assert taken[-1] == "later"


async def test_timeouts_that_pass_together_end_few_connections_at_once():
    timeouts = LoopTimers(parking_of_this_loop())
    expired = []
    for number in range(6 * EXPIRED_AT_ONCE):
        Timeout(timeouts, lambda number=number: expired.append(number)).set(0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timeouts.run)
        assert await most_at_once(expired, 6 * EXPIRED_AT_ONCE) <= EXPIRED_AT_ONCE
        tasks.cancel_scope.cancel()
    assert expired == list(range(6 * EXPIRED_AT_ONCE))


@pytest.fixture
def handled(monkeypatch):
    sizes = []
    handle = Http2Connection._handle

    async def noted(self, data):
        sizes.append(len(data))
        await handle(self, data)

    monkeypatch.setattr(Http2Connection, "_handle", noted)
    return sizes


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("turn_s", "last_size"), [(0.0, 2**10), (1e9, 2**16)], ids=["slow", "quick"]
)
async def test_how_much_a_turn_handles_depends_on_its_time(turn_s, last_size, handled, monkeypatch):
    monkeypatch.setattr(connection, "_TURN_S", turn_s)
    async with live(EchoApp()) as server, http2(server) as client:
        for _ in range(2**13):  # 136 KiB
            client.connection.ping(bytes(8))
        sent = client.connection.data_to_send()

        async def read():
            answered = 0
            while answered < 2**13:
                for event in client.connection.receive_data(await client.stream.receive_some()):
                    answered += isinstance(event, h2.events.PingAckReceived)
                client.connection.data_to_send()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await client.stream.send_all(sent)
    assert sum(handled) >= len(sent)
    if turn_s:
        assert max(handled) > 2**12  # as much as there is, which the kernel decides
    else:
        assert handled.count(last_size) > len(sent) // last_size - 20
    assert max(handled) <= 2**16
