"""The checks of a replica whose placement takes open batches."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.batcher import Batcher
from shoal.errors import ReplicaDied
from shoal.testing.replicas.code import Mistake
from shoal.testing.replicas.stage import IDENTITY, CheckedCall, outcome

if TYPE_CHECKING:
    from shoal.batching.handlers.handler import Fill
    from shoal.batching.open_batch import OpenBatch
    from shoal.testing.replicas.stage import Played, Stage

ANSWERS: Final = "run_open answers each request of an open batch by itself, and in order"
STREAMS: Final = "run_open streams what the code sends, in order and to the end"
BINDING: Final = "open_binding is that of a call with one item, and refuses other code"
LEFT: Final = "a caller that leaves an open batch frees its place, and its code is notified"
KILLED: Final = "kill fails the requests of an open batch with ReplicaDied, which names the replica"


def _batcher(played: Played, method: str, fill: Fill, *, streams: bool = False) -> Batcher[Any]:
    async def run(batch: OpenBatch[Any, Any]) -> None:
        await played.replica.run_open(method, batch)

    made: Any = Batcher
    batcher: Batcher[Any] = made(
        run, fill=fill, streams=streams, max_batch_size=2, name="checked", batch_wait_timeout_s=0
    )
    return batcher


async def answers(stage: Stage) -> None:
    """Checks results, errors, streams and callers that leave, with both ways to fill a batch."""
    fills: tuple[Fill, ...] = ("open", "continuous")
    async with stage.playing() as played:
        stage.promise = BINDING
        names = [*played.replica.open_binding("open_batch").signature.parameters]
        stage.expect(names == ["item"], f"its parameters were {names}")
        try:
            played.replica.open_binding("count")
        except TypeError:
            pass
        else:
            raise stage.broken("it took a generator")
        for fill in fills:
            async with _batcher(played, "open_batch", fill) as call:
                stage.promise = ANSWERS
                calls = [CheckedCall(stage, call(number)) for number in (1, 2, -3, 4, 5)]
                async with anyio.create_task_group() as tasks:
                    for one in calls:
                        tasks.start_soon(one.run)
                for number, one in zip((1, 2, -3, 4, 5), calls, strict=True):
                    wanted = one.result == (2 * number, IDENTITY.replica)
                    if number < 0:
                        wanted = isinstance(one.result, Mistake)
                    stage.expect(wanted, f"{number} got {one.result!r}")
                stage.promise = LEFT
                for name in ("a", "b", "c"):  # there are two places
                    async with anyio.create_task_group() as tasks:
                        one = CheckedCall(stage, call(f"{fill} {name}"))
                        tasks.start_soon(one.run)
                        await stage.until(f"holds {fill} {name}")
                        one.scope.cancel()
                    await stage.until(f"leaves {fill} {name}")
            stage.promise = STREAMS
            async with _batcher(played, "open_streams", fill, streams=True) as stream:
                for length in (0, 3, 40):
                    async with aclosing(stream(length)) as reading:
                        got = [item async for item in reading]
                    stage.expect(got == [*range(length)], f"{length} items were {got}")


async def end(stage: Stage) -> None:
    """Checks that a killed replica fails its requests."""
    async with stage.playing() as played, anyio.create_task_group() as tasks:
        stage.promise = KILLED
        async with _batcher(played, "open_batch", "continuous") as call:
            one = CheckedCall(stage, call("killed"))
            tasks.start_soon(one.run)
            await stage.until("holds killed")
            played.replica.kill("out of luck")
            await one.ended.wait()
            for got in (one.result, await outcome(call(1))):
                has_died = isinstance(got, ReplicaDied) and got.replica == IDENTITY.replica
                stage.expect(has_died, f"a request ended with {got!r}")
        await played.ended.wait()
