"""Calls by a handle: what they ask for, what they give back, and calls of code to other code."""

import pickle
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import line_up, outcome, outcomes, read
from batching.scenes import Held, settle
from serving.scenes import Stage, deployed, echo, serving, serving_tasks, slowly, under_way
from shoal.errors import DeadlineExceeded, NoSuchName, Overloaded, ShutDown
from shoal.replicas.code.definition import accept_batch
from shoal.replicas.code.endpoint_call import HANDLE_OPTIONS
from shoal.serving.controller.controller import Controller


class Code:
    async def __call__(self, items: list[int]) -> list[int]:
        return items

    async def add(self, left: list[int], right: list[int] = [1]) -> list[int]:  # noqa: B006
        return [a + b for a, b in zip(left, right, strict=True)]

    async def one(self, item: int) -> int:
        return -item

    async def steps(self, items: list[int]) -> AsyncGenerator[list[int], None]:
        for step in range(3):
            yield [item * 10 + step for item in items]


async def asked(items: list[int]) -> list[tuple[Any, ...]]:
    """Answers with what the code can see of each request."""
    batch = shoal.current_batch()
    now = anyio.current_time()
    left = [None if r.deadline is None else r.deadline - now for r in batch.requests]
    told = [(r.metadata.get("method"), r.metadata.get("headers")) for r in batch.requests]
    return [(limit, *each) for limit, each in zip(left, told, strict=True)]


async def endpoint_of(controller: Controller, name: str, code: Any, **config: Any) -> Any:
    return await deployed(controller, name, code, config={"placement": Stage(), **config})


async def test_any_method_can_be_called() -> None:
    async with serving(Code) as (_, handle, _):
        assert await handle.call(3) == 3
        add = handle.options(method_name="add")
        assert await add.call(3, 4) == 7
        assert await add.call(3, right=4) == 7
        assert await handle.options(method_name="one").call(3) == -3
        assert await read(handle.options(method_name="steps").stream(4)) == [40, 41, 42]


async def test_a_method_that_is_not_there_is_named_with_those_that_are() -> None:
    async with serving(Code) as (controller, handle, _):
        error = await outcome(handle.options(method_name="multiply").call(1))
        assert isinstance(error, NoSuchName)
        assert "'multiply'" in str(error)
        assert "__call__, add, one, steps" in str(error)
        assert controller.status_now().endpoints["e"].errors == 1


async def test_arguments_that_do_not_fit_fail_their_caller_alone() -> None:
    async with serving(Code) as (_, handle, stage):
        results = await outcomes(handle.call(1), handle.call(1, 2), handle.call())
        assert results[0] == 1
        assert isinstance(results[1], TypeError)
        assert isinstance(results[2], TypeError)
        assert stage.calls == [(0, [1])]


async def test_a_call_of_the_wrong_kind_says_the_right_one() -> None:
    async with serving(Code) as (_, handle, stage):
        error = await outcome(handle.options(method_name="steps").call(1))
        assert isinstance(error, TypeError)
        assert "async with handle.stream(item) as stream" in str(error)
        with pytest.raises(TypeError, match=r"await handle\.call\(item\)"):
            async with handle.stream(1):
                pass
        assert stage.calls == []


async def test_options_lie_over_each_other() -> None:
    async with serving(asked) as (_, handle, _):
        first = handle.options(timeout_s=5, http_method="POST")
        second = first.options(http_headers={"a": "b"})
        assert await handle.call(0) == (None, None, None)
        assert await first.call(0) == (5, "POST", {})
        assert await second.call(0) == (5, "POST", {"a": "b"})
        assert await second.options(timeout_s=2).call(0) == (2, "POST", {"a": "b"})
        assert await second.map([0, 0]) == [(5, "POST", {"a": "b"})] * 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("deadline_s", "write timeout_s, in seconds"),
        ("timeout", "did you mean 'timeout_s'?"),
        ("headers", "did you mean 'http_headers'?"),
        ("xyzzy", f"there are {', '.join(HANDLE_OPTIONS)}"),
    ],
)
async def test_an_unknown_option_suggests_the_right_one(name: str, hint: str) -> None:
    given: dict[str, Any] = {name: 5}
    async with serving(echo) as (_, handle, _):
        for asking in (handle, handle.options(priority=1), handle.sync):
            with pytest.raises(TypeError) as told:
                asking.options(**given)
            assert str(told.value) == f"{name!r} is not an option of a handle; {hint}"


async def test_many_calls_at_once_share_batches_and_have_their_results_in_order() -> None:
    async with serving(Code, max_batch_size=64) as (_, handle, stage):
        assert await handle.map(iter(range(40))) == [*range(40)]
        assert [len(items) for _, items in stage.calls] == [40]
        add = handle.options(method_name="add")
        assert await add.map([1, 2], [10, 20]) == [11, 22]
        assert await handle.map([]) == []
        with pytest.raises(ValueError, match="argument 2 is shorter"):
            await add.map([1, 2], [10])
        with pytest.raises(TypeError, match=r"handle\.stream"):
            await handle.options(method_name="steps").map([1, 2])


async def fails_some(items: list[int]) -> list[Any]:
    return [LookupError(item) if item % 3 == 2 else item for item in items]


async def test_many_calls_raise_the_first_error_or_return_each_in_its_place() -> None:
    async with serving(fails_some, max_batch_size=64) as (_, handle, _):
        with pytest.raises(LookupError, match="2"):
            await handle.map(range(6))
        results = await handle.map(range(6), return_exceptions=True)
        assert [*map(repr, results)] == ["0", "1", "LookupError(2)", "3", "4", "LookupError(5)"]


async def test_code_is_told_that_a_call_came_from_python_and_by_which_endpoint() -> None:
    python = {"context": "python", "endpoint": "e"}
    more = {"method": "PUT", "headers": {"a": "b"}}
    async with serving(told_of, bucket_by=lambda item: item) as (controller, handle, _):
        await controller.create_endpoint("f", backend="b")
        other = await controller.get_handle("f")
        calls = handle.call(0), other.call(0), handle.options(priority=1).call(0)
        assert await outcomes(*calls) == [python, {**python, "endpoint": "f"}, python]
        asking = handle.options(http_method="PUT", http_headers={"a": "b"})
        assert await asking.call(0) == {**python, **more}
        assert await asking.options(timeout_s=5).call(0) == {**python, **more}
        keyed = await handle.options(shard_key="ann").call(0)
        assert keyed == {**python, "shard_key": "ann"}


async def test_code_is_told_which_of_its_methods_is_called() -> None:
    class Code:
        async def __call__(self, item: int) -> Any:
            return item

        async def other(self, item: int) -> Any:
            return shoal.current_batch().requests[0].metadata.get("method_name")

    async with serving(Code) as (_, handle, _):
        assert await handle.options(method_name="other").call(0) == "other"


async def test_keyword_arguments_are_the_query_of_code_without_annotations() -> None:
    async def greet(request: Any) -> Any:
        return request.query_params["name"]

    async with serving(greet) as (_, handle, _):
        assert await handle.remote(name="dace") == "dace"
        with pytest.raises(TypeError, match="put both into one item"):
            await handle.remote(1, name="dace")


async def test_what_waits_keeps_what_it_is_told_with_when_the_backend_changes() -> None:
    held = Held(lambda item: dict(shoal.current_batch().requests[0].metadata))
    async with serving(held, max_batch_size=1) as (controller, handle, _):
        results: list[Any] = []

        async def call() -> None:
            results.append(await handle.call(0))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(call)
            await settle()
            changes: Any = {"priority_levels": 2, "request_timeout_s": 5}
            await controller.update_backend_config("b", changes)
            tasks.start_soon(call)
            await settle()
            held.gate.set()
        assert results == [{"context": "python", "endpoint": "e"}] * 4


async def test_streams_and_shadows_are_told_as_much() -> None:
    seen: list[dict[str, Any]] = []

    def note() -> None:
        seen.extend(dict(request.metadata) for request in shoal.current_batch().requests)

    async def steps(items: list[int]) -> AsyncGenerator[list[int], None]:
        note()
        yield items

    async def noting(items: list[int]) -> list[int]:
        note()
        return items

    async with serving(steps) as (controller, handle, _):
        await endpoint_of(controller, "copy", noting)
        await controller.shadow_traffic("e", "copy", 1.0)
        assert await read(handle.stream(1)) == [1]
        await settle()
    python = {"context": "python", "endpoint": "e"}
    assert [python, {**python, "shadow": True}] == sorted(seen, key=len)


async def test_a_handlers_own_calls_are_not_taken_for_its_callers() -> None:
    batched = shoal.Batcher(told_of)

    async def outer(items: list[int]) -> list[Any]:
        return [await batched.call(item) for item in items]

    async with batched, serving(outer) as (_, handle, _):
        assert await handle.call(1) == {}


async def told_of(items: list[int]) -> list[dict[str, Any]]:
    return [dict(request.metadata) for request in shoal.current_batch().requests]


async def test_a_call_without_arguments_is_a_request_without_data() -> None:
    async def greet(request):  # type: ignore[no-untyped-def]
        return "hello " + request.query_params.get("name", "nobody")

    async def pong() -> str:
        return "pong"

    async def listed(items):  # type: ignore[no-untyped-def]
        return [dict(item) for item in items]

    async def stepped(items):  # type: ignore[no-untyped-def]
        yield [dict(item) for item in items]

    for code, answer in ((greet, "hello nobody"), (pong, "pong"), (accept_batch(listed), {})):
        async with serving(code) as (_, handle, _):
            assert await handle.remote() == answer
    async with serving(accept_batch(stepped)) as (_, handle, _):
        assert await read(handle.stream()) == [{}]


@pytest.mark.parametrize("code", [lambda a, b: 0, lambda a=3: a, echo])
async def test_a_call_without_arguments_is_what_the_code_says_where_it_says_so(code: Any) -> None:
    async with serving(code) as (_, handle, _):
        result = await outcome(handle.remote())
        assert result == 3 or isinstance(result, TypeError)


async def test_a_priority_goes_first(held: Held) -> None:
    config: Any = {"max_batch_size": 1, "priority_levels": 3, "default_priority": 3}
    async with serving(held, **config) as (_, handle, _), anyio.create_task_group() as tasks:
        await under_way(tasks, handle.call(0))
        await under_way(tasks, handle.call(3), handle.options(priority=1).call(1))
        await held.release()
        assert held.batches == [[0], [1], [3]]


async def test_rc14_a_time_out_ends_a_call_that_runs() -> None:
    async with serving(slowly) as (_, handle, _):
        error = await outcome(handle.options(timeout_s=2).call(100.0))
        assert isinstance(error, DeadlineExceeded)
        assert anyio.current_time() == 2


async def test_a_time_out_ends_a_stream() -> None:
    async def code(items: list[int]) -> AsyncGenerator[list[int], None]:
        while True:
            yield items
            await anyio.sleep(1)

    got: list[int] = []
    async with serving(code) as (controller, handle, _):
        async with handle.options(timeout_s=2.5).stream(7) as stream:
            got += [await anext(stream) for _ in range(3)]
            with pytest.raises(DeadlineExceeded):
                await anext(stream)
        assert anyio.current_time() == 2.5
        assert got == [7, 7, 7]
        assert controller.status_now().endpoints["e"].errors == 1


async def test_a_full_queue_refuses_calls(held: Held) -> None:
    async with serving_tasks(held, max_queued_requests=2) as (controller, handle, _, tasks):
        await under_way(tasks, handle.call(0))
        await line_up(tasks, handle.call(1), handle.call(2))
        assert isinstance(await outcome(handle.call(3)), Overloaded)
        assert controller.status_now().backends["b"].queued == 2
        held.gate.set()


async def test_a_full_queue_knows_what_other_methods_have_taken() -> None:
    class Two(Code):
        async def other(self, items: list[int]) -> list[int]:
            await anyio.sleep(5)
            return items

    async with serving_tasks(Two, max_queued_requests=0) as (_, handle, _, tasks):
        assert await handle.call(1) == 1
        await under_way(tasks, handle.options(method_name="other").call(1))
        assert isinstance(await outcome(handle.call(2)), Overloaded)


async def test_a_stream_is_made_when_it_is_entered() -> None:
    async with serving(Code) as (controller, handle, stage):
        stream = handle.options(method_name="steps").stream(1)
        await settle()
        assert stage.calls == []
        async with stream:
            assert await anext(stream) == 10
        assert controller.status_now().endpoints["e"].requests == 1


async def test_a_stream_can_be_read_without_a_block() -> None:
    async with serving(Code) as (_, handle, _):
        stream = handle.options(method_name="steps").stream(1)
        assert [item async for item in stream] == [10, 11, 12]
        assert [item async for item in stream] == []
        await stream.aclose()


async def test_a_stream_that_was_closed_makes_no_call() -> None:
    async with serving(Code) as (_, handle, stage):
        stream = handle.options(method_name="steps").stream(1)
        await stream.aclose()
        await stream.aclose()
        assert [item async for item in stream] == []
        async with stream:
            assert [item async for item in stream] == []
        assert stage.calls == []


@pytest.mark.parametrize("entered", [False, True])
async def test_a_reader_that_is_cancelled_leaves_the_stream(entered: bool) -> None:
    closed: list[list[int]] = []

    async def code(items: list[int]) -> AsyncGenerator[list[int], None]:
        try:
            await anyio.sleep(50)
            yield items
        finally:
            closed.append(items)

    async with serving(code) as (_, handle, _):
        stream = handle.stream(1)
        with anyio.move_on_after(1):
            if entered:
                async with stream:
                    await anext(stream)
            await anext(stream)
        await settle()
        assert closed == [[1]]


async def test_rc23_a_stream_that_fails_counts_once() -> None:
    async def code(items: list[int]) -> AsyncGenerator[list[int], None]:
        yield items
        raise ZeroDivisionError

    async with serving(code) as (controller, handle, _):
        async with handle.stream(1) as stream:
            assert await anext(stream) == 1
            with pytest.raises(ZeroDivisionError):
                await anext(stream)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        endpoint = controller.status_now().endpoints["e"]
        assert (endpoint.requests, endpoint.errors) == (1, 1)


async def test_a_handle_finds_the_endpoint_that_has_its_name_now() -> None:
    async with serving(echo) as (controller, handle, _):
        await controller.delete_endpoint("e")
        with pytest.raises(NoSuchName, match="there is no endpoint 'e'"):
            await handle.call(1)
        with pytest.raises(NoSuchName):
            handle.stream(1)
        await controller.create_endpoint("e", backend="b")
        assert await handle.call(1) == 1


async def test_a_call_in_rays_spelling_can_be_a_task(held: Held) -> None:
    async with serving(held) as (_, handle, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle.remote, 1)
            await settle()
            assert held.batches == [[1]]
            tasks.cancel_scope.cancel()
        held.gate.set()
        assert await handle.remote(2) == 2


async def test_a_handle_that_was_sent_somewhere_else_is_refused() -> None:
    async with serving(echo) as (_, handle, _):
        sent = pickle.dumps(handle)
        with pytest.raises(RuntimeError, match=r"shoal\.connect"):
            await pickle.loads(sent).call(1)


async def test_calls_after_shutdown_are_refused() -> None:
    async with serving(Code) as (controller, handle, _):
        await controller.shutdown()
        with pytest.raises(ShutDown):
            await handle.call(1)
        with pytest.raises(ShutDown):
            async with handle.options(method_name="steps").stream(1):
                pass


async def test_code_calls_other_code() -> None:
    async with serving(echo) as (controller, inner, stage):

        async def outer(items: list[int]) -> list[int]:
            return [-item for item in await outcomes(*[inner.call(item) for item in items])]

        handle = await endpoint_of(controller, "o", outer, batch_wait_timeout_s=1)
        assert await outcomes(*[handle.call(item) for item in range(5)]) == [0, -1, -2, -3, -4]
        assert [len(items) for _, items in stage.calls] == [5]


async def test_rc3_rc5_a_caller_that_leaves_cancels_the_calls_of_the_code(held: Held) -> None:
    async with serving(held) as (controller, inner, _), anyio.create_task_group() as tasks:

        async def outer(items: list[int]) -> list[int]:
            return [await inner.call(item) for item in items]

        handle = await endpoint_of(controller, "o", outer)
        [caller] = await under_way(tasks, handle.call(1))
        assert held.batches == [[1]]
        await caller.gone()
        assert held.cancelled == [[1]]


async def test_rc18_a_deadline_goes_on_to_the_calls_of_the_code() -> None:
    async with serving(asked) as (controller, inner, _):
        seen: list[Any] = []

        async def outer(items: list[int]) -> list[int]:
            await anyio.sleep(1)
            seen.append((await inner.call(0))[0])
            seen.append((await inner.options(timeout_s=2).call(0))[0])
            seen.append((await inner.options(timeout_s=100).call(0))[0])
            return items

        handle = await endpoint_of(controller, "o", outer)
        await handle.options(timeout_s=5).call(1)
        assert seen == [pytest.approx(4), pytest.approx(2), pytest.approx(4)]
        seen.clear()
        await handle.call(1)
        assert seen == [None, 2, 100]


async def test_the_last_deadline_of_a_batch_goes_on() -> None:
    async with serving(asked) as (controller, inner, _):
        seen: list[Any] = []

        async def outer(items: list[int]) -> list[int]:
            seen.append((await inner.call(0))[0])
            return items

        pairs: Any = {"batch_wait_timeout_s": None, "max_batch_size": 2}
        handle = await endpoint_of(controller, "o", outer, **pairs)
        await outcomes(*[handle.options(timeout_s=limit).call(1) for limit in (5, 9)])
        await outcomes(handle.options(timeout_s=5).call(1), handle.call(1))
        assert seen == [9, None]


async def test_a_deadline_that_has_passed_ends_the_calls_of_the_code() -> None:
    async with serving(slowly) as (controller, inner, stage):
        ended: list[Any] = []

        async def outer(items: list[float]) -> list[float]:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(3)
                ended.append(await outcome(inner.call(1.0)))
            return items

        handle = await endpoint_of(controller, "o", outer)
        assert isinstance(await outcome(handle.options(timeout_s=2).call(1.0)), DeadlineExceeded)
        await anyio.sleep(5)
        assert isinstance(ended[0], DeadlineExceeded)
        assert stage.calls == []
