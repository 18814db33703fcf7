"""A connection's frames are read by the event loop itself where it can do that."""

import asyncio
import gc
import os
import selectors
import socket
import weakref
from collections.abc import Generator

import anyio
import pytest

from replicas.playing import made, playing
from shoal.replicas.process.wire.connection import FrameConnection
from shoal.replicas.process.wire.frames import FrameReader
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

BAD_KIND = b"\x63" + bytes(23)


@pytest.fixture
def ends() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def test_a_closed_connection_frees_its_buffer_at_once(ends):
    reader = FrameReader()
    alive = weakref.ref(reader)
    gc.disable()
    try:
        connection = FrameConnection(ends[0], reader)
        ends[1].sendall(BAD_KIND[1:])
        connection.read_available(lambda _: None)
        connection.close()
        del reader, connection
        assert alive() is None
    finally:
        gc.enable()


async def test_a_closed_connection_leaves_its_number_to_the_next_socket(ends):
    ours, theirs = ends
    number = ours.fileno()
    connection = FrameConnection(ours)
    if not connection.begin_reading(lambda _: None, lambda: None):
        pytest.skip("only tasks can read in this loop")
    connection.close()
    copied = os.dup2(theirs.fileno(), number)
    try:
        with anyio.fail_after(HANG_S):  # it is readable, as its other end is closed
            await anyio.wait_readable(copied)
    finally:
        os.close(copied)


class StrictSelector(selectors.DefaultSelector):
    """A selector that notes which files were closed while it watched them."""

    def __init__(self) -> None:
        super().__init__()
        self.closed_early: list[int] = []

    def unregister(self, fileobj):
        self.note(self.get_key(fileobj).fd)
        return super().unregister(fileobj)

    def close(self):
        for fd in self.get_map():
            self.note(fd)
        super().close()

    def note(self, fd):
        try:
            os.fstat(fd)
        except OSError:
            self.closed_early.append(fd)


@pytest.mark.parametrize("ending", ["stop", "die", "cancel every task"])
def test_no_socket_is_closed_while_the_loop_watches_it(ending):
    selector = StrictSelector()

    async def main() -> None:
        async with playing(made(), stop=ending == "stop") as played:
            await played.run("pid", [0])
            if ending == "die":
                with pytest.raises(Exception, match="exited with code 7"):
                    await played.run("exit", [7])
            elif ending == "cancel every task":
                for task in asyncio.all_tasks():
                    task.cancel()
                await anyio.sleep_forever()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        try:
            runner.run(main())
        except asyncio.CancelledError:
            assert ending == "cancel every task"
    assert selector.closed_early == []
