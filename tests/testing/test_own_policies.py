"""A user's policy in a batcher: a policy that passes the check works there."""

from collections.abc import Sequence

import anyio

import shoal
from batching.scenes import LEFT, line_up
from shoal.core.options.options import BatchOptions
from shoal.core.policy import Pressure, Wait, WholeQueuePolicy
from shoal.core.request import DispatchReason, Request
from shoal.testing import ScriptedHandler, settle


class EvenBeforeOdd(WholeQueuePolicy):
    """Dispatches even numbers at once; odd ones only under pressure, when no even ones wait."""

    def __init__(self, options: BatchOptions) -> None:
        super().__init__()
        self.size = options.max_batch_size

    def choose(
        self, queue: Sequence[Request], now: float, pressure: Pressure | None
    ) -> tuple[Sequence[Request], DispatchReason] | Wait:
        even = [request for request in queue if request.item % 2 == 0]
        if even:
            return even[: self.size], DispatchReason.FULL
        return Wait(None) if pressure is None else (queue[: self.size], pressure.reason)


async def test_who_leaves_while_a_batch_is_taken_is_not_in_it():
    handler: ScriptedHandler[int, int] = ScriptedHandler()
    batcher = shoal.Batcher(handler, policy=EvenBeforeOdd, max_batch_size=3)
    async with batcher as call, anyio.create_task_group() as tasks:
        stays, leaves = await line_up(tasks, call(1), call(3))
        await settle()
        batcher.flush()  # the slot is woken first, and finds that a caller has left
        leaves.leave()
        batch = await handler.next_batch()
        assert batch.items == [1]
        batch.answer([-1])
        await settle()
        assert (stays.outcome, leaves.outcome) == (-1, LEFT)
        await handler.no_batch()
