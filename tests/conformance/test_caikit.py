"""What caikit's tests of its model batcher assert, on `Batcher.over`, and from threads too.

Its ``batch_size`` is ``max_batch_size`` here, its ``batch_collect_delay_s`` is ``idle_timeout_s``,
and its ``stop()`` is leaving the block or ``aclose()``.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.from_thread
import pytest

import shoal
from batching.scenes import PENDING, line_up, outcome, outcomes_in_order, settle

pytestmark = pytest.mark.anyio

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


class Greeter:
    """A model that notes its batches."""

    def __init__(self) -> None:
        self.batches: list[dict[str, list[Any]]] = []

    def run(self, first_name: str, last_name: str = "Bit", title: str | None = None) -> str:
        return " ".join(filter(None, (title, first_name, last_name)))

    async def run_batch(self, **lists: list[Any]) -> list[str]:
        self.batches.append(lists)
        rows = zip(lists["first_name"], lists["last_name"], lists["title"], strict=True)
        return [self.run(*row) for row in rows]


class HeldGreeter(Greeter):
    """The same, but it answers when its gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()

    async def run_batch(self, **lists: list[Any]) -> list[str]:
        greetings = await super().run_batch(**lists)
        await self.gate.wait()
        return greetings


class PlainGreeter(Greeter):
    """The same, with a plain `run_batch`."""

    def run_batch(self, **lists: list[Any]) -> list[str]:  # type: ignore[override]
        self.batches.append(lists)
        return [self.run(name) for name in lists["first_name"]]


async def test_a_single_request_is_answered_as_the_model_does() -> None:
    model = Greeter()
    async with shoal.Batcher.over(model, max_batch_size=10) as call:
        assert await call(first_name="Bob") == model.run(first_name="Bob") == "Bob Bit"


async def test_twenty_requests_make_batches_of_ten_and_each_gets_its_own_result() -> None:
    model = Greeter()
    async with shoal.Batcher.over(model, max_batch_size=10, batch_wait_timeout_s=None) as call:
        got = await outcomes_in_order(*(call(first_name=str(number)) for number in range(20)))
    assert got == [f"{number} Bit" for number in range(20)]
    assert [len(batch["first_name"]) for batch in model.batches] == [10, 10]


async def test_requests_with_different_keywords_are_one_batch() -> None:
    model = Greeter()
    async with shoal.Batcher.over(model, max_batch_size=5, batch_wait_timeout_s=None) as call:
        got = await outcomes_in_order(
            call(first_name="Bob"),
            call(first_name="Jim", last_name="Bo"),
            call(first_name="Bob"),
            call(first_name="Jim", title="Sir"),
            call(first_name="Jim", last_name=""),
        )
    assert got == ["Bob Bit", "Jim Bo", "Bob Bit", "Sir Jim Bit", "Jim"]
    assert len(model.batches) == 1


@pytest.mark.parametrize("wrong_at", [0, 2, 4])
async def test_a_request_that_lacks_a_keyword_is_refused_alone_in_any_order(wrong_at: int) -> None:
    model = Greeter()
    async with shoal.Batcher.over(model, max_batch_size=4, batch_wait_timeout_s=None) as call:
        async with anyio.create_task_group() as tasks:
            callers = await line_up(
                tasks, *(call(first_name=str(number)) for number in range(wrong_at))
            )
            with pytest.raises(TypeError, match="missing required arguments: 'first_name'"):
                await call(last_name="Bo")
            callers += await line_up(
                tasks, *(call(first_name=str(number)) for number in range(wrong_at, 4))
            )
        assert [caller.outcome for caller in callers] == [f"{number} Bit" for number in range(4)]
    assert [batch["first_name"] for batch in model.batches] == [["0", "1", "2", "3"]]


async def test_the_collect_delay_counts_anew_from_each_request() -> None:
    model = Greeter()
    async with (
        shoal.Batcher.over(model, max_batch_size=5, idle_timeout_s=0.010) as call,
        anyio.create_task_group() as tasks,
    ):
        callers = []
        for name in ("Bob", "Jim", "Ann"):
            callers += await line_up(tasks, call(first_name=name))
            last_came_at = anyio.current_time()
            await anyio.sleep(0.009)
        assert [caller.outcome for caller in callers] == [PENDING] * 3
    assert [batch["first_name"] for batch in model.batches] == [["Bob", "Jim", "Ann"]]
    assert [caller.ended_at for caller in callers] == [pytest.approx(last_came_at + 0.010)] * 3


async def test_without_a_collect_delay_a_request_does_not_wait() -> None:
    async with shoal.Batcher.over(Greeter(), max_batch_size=5) as call:
        started = anyio.current_time()
        await call(first_name="Bob")
        assert anyio.current_time() == started


async def test_what_run_batch_raises_is_the_outcome_of_its_whole_batch() -> None:
    class Failing(Greeter):
        async def run_batch(self, **lists: list[Any]) -> list[str]:
            raise ZeroDivisionError

    async with shoal.Batcher.over(Failing(), max_batch_size=3, batch_wait_timeout_s=None) as call:
        got = await outcomes_in_order(*(call(first_name=name) for name in "abc"))
    assert [type(error) for error in got] == [ZeroDivisionError] * 3
    assert len({id(error) for error in got}) == 3
    assert len({id(error.__cause__) for error in got}) == 1


async def test_run_batch_must_give_as_many_results_as_there_are_requests() -> None:
    class Forgetful(Greeter):
        async def run_batch(self, **lists: list[Any]) -> list[str]:
            return (await super().run_batch(**lists))[1:]

    async with shoal.Batcher.over(Forgetful(), max_batch_size=3, batch_wait_timeout_s=None) as call:
        got = await outcomes_in_order(*(call(first_name=name) for name in "abc"))
    assert [type(error) for error in got] == [shoal.errors.WrongBatchSize] * 3
    assert "Forgetful was given 3 items and gave back 2 results" in str(got[0])


async def test_stopping_ends_those_who_run_and_those_who_wait() -> None:
    batcher = shoal.Batcher.over(HeldGreeter(), max_batch_size=2, graceful_shutdown_timeout_s=0)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, *(call(first_name=name) for name in "abc"))
        await settle()
        await batcher.aclose()
    assert [type(caller.outcome) for caller in callers] == [shoal.errors.BatcherClosed] * 3


async def test_stopping_may_answer_those_who_run_and_end_those_who_wait() -> None:
    model = HeldGreeter()
    batcher = shoal.Batcher.over(model, max_batch_size=1, drop_queued_on_shutdown=True)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, *(call(first_name=name) for name in "abc"))
        await settle()
        tasks.start_soon(batcher.aclose)
        await settle()
        ended = [type(caller.outcome) for caller in callers[1:]]
        assert ended == [shoal.errors.BatcherClosed] * 2
        model.gate.set()
    assert callers[0].outcome == "a Bit"


async def test_a_model_that_wraps_another_says_what_it_passes_on() -> None:
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


async def test_stopping_with_time_answers_them_first() -> None:
    model = HeldGreeter()
    batcher = shoal.Batcher.over(model, max_batch_size=2, batch_wait_timeout_s=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, *(call(first_name=name) for name in "abc"))
        tasks.start_soon(batcher.aclose)
        await settle()
        assert [caller.outcome for caller in callers] == [PENDING] * 3
        model.gate.set()
    assert [caller.outcome for caller in callers] == ["a Bit", "b Bit", "c Bit"]


async def test_stopping_can_not_be_undone() -> None:
    batcher = shoal.Batcher.over(Greeter())
    async with batcher as call:
        await call(first_name="Bob")
        await batcher.aclose()
        await batcher.aclose()
        with pytest.raises(shoal.errors.BatcherClosed):
            await call(first_name="Bob")
    with pytest.raises(shoal.errors.BatcherClosed):
        await call(first_name="Bob")
    with pytest.raises(RuntimeError, match="opened once"):
        await batcher.__aenter__()


async def test_a_batcher_that_never_ran_can_be_stopped_and_stays_so() -> None:
    batcher = shoal.Batcher.over(Greeter())
    await batcher.aclose()
    with pytest.raises(shoal.errors.BatcherClosed):
        await batcher.call(first_name="Bob")
    with pytest.raises(RuntimeError, match="opened once"):
        await batcher.__aenter__()


async def test_an_async_run_batch_that_stops_its_batcher_is_no_deadlock() -> None:
    class Stopping(Greeter):
        async def run_batch(self, **lists: list[Any]) -> list[str]:
            await batcher.aclose()
            return await super().run_batch(**lists)

    batcher = shoal.Batcher.over(Stopping(), max_batch_size=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, call(first_name="running"), call(first_name="waiting"))
    assert callers[0].outcome == "running Bit"
    # The other came before the handler closed, or after it.
    assert callers[1].outcome == "waiting Bit" or isinstance(
        callers[1].outcome, shoal.errors.BatcherClosed
    )
    assert isinstance(await outcome(batcher.call(first_name="late")), shoal.errors.BatcherClosed)


@pytest.mark.real_time
async def test_a_plain_run_batch_that_stops_its_batcher_is_no_deadlock() -> None:
    class Stopping(PlainGreeter):
        def run_batch(self, **lists: list[Any]) -> list[str]:  # type: ignore[override]
            anyio.from_thread.run(batcher.aclose)
            return super().run_batch(**lists)

    batcher = shoal.Batcher.over(Stopping(), max_batch_size=1, graceful_shutdown_timeout_s=0.01)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, call(first_name="running"), call(first_name="waiting"))
    assert callers[0].outcome == "running Bit"
    # The other came before the handler closed, or after it.
    assert callers[1].outcome == "waiting Bit" or isinstance(
        callers[1].outcome, shoal.errors.BatcherClosed
    )
    assert isinstance(await outcome(batcher.call(first_name="late")), shoal.errors.BatcherClosed)


@BACKENDS
@pytest.mark.real_time
def test_twenty_threads_get_their_own_results(backend: str) -> None:
    model = PlainGreeter()
    batcher = shoal.Batcher.over(model, max_batch_size=10, batch_wait_timeout_s=None)
    with shoal.blocking(batcher, backend=backend) as run, ThreadPoolExecutor(20) as threads:
        futures = [threads.submit(run, first_name=str(number)) for number in range(20)]
        assert [future.result(10) for future in futures] == [f"{n} Bit" for n in range(20)]
    assert [len(batch["first_name"]) for batch in model.batches] == [10, 10]


@BACKENDS
@pytest.mark.real_time
def test_every_thread_that_calls_while_the_batcher_stops_gets_an_answer(backend: str) -> None:
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
