"""What caikit's tests of its model batcher assert, on `Batcher.over`, and from threads too.

Its ``batch_size`` is ``max_batch_size`` here, its ``batch_collect_delay_s`` is ``idle_timeout_s``,
and its ``stop()`` is leaving the block or ``aclose()``.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import line_up, outcome, outcomes_in_order
from batching.scenes import Recorder
from shoal.testing.asgi import Call, calling

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


class Greeter:
    def __init__(self) -> None:
        self.batches: list[dict[str, list[Any]]] = []

    def run(self, first_name: str, last_name: str = "Bit", title: str | None = None) -> str:
        return " ".join(filter(None, (title, first_name, last_name)))

    async def run_batch(self, **lists: list[Any]) -> list[str]:
        self.batches.append(lists)
        rows = zip(lists["first_name"], lists["last_name"], lists["title"], strict=True)
        return [self.run(*row) for row in rows]


class PlainGreeter(Greeter):
    """The same, with a plain `run_batch`."""

    def run_batch(self, **lists: list[Any]) -> list[str]:  # type: ignore[override]
        self.batches.append(lists)
        return [self.run(name) for name in lists["first_name"]]


async def test_twenty_requests_make_batches_of_ten_and_each_gets_its_own_result():
    model = Greeter()
    async with shoal.Batcher.over(model, max_batch_size=10, batch_wait_timeout_s=None) as call:
        got = await outcomes_in_order(*(call(first_name=str(number)) for number in range(20)))
    assert got == [f"{number} Bit" for number in range(20)]
    assert [len(batch["first_name"]) for batch in model.batches] == [10, 10]


async def test_a_model_that_wraps_another_says_what_it_passes_on():
    class Wrapping:
        def __init__(self, model: Greeter) -> None:
            self._model = model

            @functools.wraps(model.run)
            def run(*args: Any, **kwargs: Any) -> str:
                return model.run(*args, **kwargs)

            self.run = run

        async def run_batch(self, **lists: list[Any]) -> list[str]:
            return await self._model.run_batch(**lists)

    async with shoal.Batcher.over(Wrapping(Greeter())) as call:
        assert await call(first_name="Bob", title="Mr") == "Mr Bob Bit"


class Stopping(Greeter):
    """Stops the batcher that a test gives it."""

    async def run_batch(self, **lists: list[Any]) -> list[str]:
        await self.batcher.aclose()
        return await super().run_batch(**lists)


class PlainStopping(PlainGreeter):
    def run_batch(self, **lists: list[Any]) -> list[str]:
        anyio.from_thread.run(self.batcher.aclose)
        return super().run_batch(**lists)


@pytest.mark.parametrize(
    "kind", [Stopping, pytest.param(PlainStopping, marks=pytest.mark.real_time)]
)
async def test_a_run_batch_that_stops_its_batcher_is_no_deadlock(kind):
    model = kind()
    time = {"graceful_shutdown_timeout_s": 0.01} if kind is PlainStopping else {}
    model.batcher = shoal.Batcher.over(model, max_batch_size=1, **time)
    async with model.batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, call(first_name="running"), call(first_name="waiting"))
    assert callers[0].outcome == "running Bit"
    # The other came before the handler closed, or after it.
    assert callers[1].outcome == "waiting Bit" or isinstance(
        callers[1].outcome, shoal.errors.BatcherClosed
    )
    late = await outcome(model.batcher.call(first_name="late"))
    assert isinstance(late, shoal.errors.BatcherClosed)


@BACKENDS
@pytest.mark.real_time
def test_every_thread_that_calls_while_the_batcher_stops_gets_an_answer(backend):
    def call_until_stopped() -> int:
        answered = 0
        try:
            while True:
                assert run(first_name="Bob") == "Bob Bit"
                answered += 1
        except shoal.errors.BatcherClosed:
            return answered

    batcher = shoal.Batcher.over(PlainGreeter(), max_batch_size=3)
    with ThreadPoolExecutor(8) as threads:
        with shoal.blocking(batcher, backend=backend) as run:
            run(first_name="Bob")
            futures = [threads.submit(call_until_stopped) for _ in range(8)]
            run(first_name="Bob")
        assert all(future.result(10) >= 0 for future in futures)


# What the tests of LitServe and BentoML assert of batching (group LB)


async def test_lb1_over_http_both_are_answered_500_without_what_went_wrong_inside():
    app = shoal.App()

    @app.endpoint("/x", max_batch_size=2, batch_wait_timeout_s=None)
    async def handler(items: list[int]) -> list[int]:
        return items[:1]

    calls = [Call(app, "/x", item=item) for item in (1, 2)]
    async with app.lifespan(), calling(*calls):
        for call in calls:
            await call.returned.wait()
    assert [call.answer.status for call in calls] == [500] * 2
    assert [call.answer.json()["type"] for call in calls] == ["urn:shoal:problem:internal"] * 2


@pytest.mark.parametrize("item", [None, (), shoal.END, shoal.SKIP, StopIteration, ...])
async def test_lb3_no_item_stops_the_loop(item):
    batcher = shoal.Batcher(Recorder(), max_batch_size=3, batch_wait_timeout_s=None)
    async with batcher as call:
        for _ in range(2):
            assert await outcomes_in_order(call(1), call(item), call(2)) == [1, item, 2]
        assert batcher.is_alive
