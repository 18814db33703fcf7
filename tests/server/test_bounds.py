"""Bounds that protect a server from its clients: of bodies, turns and file descriptors."""

import errno
import os
import resource
from types import SimpleNamespace

import anyio
import h2.events
import pytest
from echo_app import EchoApp
from live_server import http2, live

from handlers import app_of, ask_once
from shoal.loops.this_loop import parking_of_this_loop
from shoal.loops.timers import LoopTimers
from shoal.server.connection_limit import Exhaustion, LimitedListener, check_descriptors
from shoal.server.shared import Turns
from shoal.server.streams import connection
from shoal.server.streams.http2 import Http2Connection
from shoal.server.timeouts import Timeout
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling


async def length(bodies: list[bytes]) -> list[int]:
    return [len(body) for body in bodies]


def measuring(**settings):
    return app_of(length, "/length", settings=settings)


async def answer_to(app, first, *others, is_whole=True):
    """What is answered to a body in pieces."""
    call = Call(app, "/length", whole=False, body=first)
    for piece in others:
        call.give(piece, more=True)
    if is_whole:
        call.give(b"", more=False)
    async with app.lifespan():
        await call.run()
    return call.answer


@pytest.fixture
def app():
    return measuring(max_body_bytes=10_000)


async def test_a_body_of_just_the_limit_is_read(app):
    assert (await ask_once(app, "/length", body=b"x" * 10_000)).json() == 10_000


async def test_pieces_are_joined(app):
    assert (await answer_to(app, b"12", b"", b"345")).json() == 5


async def test_a_large_content_length_is_refused_before_anything_is_read(app):
    call = Call(app, "/length", whole=False, headers=[("content-length", "10001")])
    async with app.lifespan():
        await call.run()
    assert call.answer.status == 413
    assert not call.is_listening


@pytest.mark.parametrize("length", ["-1", "rubbish", "²", "9" * 5000])
async def test_a_strange_content_length_does_no_harm(app, length):
    answer = await ask_once(app, "/length", body=b"12", headers=[("content-length", length)])
    assert answer.status in (200, 413)


async def test_a_body_that_grows_too_large_is_refused_while_it_is_read(app):
    call = Call(app, "/length", whole=False, body=b"x" * 10_000)
    async with app.lifespan(), calling(call):
        await settle()
        assert call.sent == []
        call.give(b"x", more=True)
        await call.returned.wait()
    assert call.answer.status == 413
    assert call.answer.json()["type"] == "urn:shoal:problem:body-too-large"


async def test_a_body_byte_by_byte_is_refused(app):
    answer = await answer_to(app, *[b"x"] * 1100, is_whole=False)
    assert answer.status == 413
    assert answer.json()["type"] == "urn:shoal:problem:body-too-fragmented"


async def test_a_large_body_in_packets_is_read():
    assert (await answer_to(measuring(), *[b"x" * 1400] * 4000)).json() == 4000 * 1400


@pytest.fixture
def narrow():
    return measuring(max_body_bytes=100, max_incomplete_bytes=200)


def incomplete(app, client, size=80):
    call = Call(app, "/length", whole=False, body=b"x" * size)
    call.scope["client"] = client
    return call


async def test_incomplete_bodies_are_bounded_for_all_clients_together(narrow):
    held = [incomplete(narrow, ("10.0.0.1", port)) for port in (1, 2)]
    late = incomplete(narrow, ("10.0.0.1", 3))
    async with narrow.lifespan(), calling(*held):
        await settle()
        await late.run()
        for call in held:
            call.give(b"y", more=False)
            await call.returned.wait()
    assert late.answer.status == 503
    assert late.answer.json()["type"] == "urn:shoal:problem:too-many-incomplete-bodies"
    assert dict(late.answer.headers)["retry-after"] == "1"
    assert [call.answer.json() for call in held] == [81, 81]


async def test_incomplete_bodies_are_bounded_for_one_connection(narrow):
    held = incomplete(narrow, ("10.0.0.1", 1))
    late, other = incomplete(narrow, ("10.0.0.1", 1)), incomplete(narrow, ("10.0.0.1", 2))
    async with narrow.lifespan(), calling(held, other):
        await settle()
        await late.run()
        for call in (held, other):
            call.give(b"y", more=False)
            await call.returned.wait()
    assert [held.answer.json(), late.answer.status, other.answer.json()] == [81, 503, 81]


async def test_bodies_that_are_complete_or_dropped_do_not_count(narrow):
    async with narrow.lifespan():
        for _ in range(10):
            assert (await ask(narrow, "/length", body=b"x" * 80)).json() == 80
            too_large = incomplete(narrow, ("10.0.0.1", 1), size=101)
            await too_large.run()
            assert too_large.answer.status == 413


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


class Exhausted:
    """A bound socket, at which no descriptor is left for a client."""

    def __init__(self):
        self.socket = self

    def accept(self):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_exhaustion_is_logged_once_a_minute_for_all_addresses(caplog):
    exhaustion = Exhaustion()
    with anyio.move_on_after(150):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                listener = LimitedListener(Exhausted(), 1, exhaustion)
                tasks.start_soon(listener.accept)
    line = (
        "can't accept connections at the moment: Too many open files; new connections wait. This"
        " is logged once a minute."
    )
    assert caplog.messages == [line] * 3


@pytest.mark.parametrize(
    ("spare", "is_said"), [(99, True), (100, False)], ids=["too few", "just enough"]
)
def test_too_few_descriptors_are_said_at_the_start(spare, is_said, monkeypatch, caplog):
    monkeypatch.setattr(os, "listdir", lambda _: ["0", "1", "2"])
    monkeypatch.setattr(resource, "getrlimit", lambda _: (spare + 3, 5000))
    check_descriptors(100)
    line = (
        "this process may open 102 files, but --max-connections 100 needs 103: raise the limit"
        " (ulimit -n), or lower --max-connections"
    )
    assert caplog.messages == [line] * is_said


def test_no_limit_is_enough(monkeypatch, caplog):
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (unlimited, unlimited))
    check_descriptors(10**9)
    assert caplog.messages == []
