"""Virtual time: it moves to the next deadline when every task waits, and never otherwise."""

import asyncio

import anyio
import pytest

from shoal.testing import run_virtually, settle, virtual_backend

BACKENDS = ["trio", "asyncio"]
HOUR_S = 3600.0


async def test_time_goes_to_the_next_deadline_of_any_task():
    woken = []

    async def sleeper(delay_s: float) -> None:
        await anyio.sleep(delay_s)
        woken.append(anyio.current_time() - started)

    started = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for delay_s in (3.0, 1.0, 2.0):
            tasks.start_soon(sleeper, delay_s)
    assert woken == [1.0, 2.0, 3.0]


async def test_no_time_passes_while_a_task_can_run():
    started = anyio.current_time()
    with anyio.move_on_after(0.001) as scope:
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
    assert (anyio.current_time(), scope.cancelled_caught) == (started, False)


async def test_settling_runs_a_long_chain_to_its_end_and_takes_no_time():
    links = [anyio.Event() for _ in range(100)]

    async def pass_on(place: int) -> None:
        await links[place].wait()
        links[place + 1].set()

    started = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for place in range(99):
            tasks.start_soon(pass_on, place)
        await settle()
        assert not links[-1].is_set()
        links[0].set()
        await settle()
        assert links[-1].is_set()
    assert anyio.current_time() == started


async def test_settling_leaves_sleepers_asleep():
    async with anyio.create_task_group() as tasks:
        woken = anyio.Event()

        async def sleeper() -> None:
            await anyio.sleep(0.001)
            woken.set()

        tasks.start_soon(sleeper)
        await settle()
        assert not woken.is_set()


def test_settling_on_asyncio_runs_what_is_timed_for_now_and_takes_few_turns():
    async def main() -> tuple[bool, int]:
        seen = asyncio.Event()
        loop = asyncio.get_running_loop()
        before = loop.turns
        loop.call_soon(loop.call_later, 0, seen.set)
        await settle()
        return seen.is_set(), loop.turns - before

    seen, turns = run_virtually(main, backend="asyncio")
    assert seen
    assert turns < 10


@pytest.mark.real_time
async def test_settling_works_on_the_real_clock():
    event, seen = anyio.Event(), anyio.Event()

    async def waiter() -> None:
        await event.wait()
        seen.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter)
        event.set()
        await settle()
        assert seen.is_set()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_gives_back_what_the_function_returns(backend):
    async def total(*numbers: int) -> tuple[int, float]:
        await anyio.sleep(HOUR_S)
        return sum(numbers), anyio.current_time()

    result, ended_at = run_virtually(total, 1, 2, backend=backend)
    assert (result, ended_at) == (3, HOUR_S)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_raises_what_the_function_raises(backend):
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_virtually(fail, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_has_a_clock_of_its_own(backend):
    async def now_after_a_second() -> float:
        await anyio.sleep(1)
        return anyio.current_time()

    assert [run_virtually(now_after_a_second, backend=backend) for _ in range(2)] == [1.0, 1.0]


def test_a_backend_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="'trio' or 'asyncio', not 'curio'"):
        virtual_backend("curio")
