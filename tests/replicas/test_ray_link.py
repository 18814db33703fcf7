"""The connections between a program and an actor, without a cluster."""

import errno
import select
import socket
from concurrent.futures import Future
from typing import Any

import anyio
import pytest

from worker_processes import until

pytest.importorskip("ray")

from shoal.loops.event_loop import EventLoop
from shoal.replicas.ending import Ending
from shoal.replicas.ray.actor import STOPPED, _Listener
from shoal.replicas.ray.link import Link
from shoal.replicas.ray.placing import NewActor
from shoal.replicas.remote.handshake import receive

TOKEN = "t" * 40
# Of the kernel's record of a connection.
CLOSED = 7
BACKOFF = 4


def probes(sock: socket.socket) -> int:
    """Returns how often the kernel has asked whether the other end reads again, or gave up."""
    state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return 99 if state[0] == CLOSED else state[BACKOFF]


async def attached(link: Link, ending: Future[str]) -> list[Any]:
    """Attaches a link to an actor that is in this process; returns the actor's sockets."""
    listener = _Listener(TOKEN)
    ready: Future[Any] = Future()
    ready.set_result(("node", listener.address))
    soon = EventLoop.here().soon
    actor = NewActor(None, TOKEN, ready, Future(), ending)
    link.own(actor, soon)
    actor_ends: list[Any] = []

    async def accept() -> None:
        actor_ends.extend(await listener.connected())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(accept)
        await link.attach(actor, soon)
    return actor_ends


@pytest.mark.real_time
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such limit")
@pytest.mark.parametrize("sender", ["program", "actor"])
async def test_a_reader_that_pauses_for_long_loses_no_connection(sender, monkeypatch):
    monkeypatch.setattr("shoal.replicas.remote.sockets._UNACKNOWLEDGED_MS", 100)
    link = Link(Ending("model#7"), 1.0, list)
    actor_ends = await attached(link, Future())
    data, reader = link.sockets[0], actor_ends[0]
    if sender == "actor":
        data, reader = reader, data
    data.setblocking(False)
    reader.setblocking(False)
    sent = 0
    while select.select([], [data], [], 0.0)[1]:
        sent += data.send(bytes(2**20))
    await until(lambda: probes(data) >= 3)
    assert await receive(reader, sent) == bytes(sent)
    for sock in actor_ends:
        sock.close()
    link.close()


async def test_an_actor_that_can_not_accept_tries_again_later(monkeypatch):
    monkeypatch.setattr("shoal.replicas.ray.actor._RETRY_S", 1000.0)
    listener = _Listener(TOKEN)
    attempts: list[str] = []

    class Full:
        """Of a process with as many open files as it may have."""

        def fileno(self) -> int:
            return listening.fileno()

        def accept(self) -> Any:
            attempts.append("accept")
            raise OSError(errno.EMFILE, "Too many open files")

    listening, listener._socket = listener._socket, Full()  # type: ignore[assignment]
    with socket.create_connection((listener.address.host, listener.address.port)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.connected)
            await until(lambda: bool(attempts))
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    listening.close()
    assert attempts == ["accept"]


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("is_closing", "said", "how"),
    [
        (True, STOPPED, "was stopped"),
        (False, STOPPED, "was lost: its connection was closed"),
        (False, f"{STOPPED}:\nTraceback ...", "was lost: its connection was closed"),
        (False, "was killed: its code raised Panic", "was killed: its code raised Panic"),
    ],
)
async def test_an_actor_that_stops_unasked_was_lost(is_closing: bool, said: str, how: str) -> None:
    ending: Future[str] = Future()
    replica = Ending("model#7")
    if is_closing:
        replica.stop()
    link = Link(replica, 1.0, list)
    actor_ends = await attached(link, ending)
    ending.set_result(said)
    await link.ended.wait()
    assert str(replica.death()) == f"model#7 {how}"
    for sock in actor_ends:
        sock.close()
    link.close()
