"""The worker's side: its threads with plain code, and the tasks beside an open batch."""

import socket
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from replicas.process_backends import Plain
from shoal.core.request import NEVER
from shoal.replicas.code.definition import Definition
from shoal.replicas.code.endpoint_call import CallOut
from shoal.replicas.code.instance import Instance
from shoal.replicas.process.child import open_batch
from shoal.replicas.process.child.calls import CallAnswers
from shoal.replicas.process.child.control import Control, ThreadsafeDraining
from shoal.replicas.process.child.endpoints import ParentChannel
from shoal.replicas.process.child.open_batch import OpenWork
from shoal.replicas.process.child.sync_loop import SyncWork
from shoal.replicas.process.wire.frames import Frame, FrameKind, FrameReader, receive, send
from shoal.replicas.process.wire.messages import MessageCodec, packed
from shoal.replicas.process.wire.open_batch import OpenStart
from time_limits import HANG_S


@pytest.fixture
def ends(tmp_path):
    data, ours = socket.socketpair()
    control, watched = socket.socketpair()
    ours.settimeout(HANG_S)
    instance = Instance(Definition(Plain, (str(tmp_path),)))
    work = SyncWork(
        CallAnswers(MessageCodec(), instance, ThreadsafeDraining()),
        Control(control),
        data,
        FrameReader(),
    )
    worker = threading.Thread(target=work.run)
    worker.start()
    yield ours, FrameReader()
    send(ours, MessageCodec().frame(FrameKind.CLOSE, 0))
    worker.join(HANG_S)
    for sock in (data, ours, control, watched):
        sock.close()


def test_a_stream_that_was_cancelled_while_another_waited_does_not_wait_for_its_reader(ends):
    # The control channel, which would say so as well, is read by a thread that may be late.
    ours, reader = ends

    def tell(kind: FrameKind, id_: int, content: object = None) -> None:
        send(ours, MessageCodec().frame(kind, id_, packed(content)))

    def heard(id_: int) -> list[FrameKind]:
        kinds = []
        while not kinds or kinds[-1] is not FrameKind.END:
            frame = receive(ours, reader)
            assert frame is not None
            assert frame.id == id_
            kinds.append(frame.kind)
        return kinds

    tell(FrameKind.STREAM, 1, ("count", [5], None))
    for _ in range(4):
        assert receive(ours, reader).kind is FrameKind.PART
    tell(FrameKind.STREAM, 2, ("count", [1000], None))
    tell(FrameKind.CANCEL, 2)
    tell(FrameKind.CREDIT, 1, 4)
    assert heard(1) == [FrameKind.PART, FrameKind.END]
    assert heard(2)[-1] is FrameKind.END


def test_a_map_of_calls_keeps_nothing_of_those_that_have_ended():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        control = Control(theirs)
        channel = ParentChannel(control)

        def calls():
            for item in ("a", threading.Lock(), "b"):  # the second one can't be sent
                yield CallOut("other", (item,))
            for id_ in (3, 1):
                body = b"".join(packed(f"of {id_}").parts)
                control.on_answer(Frame(FrameKind.RESULT, id_, body, None, [], ()))

        outcomes = channel.call_each(calls(), most=9)
        assert next(outcomes) == ("of 1", None)
        [_, error] = next(outcomes)
        assert "can't be sent between processes" in str(error)
        assert list(outcomes) == [("of 3", None)]
        assert channel._takers == {}


def lets_others_run(step: Coroutine[Any, Any, None]) -> bool:
    try:
        step.send(None)
    except StopIteration:
        return False
    step.close()
    return True


@pytest.fixture
def clock(monkeypatch):
    times = [100.0]
    monkeypatch.setattr(open_batch, "perf_counter", lambda: times[-1])
    return times


async def test_between_short_steps_others_run_every_10_ms(clock):
    work = OpenWork(OpenStart("model", True, 1, None), NEVER, [].append, lambda: None)
    await work.pause()
    assert not lets_others_run(work.pause())
    assert not lets_others_run(work.send([]))
    clock.append(100.009)
    assert not lets_others_run(work.send([]))
    clock.append(100.010)
    assert lets_others_run(work.send([]))
    await work.send([])
    assert not lets_others_run(work.pause())
    clock.append(100.030)
    assert lets_others_run(work.pause())
    await work.pause()
    assert not lets_others_run(work.send([]))
