"""What requests keep, and what is recorded of them, when they run again after a replica's death."""

from typing import Any

import anyio
import pytest

from serving.scenes import serving_tasks, slowly, under_way
from shoal import QueuePolicy


@pytest.mark.parametrize("death_at", [1, 2.5])
async def test_requests_left_the_queue_in_time_although_their_replica_dies(death_at: float) -> None:
    config: Any = {"retries": 1, "default_queue_policy": QueuePolicy(timeout_s=2)}
    async with serving_tasks(slowly, **config) as (_, handle, stage, tasks):
        [caller] = await under_way(tasks, handle.call(3.0))
        await anyio.sleep(death_at)

        async def start_late(_: Any) -> None:
            await anyio.sleep(2)

        stage.start = start_late
        stage.replicas[0].die()
        await anyio.sleep(10)
        assert caller.outcome == 3
