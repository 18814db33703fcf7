"""Without `dedupe` and `cache` a call does what it did before there was sharing, and no more."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shoal
from batching.sharing_scenes import WHOLE, Second, opened, read
from shoal.batching.calls import entry

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.anyio

OF_SHARING = {"sharing", "flight"}


@contextmanager
def called_files() -> Generator[set[str]]:
    """The names of the files of the calls' package whose functions are called in the block."""
    found: set[str] = set()
    package = str(Path(entry.__file__).parent)

    def note(frame: Any, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            found.add(Path(frame.f_code.co_filename).stem)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


async def make_calls(**options: Any) -> None:
    """Makes calls in each of the ways that there are, with a batcher of its own."""
    batcher = opened(Second().results, **options)
    async with batcher as call:
        assert await call("a") == ("result", "a")
        assert await call.options(timeout_s=9)("a") == ("result", "a")
        assert await call.map(["a"]) == [("result", "a")]
    async with opened(Second().steps, **options) as call:
        assert await read(call, "a") == WHOLE


async def test_calls_run_no_code_of_sharing():
    with called_files() as without:
        await make_calls(dedupe=False)
    assert "entry" in without
    assert without.isdisjoint(OF_SHARING)
    with called_files() as shared:
        await make_calls(dedupe=True)
    assert shared >= OF_SHARING


async def test_a_call_needs_nothing_else_again_once_sharing_is_turned_off():
    batcher = opened(Second().results)
    async with batcher as call:
        batcher.configure(dedupe=False)
        with called_files() as without:
            assert await call("a") == ("result", "a")
    assert without.isdisjoint(OF_SHARING)


async def test_a_call_of_a_decorated_function_goes_straight_to_the_queue():
    handler = Second()

    @shoal.batch(max_batch_size=4)
    async def straight(items: list[str]) -> list[Any]:
        return await handler.results(items)

    @shoal.batch(max_batch_size=4, dedupe=True)
    async def shared(items: list[str]) -> list[Any]:
        return await handler.results(items)

    async with shoal.open_batchers():
        await straight("a")  # which makes the queue
        with called_files() as without:
            assert await straight("a") == ("result", "a")
        with called_files() as sharing:
            assert await shared("a") == ("result", "a")
    assert without.isdisjoint(OF_SHARING)
    assert "sharing" in sharing
