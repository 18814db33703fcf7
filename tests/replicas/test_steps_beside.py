"""Items of a plain generator are passed on while its next step runs, where the steps wait."""

import threading

import anyio
import pytest

from batching.scenes import read_all
from replicas.plain_generators import calls_of, pretend
from shoal.testing import settle

pytestmark = pytest.mark.real_time

STEPS = 5


class Beside:
    """A plain generator, and a reader that passes its items on."""

    def __init__(self, *, waits):
        self._waits = waits
        self._begun = [threading.Event() for _ in range(STEPS + 1)]
        self.given = []
        # Each item that was passed on, and whether the next step had begun by then.
        self.taken = []

    def handler(self, items: list[str]):
        self.given = list(items)
        for nth in range(STEPS):
            self._begun[nth].set()
            yield [nth] * len(items)
        self._begun[STEPS].set()

    def take(self, item):
        has_begun = self._begun[item + 1].wait(10 if self._waits else 0)
        self.taken.append((item, has_begun))
        return True


@pytest.mark.parametrize("placement", ["task", "thread"])
@pytest.mark.parametrize(
    ("waits", "readers"), [(True, 4), (False, 4), (True, 1)], ids=["waits", "computes", "for one"]
)
async def test_items_are_passed_on_while_the_next_step_waits(
    monkeypatch, placement, waits, readers
):
    pretend(monkeypatch, waits=waits)
    beside = Beside(waits=waits)
    options = {"max_batch_size": readers, "batch_wait_timeout_s": 60}
    async with (
        calls_of(beside.handler, placement, **options) as call,
        anyio.create_task_group() as tasks,
    ):
        read = await read_all(tasks, *[call("x") for _ in range(readers - 1)])
        async with call("x") as stream:
            stream.pass_on(beside.take)
            assert [item async for item in stream] == []
    assert len(beside.given) == readers
    assert [reader.items for reader in read] == [[0, 1, 2, 3, 4]] * (readers - 1)
    assert beside.taken == [(nth, waits) for nth in range(STEPS)]


async def test_items_are_passed_on_although_another_reader_holds_the_next_step_up(monkeypatch):
    pretend(monkeypatch, waits=True)
    taken = []
    options = {"max_batch_size": 2, "batch_wait_timeout_s": 60, "stream_buffer": 2}
    async with (
        calls_of(Beside(waits=True).handler, "task", **options) as call,
        call("slow") as slow,
        call("x") as stream,
        anyio.create_task_group() as tasks,
    ):
        stream.pass_on(lambda item: taken.append(item) is None)
        [reader] = await read_all(tasks, stream)
        while len(slow.request.waiter.items) < 2:
            await anyio.lowlevel.checkpoint()
        await settle()
        assert taken == [0, 1]
        assert [item async for item in slow] == [0, 1, 2, 3, 4]
    assert taken == [0, 1, 2, 3, 4]
    assert reader.items == []
