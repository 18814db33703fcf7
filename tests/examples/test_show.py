"""The demo's show without its page: who is sent frames, and what they say of the crowd."""

from contextlib import asynccontextmanager

import anyio
import pytest
from starlette.exceptions import HTTPException

import shoal
from examples.demo import lanes, show
from examples.demo.show import (
    BATCHED,
    SINGLE,
    VIEWERS,
    Beginning,
    Kill,
    Leave,
    Settings,
    Show,
    Watch,
)
from serving.scenes import deployed

# Models are loaded, and the steps of one run, in threads. The demo is served on one event loop.
pytestmark = [pytest.mark.real_time, pytest.mark.one_loop, pytest.mark.slow]

NO_PROCESS = 2**30  # more than a process id can be


def recognise(images: list[list[list[float]]]) -> list[dict]:
    """Stands in for the workers: whatever it is shown is a 7."""
    batch = shoal.current_batch()
    seen = {"id": batch.id, "size": batch.size, "reason": batch.reason.value}
    run = {"lasted_s": 0.001, "worker": NO_PROCESS}
    return [{"digit": 7, "batch": seen, "run": run} for _ in images]


@pytest.fixture
def playing(monkeypatch):
    """Opens a show that plays fast; gives it, its client, and what opens a stream of frames."""
    monkeypatch.setattr(show, "FRAME_S", 0.01)
    monkeypatch.setattr(lanes, "STEP_S", 0.001)
    monkeypatch.setattr(lanes, "_PAUSES_S", (0, 0.05))

    @asynccontextmanager
    async def play():
        theirs = Show()
        async with shoal.start() as client:
            for name, config in ((BATCHED, Settings().batching()), (SINGLE, {"max_batch_size": 1})):
                await deployed(client, name, recognise, config={"placement": "task", **config})
            config = {"fill": "continuous", "streams": True, "max_batch_size": VIEWERS}
            config |= {"max_queued_requests": 0, "placement": "task"}
            watch = await deployed(client, "show", theirs, config=config)
            await deployed(client, "settings", theirs.change)
            yield theirs, client, watch

    return play


async def until(frames, condition):
    """Returns the first frame for which a condition holds."""
    async for frame in frames:
        if condition(frame):
            return frame
    raise AssertionError("the show ended")


async def leave_until_refused(theirs):
    while True:
        assert await theirs.leave([Leave(reader=0)]) == [False]
        await anyio.lowlevel.checkpoint()


def answered(frame, name=BATCHED):
    return frame["sides"][name]["figures"]["answered"]


async def test_the_figures_add_up_and_both_sides_are_asked(playing):
    async with playing() as (_, _, watch), watch.stream(Watch()) as frames:
        frame = await until(frames, lambda each: answered(each) and answered(each, SINGLE))
    for name in (BATCHED, SINGLE):
        figures = frame["sides"][name]["figures"]
        ends = figures["answered"] + figures["failed"] + figures["given_up"] + figures["open"]
        assert figures["asked"] == ends
    assert frame["sides"][SINGLE]["figures"]["mean_batch"] == 1


async def test_batches_are_told_with_their_size_and_why_they_were_sent(playing):
    async with playing() as (_, client, watch), watch.stream(Watch()) as frames:
        change = await client.get_handle("settings")
        await change.call(Settings(clients=64, max_batch_size=2, wait_ms=300))
        frame = await until(
            frames, lambda each: [b["size"] for b in each["batches"][BATCHED]][-3:] == [2, 2, 2]
        )
        assert {b["reason"] for b in frame["batches"][BATCHED][-3:]} == {"full"}
        assert frame["settings"]["max_batch_size"] == 2
        await change.call(Settings(clients=1, max_batch_size=2, wait_ms=0))
        await until(frames, lambda each: each["sides"][BATCHED]["figures"]["open"] <= 1)


async def test_no_more_than_so_many_may_watch(playing):
    async with playing() as (_, _, watch), anyio.create_task_group() as tasks:
        watching = 0
        all_watch = anyio.Event()

        async def look():
            nonlocal watching
            async with watch.stream(Watch()) as frames:
                await anext(frames)
                watching += 1
                if watching == VIEWERS:
                    all_watch.set()
                async for _ in frames:
                    pass

        for _ in range(VIEWERS):
            tasks.start_soon(look)
        await all_watch.wait()
        with pytest.raises(shoal.errors.Overloaded):
            async with watch.stream(Watch()) as frames:
                await anext(frames)
        tasks.cancel_scope.cancel()


async def test_the_crowd_goes_home_when_nobody_watches_and_comes_back(playing):
    async with playing() as (theirs, client, watch):
        for _ in range(2):
            async with watch.stream(Watch()) as frames:
                await until(frames, answered)
            with pytest.raises(HTTPException, match="Nobody watches"):
                await leave_until_refused(theirs)
            assert theirs.answered > 0
        while (backend := (await client.status()).backends[BATCHED]).queued or backend.ongoing:
            await anyio.lowlevel.checkpoint()


async def test_who_watches_is_told_that_the_show_is_over(playing):
    async with playing() as (_, client, watch), watch.stream(Watch()) as frames:
        await anext(frames)
        client.drain()
        async for _ in frames:
            pass
        async with watch.stream(Watch()) as late:
            assert [frame async for frame in late] == []


async def test_a_reader_that_leaves_is_replaced_and_the_others_go_on(playing, monkeypatch):
    monkeypatch.setattr(lanes, "STEP_S", 0.02)
    monkeypatch.setattr(lanes, "_LENGTHS", (400, 400))
    monkeypatch.setattr(lanes, "_LEAVING", 0)

    def readers(frame):
        return (
            [waiter and waiter["reader"] for waiter in frame["steps"][-1]] if frame["steps"] else []
        )

    async with playing() as (theirs, _, watch), watch.stream(Watch()) as frames:
        before = readers(await until(frames, lambda each: readers(each) and all(readers(each))))
        leaving = before[3]
        assert await theirs.leave([Leave(reader=leaving)]) == [True]
        ends = {}

        def is_replaced(frame):
            ends.update((event["reader"], event["end"]) for event in frame["readers"])
            # The end of the reader may be in a later frame than the step without it.
            return leaving in ends and readers(frame) and readers(frame)[3] not in (leaving, None)

        after = readers(await until(frames, is_replaced))
        assert ends[leaving] == "left"
        assert len(set(before) & set(after)) > 1
        assert await theirs.leave([Leave(reader=leaving)]) == [False]


async def test_answers_of_a_killed_worker_that_come_late_do_not_show_it_up(playing):
    async with playing() as (theirs, _, watch), watch.stream(Watch()) as frames:
        before = await until(frames, answered)
        with pytest.raises(HTTPException, match="not up"):
            await theirs.kill([Kill()])
        await anext(frames)  # it may have been made before
        after = await until(frames, lambda each: answered(each) > answered(before))
        assert after["sides"][BATCHED]["worker"] is None


async def test_visitors_texts_are_bounded(playing):
    async with playing() as (theirs, _, watch), watch.stream(Watch()) as frames:
        await until(frames, lambda each: each["steps"])
        numbers = await theirs.write([Beginning(text="If ")] * (lanes.VISITORS + 1))
        *given, refused = numbers
        assert all(isinstance(number, int) for number in given)
        assert isinstance(refused, HTTPException)
