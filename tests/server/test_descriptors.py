"""What a server says of its file descriptors, and what it does when they run out."""

from __future__ import annotations

import errno
import os
import resource

import anyio
import pytest

from shoal.server.connection_limit import Exhaustion, LimitedListener, check_descriptors


class Exhausted:
    """A bound socket, at which no descriptor is left for a client."""

    socket: Exhausted

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
