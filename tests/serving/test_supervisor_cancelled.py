"""A supervisor whose nursery is cancelled must not start replicas for ever (serving/supervisor.py).

`_keep`'s finally calls `_has_ended` -> `_reconcile` -> `_start` -> `start_soon` in the cancelled
nursery; the new task is cancelled at its first checkpoint, and starts the next one.
"""

from types import SimpleNamespace

import anyio
import pytest

from shoal.serving.pool import Pool
from shoal.serving.supervisor import Supervisor


class Fake:
    made = 0

    def __init__(self) -> None:
        Fake.made += 1
        assert Fake.made < 100, "it starts replicas for ever"
        self.tag = f"b#{Fake.made}"

    async def serve(self, *, task_status) -> None:
        task_status.started(SimpleNamespace(methods={"__call__": SimpleNamespace(batched=True)}))
        await anyio.sleep_forever()

    def kill(self, reason: str) -> None: ...
    def stop(self) -> None: ...


@pytest.mark.anyio
async def test_a_supervisor_whose_nursery_is_cancelled_ends() -> None:
    Fake.made = 0
    config = SimpleNamespace(
        num_replicas=1,
        max_ongoing_requests=None,
        user_config=None,
        health_check_period_s=10,
        slots=lambda batched: 1,
        max_batches_per_replica=None,
        autoscaling=None,
        batching={},
        replica=SimpleNamespace(max_memory_bytes=None, cancel_grace_s=1),
    )
    async with anyio.create_task_group() as tasks:
        supervisor = Supervisor(
            "b", lambda number, config: Fake(), Pool("b", lambda member: None), config, tasks
        )
        supervisor.begin()
        await supervisor.first_ready()
        tasks.cancel_scope.cancel()
    assert Fake.made == 1
