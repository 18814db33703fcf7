"""When the handler of an open batch in another process lets the tasks beside it run."""

from collections.abc import Coroutine
from typing import Any

import pytest

from shoal.core.request import NEVER
from shoal.replicas.process.child import open_batch
from shoal.replicas.process.child.open_batch import OpenWork
from shoal.replicas.process.wire.open_batch import OpenStart


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


def new_work() -> OpenWork:
    return OpenWork(OpenStart("model", True, 1, None), NEVER, [].append, lambda: None)


async def test_between_short_steps_others_run_every_10_ms(clock):
    work = new_work()
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
