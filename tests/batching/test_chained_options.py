"""Chained call options: each `options` changes the named ones and keeps the others."""

from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import Recorder, Refusing, opening

SHARINGS: list[dict[str, Any]] = [
    {},
    {"dedupe": True},
    {"cache": shoal.Cache(max_size=9, ttl_s=60)},
]
LEVELS = {"priority_levels": 3, "max_batch_size": 64}
Seen = tuple[Any, int | None]


def seen() -> list[Seen]:
    """What a handler sees of the options of each request."""
    return [(r.metadata.get("user"), r.priority) for r in shoal.current_batch().requests]


async def answer(items: list[str]) -> list[Seen]:
    return seen()


async def steps(items: list[str]) -> Any:
    yield seen()


class Model:
    @shoal.batch(**LEVELS)
    async def answer(self, items: list[str]) -> list[Seen]:
        return seen()

    @shoal.batch(**LEVELS)
    async def steps(self, items: list[str]) -> Any:
        yield seen()


async def first_of(stream: Any) -> Any:
    async with stream as opened:
        return await anext(opened)


async def in_thread(call: Any) -> Any:
    return await anyio.to_thread.run_sync(call.from_thread, "home")


async def stream_in_thread(call: Any) -> Any:
    def read() -> Any:
        with call.from_thread("home") as stream:
            return next(iter(stream))

    return await anyio.to_thread.run_sync(read)


async def made(way: str, call: Any) -> Any:
    if way == "stream":
        return await first_of(call("home"))
    return (await call.map(["home"]))[0] if way == "map" else await call("home")


def chained(call: Any) -> Any:
    return call.options(metadata={"user": "bob"}).options(priority=3).options(timeout_s=5)


@pytest.mark.parametrize("sharing", SHARINGS, ids=str)
@pytest.mark.parametrize("form", ["Batcher", "function"])
@pytest.mark.parametrize("way", ["call", "map", "stream"])
async def test_options_keep_those_that_were_set_before(sharing, form, way):
    handler = steps if way == "stream" else answer
    if form == "Batcher":
        async with shoal.Batcher(handler, **LEVELS, **sharing) as call:
            assert await made(way, chained(call)) == ("bob", 3)
        return
    function: Any = shoal.batch(**LEVELS, **sharing)(handler)
    async with shoal.open_batchers(function):
        assert await made(way, chained(function)) == ("bob", 3)


@pytest.mark.parametrize("name", ["answer", "steps"])
async def test_options_of_a_method_keep_those_that_were_set_before(name: str) -> None:
    model = Model()
    call: Any = chained(getattr(model, name))
    async with shoal.open_batchers(model):
        got = call("home")
        assert await (first_of(got) if name == "steps" else got) == ("bob", 3)


@pytest.mark.real_time
@pytest.mark.parametrize("sharing", SHARINGS, ids=str)
@pytest.mark.parametrize(
    ("handler", "made_in_thread"), [(answer, in_thread), (steps, stream_in_thread)]
)
async def test_options_of_calls_from_threads_keep_those_that_were_set_before(
    sharing: dict[str, Any], handler: Any, made_in_thread: Any
) -> None:
    async with shoal.Batcher(handler, **LEVELS, **sharing) as call:
        assert await made_in_thread(chained(call)) == ("bob", 3)


@pytest.mark.real_time
@pytest.mark.parametrize("sharing", SHARINGS, ids=str)
def test_options_of_blocking_calls_keep_those_that_were_set_before(sharing: dict[str, Any]) -> None:
    with shoal.blocking(shoal.Batcher(answer, **LEVELS, **sharing)) as blocking:
        assert chained(blocking)("home") == ("bob", 3)
        assert chained(blocking).map(["home"]) == [("bob", 3)]
    with (
        shoal.blocking(shoal.Batcher(steps, **LEVELS, **sharing)) as streams,
        chained(streams)("home") as stream,
    ):
        assert list(stream) == [("bob", 3)]


@pytest.mark.parametrize("sharing", SHARINGS[1:], ids=str)
@pytest.mark.parametrize("way", ["call", "map", "stream"])
async def test_users_get_no_results_of_each_other(sharing: dict[str, Any], way: str) -> None:
    handler = steps if way == "stream" else answer
    got: dict[str, Any] = {}

    async def ask(call: Any, user: str) -> None:
        got[user] = (await made(way, call.options(metadata={"user": user}).options(timeout_s=5)))[0]

    async with opening(handler, **LEVELS, **sharing) as (_, call, tasks):
        for user in ("ann", "bob"):
            tasks.start_soon(ask, call, user)
    assert got == {"ann": "ann", "bob": "bob"}


@pytest.mark.parametrize("sharing", SHARINGS, ids=str)
@pytest.mark.parametrize("way", ["call", "map", "stream"])
async def test_the_first_time_limit_holds(sharing: dict[str, Any], way: str) -> None:
    async def slow_steps(items: list[str]) -> Any:
        await anyio.sleep(9)
        yield items

    handler = slow_steps if way == "stream" else Refusing(run_s=9)
    async with shoal.Batcher(handler, **sharing) as call:
        began_at = anyio.current_time()
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await made(way, call.options(timeout_s=5).options(metadata={"user": "bob"}))
        assert anyio.current_time() - began_at == 5


async def test_a_call_that_does_not_share_keeps_to_that(recorder: Recorder) -> None:
    async with shoal.Batcher(recorder, cache=shoal.Cache(max_size=9, ttl_s=60)) as call:
        own = call.options(share=False).options(timeout_s=5)
        for _ in range(2):
            await own("a")
            await own.map(["a"])
        assert len(recorder.batches) == 4
        for _ in range(2):
            await own.options(share=True)("a")
        assert len(recorder.batches) == 5


async def test_a_later_value_replaces_an_earlier_one_and_none_leaves_it() -> None:
    async with shoal.Batcher(answer, **LEVELS) as call:
        first = call.options(metadata={"user": "ann", "more": 1}, priority=2)
        assert await first.options(metadata={"user": "bob"})("x") == ("bob", 2)
        kept = first.options(metadata=None, priority=None, timeout_s=None, share=None)
        assert await kept("x") == ("ann", 2)
        assert await first("x") == ("ann", 2)


UNKNOWN = [
    ("deadline_s", "write timeout_s, in seconds"),
    ("deadline", "write timeout_s, in seconds"),
    ("request_timeout_s", "write timeout_s, in seconds"),
    ("timeout", "did you mean 'timeout_s'?"),
    ("queue_timeout", "did you mean 'queue_timeout_s'?"),
    ("xyzzy", "there are timeout_s, metadata, priority, queue_timeout_s, share"),
]


@pytest.mark.parametrize(("name", "hint"), UNKNOWN)
@pytest.mark.parametrize("handler", [answer, steps])
def test_an_unknown_option_suggests_the_right_one(handler: Any, name: str, hint: str) -> None:
    given: dict[str, Any] = {name: 5}
    function: Any = shoal.batch(handler)
    calls: list[Any] = [shoal.Batcher(handler).call, function, function.options(priority=1)]
    for call in calls:
        with pytest.raises(TypeError) as told:
            call.options(**given)
        assert str(told.value) == f"{name!r} is not an option of a call; {hint}"


@pytest.mark.real_time
def test_an_unknown_option_of_a_blocking_call_suggests_the_right_one() -> None:
    given: dict[str, Any] = {"deadline_s": 5}
    for handler in (answer, steps):
        with (
            shoal.blocking(shoal.batch(handler)) as call,
            pytest.raises(TypeError, match="write timeout_s"),
        ):
            call.options(**given)
