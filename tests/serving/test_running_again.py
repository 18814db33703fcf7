"""What requests keep, and what is recorded of them, when they run again after a replica's death."""

from typing import Any

import anyio
import pytest

from batching.scenes import Held, settle
from serving.scenes import serving_tasks, slowly, under_way
from shoal import QueuePolicy
from shoal.core.events import BatchObserver, BatchRecord
from shoal.errors import ReplicaDied


@pytest.mark.parametrize("death_at", [1, 2.5])
async def test_requests_left_the_queue_in_time_although_their_replica_dies(death_at: float) -> None:
    config: Any = {"retries": 1, "default_queue_policy": QueuePolicy(timeout_s=2)}
    async with serving_tasks(slowly, **config) as (_, handle, stage, tasks):
        [caller] = await under_way(tasks, handle.call(3.0))
        await anyio.sleep(death_at)

        async def start_late(_: Any) -> None:
            await anyio.sleep(2)

        stage.start = start_late
        await stage.lose(wait_s=10)
        assert caller.outcome == 3


async def test_a_death_in_a_backend_that_drops_its_queue_fails_its_requests(caplog):
    held = Held()
    config: Any = {"retries": 1, "num_replicas": 2, "drop_queued_on_shutdown": True}
    async with serving_tasks(held, **config) as (controller, handle, stage, tasks):
        [caller] = await under_way(tasks, handle.call(0))
        tasks.start_soon(controller.shutdown)
        await settle()
        await stage.lose()
        assert isinstance(caller.outcome, ReplicaDied)
        assert "run again" not in caplog.text


async def test_the_record_of_a_batch_has_the_death_that_put_its_requests_back(held: Held) -> None:
    records: list[BatchRecord] = []

    class Observer(BatchObserver):
        def batch_ended(self, record: BatchRecord, requests: Any) -> None:
            records.append(record)

    config: Any = {"retries": 1, "num_replicas": 2}
    async with serving_tasks(held, **config) as (controller, handle, stage, tasks):
        controller.observers.add(Observer())
        await under_way(tasks, handle.call(0))
        stage.replicas[0].die()
        await held.release()
    assert [(type(one.error), one.retried) for one in records] == [
        (ReplicaDied, 1),
        (type(None), 0),
    ]
