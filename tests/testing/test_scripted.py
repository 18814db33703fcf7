"""Scripted handlers: the test answers batches; a missing answer fails the test, and never hangs."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import shoal
import shoal.testing
import shoal.testing.asgi
from batching.callers import line_up, outcome, read_all
from batching.scenes import opening
from shoal.testing import ScriptedHandler, ScriptedStreams, settle


@contextmanager
def a_missing_answer(handler: Any) -> Iterator[None]:
    """Uses a handler, and expects its exit to report an unanswered batch."""
    with pytest.raises(AssertionError, match=r"^the test did not answer \[.*\]$"), handler:
        yield


async def test_the_test_answers_each_batch():
    handler: ScriptedHandler[str, int] = ScriptedHandler()
    async with opening(handler, batch_wait_timeout_s=1) as (_, call, tasks):
        callers = await line_up(tasks, call("eel"), call("herring"))
        batch = await handler.next_batch()
        assert (batch.items, batch.reason) == (["eel", "herring"], shoal.DispatchReason.TIMER)
        assert [request.item for request in batch.requests] == batch.items
        batch.answer([3, 7])
        await settle()
        assert [caller.outcome for caller in callers] == [3, 7]
        (later,) = await line_up(tasks, call("cod"))
        (await handler.next_batch()).answer_each(len)
    assert later.outcome == 3
    assert [batch.items for batch in handler.batches] == [["eel", "herring"], ["cod"]]


async def test_a_batch_can_fail_as_a_whole_or_in_one_place():
    handler: ScriptedHandler[int, Any] = ScriptedHandler()
    async with opening(handler, batch_wait_timeout_s=1) as (_, call, tasks):
        callers = await line_up(tasks, call(1), call(2))
        (await handler.next_batch()).fail(ZeroDivisionError("all"))
        await settle()
        callers += await line_up(tasks, call(3), call(4))
        (await handler.next_batch()).answer([KeyError("one"), "fine"])
    assert [type(caller.outcome) for caller in callers] == [
        *(ZeroDivisionError, ZeroDivisionError, KeyError, str)
    ]


async def test_a_batch_without_callers_is_cancelled():
    handler: ScriptedHandler[int, int] = ScriptedHandler()
    async with opening(handler, batch_wait_timeout_s=1) as (_, call, tasks):
        callers = await line_up(tasks, call(1), call(2))
        batch = await handler.next_batch()
        await callers[0].gone()
        assert ([r.cancelled for r in batch.requests], batch.cancelled) == ([True, False], False)
        await callers[1].gone()
        assert batch.cancelled
        with pytest.raises(AssertionError, match=r"\[1, 2\] can't be answered: .* was cancelled"):
            batch.answer([1, 2])


async def test_a_batch_is_answered_once():
    handler: ScriptedHandler[int, int] = ScriptedHandler()
    async with shoal.Batcher(handler) as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call(1))
        batch = await handler.next_batch()
        batch.answer([1])
        for again in (lambda: batch.answer([1]), lambda: batch.fail(ValueError())):
            with pytest.raises(AssertionError, match=r"\[1\] was answered before"):
                again()
        await settle()
        assert not batch.cancelled


async def test_a_batch_that_is_not_there_is_not_waited_for_for_ever():
    handler: ScriptedHandler[int, int] = ScriptedHandler(patience_s=5)
    async with shoal.Batcher(handler):
        with pytest.raises(AssertionError, match=r"arrived within 5 s, after 0 earlier ones$"):
            await handler.next_batch()
        assert anyio.current_time() == 5


async def test_who_may_hold_the_slot_is_said_where_the_next_batch_does_not_come():
    handler: ScriptedHandler[int, int] = ScriptedHandler(patience_s=5)
    async with shoal.Batcher(handler, max_batch_size=1) as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, call(1), call(2))
        first = await handler.next_batch()
        with pytest.raises(AssertionError, match=r"after 1 earlier ones; .* not answer .*\[1\]"):
            await handler.next_batch()
        for caller in callers:
            caller.leave()
        await settle()
        assert first.cancelled


async def test_a_batch_that_should_not_be_there_is_seen():
    handler: ScriptedHandler[int, int] = ScriptedHandler()
    async with opening(handler, batch_wait_timeout_s=1.0) as (_, call, tasks):
        await line_up(tasks, call(1))
        await handler.no_batch()
        await anyio.sleep(1)
        with pytest.raises(AssertionError, match=r"should be no batch, but there is .* of \[1\]"):
            await handler.no_batch()
        (await handler.next_batch()).answer([1])
        await handler.no_batch()


async def test_a_batch_that_is_not_answered_fails_its_callers_instead_of_hanging():
    handler: ScriptedHandler[int, int] = ScriptedHandler()
    async with shoal.Batcher(handler) as call:
        error = await outcome(call(1))
        assert anyio.current_time() == 60
    assert isinstance(error, AssertionError)
    assert str(error) == "the test did not answer the batch of [1] within 60.0 s"


async def test_leaving_the_block_asserts_that_all_was_answered():
    handler: ScriptedHandler[int, int] = ScriptedHandler()
    async with shoal.Batcher(handler) as call, anyio.create_task_group() as tasks:
        with a_missing_answer(handler):
            await line_up(tasks, call(1))
            await settle()
        (await handler.next_batch()).answer([1])


async def test_a_batch_that_the_closing_batcher_gave_up_was_not_answered():
    handler: ScriptedHandler[int, int] = ScriptedHandler()
    async with anyio.create_task_group() as tasks:
        with a_missing_answer(handler):
            async with shoal.Batcher(handler) as call:
                await line_up(tasks, call(1))
                await settle()


async def test_a_batch_that_was_seen_to_be_cancelled_needs_no_answer():
    async with anyio.create_task_group() as tasks:
        with ScriptedHandler[int, int]() as handler:
            async with shoal.Batcher(handler, handler_timeout_s=1) as call:
                await line_up(tasks, call(1))
                batch = await handler.next_batch()
                await anyio.sleep(1)
                await settle()
                assert batch.cancelled


async def test_a_batch_that_nobody_waits_for_needs_no_answer():
    with ScriptedHandler[int, int]() as handler:
        async with shoal.Batcher(handler) as call, anyio.create_task_group() as tasks:
            await line_up(tasks, call(1))
            await handler.next_batch()
            tasks.cancel_scope.cancel()


async def test_a_test_that_fails_anyhow_is_not_told_about_answers():
    handler: ScriptedHandler[int, int] = ScriptedHandler()
    async with shoal.Batcher(handler) as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call(1))
        await settle()
        with pytest.raises(ZeroDivisionError), handler:
            raise ZeroDivisionError
        (await handler.next_batch()).answer([1])


async def test_the_test_makes_each_step_of_a_batch_of_streams():
    handler: ScriptedStreams[str, int] = ScriptedStreams()
    async with opening(handler, batch_wait_timeout_s=1) as (_, call, tasks):
        readers = await read_all(tasks, call("a"), call("b"), call("c"))
        batch = await handler.next_batch()
        assert batch.items == ["a", "b", "c"]
        batch.step([1, shoal.SKIP, shoal.END])
        await settle()
        assert [reader.items for reader in readers] == [[1], [], []]
        assert batch.made == 1
        batch.step([2, ZeroDivisionError(), 0])
        batch.end()
        await settle()
        assert not batch.cancelled
    assert [reader.items for reader in readers] == [[1, 2], [], []]
    assert [type(reader.outcome) for reader in readers] == [str, ZeroDivisionError, str]


async def test_steps_are_made_when_readers_have_room():
    handler: ScriptedStreams[str, int] = ScriptedStreams()
    async with shoal.Batcher(handler, stream_buffer=1) as call:  # noqa: SIM117
        async with call("a") as stream:
            batch = await handler.next_batch()
            for number in range(3):
                batch.step([number])
            batch.end()
            await settle()
            assert batch.made == 1
            assert [number async for number in stream] == [0, 1, 2]
            assert batch.made == 3


async def test_a_batch_of_streams_without_readers_is_closed():
    handler: ScriptedStreams[str, int] = ScriptedStreams()
    async with shoal.Batcher(handler) as call, anyio.create_task_group() as tasks:
        (reader,) = await read_all(tasks, call("a"))
        batch = await handler.next_batch()
        batch.step([1])
        await settle()
        assert not batch.cancelled
        await reader.gone()
        assert batch.cancelled
        for too_late in (lambda: batch.step([2]), batch.end):
            with pytest.raises(AssertionError, match="can't be answered"):
                too_late()


async def test_a_step_that_is_not_made_is_a_cancelled_batch_too():
    handler: ScriptedStreams[str, int] = ScriptedStreams()
    async with shoal.Batcher(handler, stream_buffer=1) as call, anyio.create_task_group() as tasks:
        (reader,) = await read_all(tasks, call("a"))
        batch = await handler.next_batch()
        reader.leave()
        batch.step([1])
        batch.end()
        await settle()
        assert batch.cancelled


async def test_a_batch_of_streams_that_is_not_ended_fails_its_readers():
    handler: ScriptedStreams[str, int] = ScriptedStreams(patience_s=7)
    with a_missing_answer(handler):
        async with shoal.Batcher(handler) as call, anyio.create_task_group() as tasks:
            (reader,) = await read_all(tasks, call("a"))
            (await handler.next_batch()).step([1])
            await settle()
            assert reader.items == [1]
    assert str(reader.outcome) == "the test did not answer the batch of ['a'] within 7 s"


async def test_streams_that_are_all_over_need_no_end():
    with ScriptedStreams[str, int]() as handler:
        batcher = shoal.Batcher(handler, batch_wait_timeout_s=1)
        async with batcher as call, anyio.create_task_group() as tasks:
            ended, failed, left = await read_all(tasks, call("a"), call("b"), call("c"))
            batch = await handler.next_batch()
            batch.step([shoal.END, KeyError("b"), 1])
            await settle()
            left.leave()
    assert (ended.outcome, type(failed.outcome), left.items) == ("end", KeyError, [1])


# The `shoal.testing` package as a whole: its imports and its public names


REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "modules.rst"


def test_the_kit_needs_no_test_framework():
    program = (
        "import pkgutil, sys, importlib\n"
        "sys.modules |= dict.fromkeys(['pytest', '_pytest', 'unittest', 'hypothesis'])\n"
        "import shoal\n"
        "assert 'shoal.testing' not in sys.modules\n"
        "import shoal.testing as kit\n"
        "for module in pkgutil.walk_packages(kit.__path__, 'shoal.testing.'):\n"
        "    importlib.import_module(module.name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


PUBLIC = [(shoal.testing, name) for name in shoal.testing.__all__] + [
    (shoal.testing.asgi, name) for name in ("Answer", "Call", "ask", "calling")
]


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_a_public_name_is_in_the_reference_and_has_a_docstring(module, name):
    assert re.search(rf"{module.__name__}\.{name}\b", REFERENCE.read_text(encoding="utf-8"))
    assert getattr(module, name).__doc__
