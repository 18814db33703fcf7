"""`Batcher.over`: a model object with `run` and `run_batch` is batched as caikit does it."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import shoal
from batching.callers import line_up, outcomes, outcomes_in_order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Greeter:
    """A model that notes what `run_batch` was called with."""

    def __init__(self) -> None:
        self.calls: list[dict[str, list[Any]]] = []

    def run(self, text: str, times: int = 1, loud: bool = False, end: str = "") -> str:
        raise AssertionError("one call at a time is what batching spares")

    async def run_batch(
        self, text: list[str], times: list[int], loud: list[bool], end: list[str]
    ) -> list[str]:
        self.calls.append({"text": text, "times": times, "loud": loud, "end": end})
        return [
            one.upper() if up else one * n for one, n, up in zip(text, times, loud, strict=True)
        ]


async def test_a_call_looks_like_run() -> None:
    model = Greeter()
    batcher = shoal.Batcher.over(model)
    assert batcher.signature == inspect.signature(model.run, eval_str=True)
    async with batcher as call:
        assert await call("a", 3) == "aaa"
        assert await call(text="a", times=2) == "aa"
        assert await call(loud=True, text="a") == "A"


async def test_calls_with_different_keywords_share_a_batch_and_defaults_fill_the_gaps() -> None:
    model = Greeter()
    async with shoal.Batcher.over(model, max_batch_size=3, batch_wait_timeout_s=None) as call:
        got = await outcomes_in_order(call(text="a"), call(text="b", times=2), call("c", loud=True))
    assert got == ["a", "bb", "C"]
    assert model.calls == [
        {
            "text": ["a", "b", "c"],
            "times": [1, 2, 1],
            "loud": [False, False, True],
            "end": ["", "", ""],
        }
    ]


class Adder:
    def run(self, left: int, right: int, *, scale: int = 1) -> int: ...

    def run_batch(self, **lists: list[int]) -> list[int]:
        rows = zip(lists["left"], lists["right"], lists["scale"], strict=True)
        return [(left + right) * scale for left, right, scale in rows]


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing required arguments: 'left', 'right'$"),
        ((), {"right": 1}, "missing required arguments: 'left'$"),
        ((1,), {"scale": 2}, "missing required arguments: 'right'$"),
        ((1, 2), {"top_k": 3}, "'top_k'"),
        ((1, 2, 3), {}, "too many positional arguments"),
    ],
)
async def test_a_call_that_does_not_fit_run_is_refused_alone(args, kwargs, said):
    async with shoal.Batcher.over(Adder(), max_batch_size=2, batch_wait_timeout_s=None) as call:
        async with anyio.create_task_group() as tasks:
            first = await line_up(tasks, call(left=1, right=2))
            with pytest.raises(TypeError, match=said):
                await call(*args, **kwargs)
            second = await line_up(tasks, call(left=3, right=4, scale=10))
        assert [caller.outcome for caller in first + second] == [3, 70]


class OneParameter:
    def run(self, *, text: str = "nothing") -> str: ...

    async def run_batch(self, text: list[str]) -> list[str]:
        return [f"{one}!" for one in text]


async def test_a_model_of_one_parameter_takes_keywords_too() -> None:
    async with shoal.Batcher.over(OneParameter()) as call:
        assert await outcomes(call(text="a"), call()) == ["a!", "nothing!"]
        with pytest.raises(TypeError, match="'words'"):
            await call(words="a")


class OtherOrder:
    async def run(self, left: int, right: int) -> int: ...

    def run_batch(self, right: list[int], left: list[int], device: str = "cpu") -> list[Any]:
        return [(*pair, device) for pair in zip(left, right, strict=True)]


async def test_lists_come_by_name_and_what_run_does_not_have_keeps_its_default() -> None:
    async with shoal.Batcher.over(OtherOrder()) as call:
        assert await call(1, 2) == (1, 2, "cpu")


class Parts:
    """A model whose methods are no plain methods."""

    def __init__(self) -> None:
        self.run = lambda text: text
        self.run_batch = partial(self._on, "gpu")

    async def _on(self, device: str, text: list[str]) -> list[str]:
        return [f"{one} on {device}" for one in text]


async def test_run_and_run_batch_may_be_any_functions() -> None:
    batcher = shoal.Batcher.over(Parts())
    assert not batcher.threaded
    async with batcher as call:
        assert await call(text="a") == "a on gpu"


async def test_it_is_threaded_named_and_set_up_as_every_batcher() -> None:
    assert shoal.Batcher.over(Adder()).threaded
    batcher = shoal.Batcher.over(Greeter(), max_batch_size=3)
    assert not batcher.threaded
    assert batcher.name == "Greeter"
    assert batcher.options.max_batch_size == 3
    assert shoal.Batcher.over(Greeter(), name="greetings").name == "greetings"


class NoRunBatch:
    def run(self, text: str) -> str: ...


class NoRun:
    def run_batch(self, text: list[str]) -> list[str]: ...


class NotCallable(NoRunBatch):
    run_batch = 3


class AnyPositional(NoRun):
    def run(self, *texts: str) -> str: ...


class AnyKeyword(NoRun):
    def run(self, text: str, **options: int) -> str: ...


class NoArgument(NoRun):
    def run(self) -> str: ...


class Builtin(NoRun):
    run = dict


class LacksOne(NoRun):
    def run(self, text: str, top_k: int = 1) -> str: ...


class NeedsMore(NoRunBatch):
    def run_batch(self, text: list[str], device: str) -> list[str]: ...


class ByPosition(NoRunBatch):
    def run_batch(self, text: list[str], /) -> list[str]: ...


class Streams(NoRunBatch):
    async def run_batch(self, text: list[str]) -> AsyncIterator[list[str]]:
        yield text


class PlainStreams(NoRunBatch):
    def run_batch(self, text: list[str]) -> Iterator[list[str]]:
        yield text


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (NoRunBatch(), r"NoRunBatch has no run_batch\(\)"),
        (NotCallable(), r"NotCallable has no run_batch\(\)"),
        (NoRun(), r"NoRun has no run\(\)"),
        (object(), r"object has no run\(\)"),
        (Greeter, r"not the class .*Greeter"),
        (AnyPositional(), r"AnyPositional\.run\(\) must be named, .* takes \(\*texts: 'str'\)"),
        (AnyKeyword(), r"AnyKeyword\.run\(\) must be named"),
        (NoArgument(), r"NoArgument\.run\(\) takes no argument"),
        (Builtin(), r"dict\(\) has no readable signature"),
        (LacksOne(), r"NoRun\.run_batch\(\) must take each .* \(text, top_k\) .*'top_k'"),
        (NeedsMore(), r"NeedsMore\.run_batch\(\) must take each parameter .*'device'"),
        (ByPosition(), r"ByPosition\.run_batch\(\) must take each parameter .*'text'"),
        (Streams(), r"Streams\.run_batch\(\) must give back a list"),
        (PlainStreams(), r"shoal\.Batcher\(model\.run_batch, signature=model\.run\)"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_an_object_that_is_no_such_model_is_refused_with_the_reason(model: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        shoal.Batcher.over(model)


async def test_streams_are_batched_as_the_refusal_says() -> None:
    model = Streams()
    batcher: Any = shoal.Batcher(model.run_batch, signature=model.run)
    async with batcher as call, call(text="a") as stream:
        assert [item async for item in stream] == ["a"]
