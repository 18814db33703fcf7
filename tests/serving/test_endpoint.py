"""Endpoints: their names and routes, their traffic, and the requests that they hold."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from batching.callers import LEFT, PENDING, line_up, outcome, outcomes
from batching.scenes import Held, settle
from serving.scenes import Stage, echo, serving, serving_tasks, slowly, under_way
from shoal.batching.current import current_backend_tag
from shoal.errors import (
    DeadlineExceeded,
    InUse,
    NameTaken,
    NoSuchName,
    Overloaded,
    ShoalError,
    ShutDown,
)
from shoal.serving.controller.controller import Controller
from shoal.serving.endpoint import MOST_HELD
from shoal.serving.names import checked_methods, checked_route, checked_tag


@pytest.mark.parametrize("tag", ["a", "Embed-v2", "a.b:c_d", "0", "...a", "x" * 64])
def test_a_name_is_one_plain_word(tag: str) -> None:
    assert checked_tag("a backend's tag", tag) == tag


@pytest.mark.parametrize(
    "tag",
    [
        *("../etc", "a/../b", "/etc/passwd", "model/..", " ..", ".", ".."),
        *("", "x" * 65, "a b", "a\n", "ä", "a#1", "a\0", "a%2e", "٣"),
    ],
)
def test_what_is_no_plain_word_is_no_name(tag: str) -> None:
    with pytest.raises(ValueError, match="can't be a backend's tag: a name has 1 to 64 of"):
        checked_tag("a backend's tag", tag)


@pytest.mark.parametrize("tag", [None, 3, b"a", ["a"]])
def test_a_name_is_text(tag: Any) -> None:
    with pytest.raises(TypeError, match='an endpoint\'s name must be text such as "embed-v2", not'):
        checked_tag("an endpoint's name", tag)


@pytest.mark.parametrize(
    "route", [None, "/", "/a", "/a/b/", "/-a", "/a/-/b", "/v2/models", "/ä b", "/100%", "/.a"]
)
def test_a_route_is_a_path_or_none(route: str | None) -> None:
    assert checked_route(route) == route


@pytest.mark.parametrize(
    ("route", "error", "says"),
    [
        ("a", ValueError, 'must start with "/".*write route="/a"'),
        ("", ValueError, 'must start with "/"'),
        ("/a?b=1", ValueError, "braces"),
        ("/a#b", ValueError, "braces"),
        ("/{id", ValueError, "braces"),
        ("/-", ValueError, "application's own"),
        ("/-/x", ValueError, "application's own"),
        ("//a", ValueError, "no request can reach"),
        ("/./a", ValueError, "no request can reach"),
        ("/a/../b", ValueError, "no request can reach"),
        ("/a/..", ValueError, "no request can reach"),
        ("/a%20b", ValueError, "no request can reach"),
        ("/a%2Fb", ValueError, "no request can reach"),
        ("/\ud800", ValueError, "no request can reach"),
        (3, TypeError, 'must be text, not 3; write route="/3"'),
    ],
)
def test_what_is_no_path_or_reserved_is_no_route(route, error, says):
    with pytest.raises(error, match=says):
        checked_route(route)


def test_methods_are_written_in_capitals_and_once() -> None:
    assert checked_methods(["get", "POST", "Get"]) == ("GET", "POST")


@pytest.mark.parametrize(
    ("methods", "error", "says"),
    [
        ("GET", TypeError, r"must be a list, not 'GET'; write methods = \[\"GET\"\]"),
        (None, TypeError, "must be a list"),
        ((3,), TypeError, "a method is a name"),
        (("FETCH",), ValueError, "there are GET, HEAD"),
        ((), ValueError, "needs a method"),
    ],
)
def test_what_are_no_methods_is_refused(methods: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        checked_methods(methods)


async def who(items: list[Any]) -> list[str]:
    return [current_backend_tag()] * len(items)


async def another(controller: Controller, tag: str, code: Any = who) -> Stage:
    stage = Stage()
    await controller.create_backend(tag, code, config={"placement": stage})
    return stage


@asynccontextmanager
async def without_traffic(code: Any = echo, **config: Any) -> AsyncGenerator[Any]:
    """Serves code beside an endpoint ``later``, which has no traffic yet."""
    async with serving(code, **config) as (controller, _, stage):
        await controller.create_endpoint("later", backend=None)
        yield controller, await controller.get_handle("later"), stage


async def test_traffic_is_divided_by_weight() -> None:
    async with serving(who, max_batch_size=1000) as (controller, handle, _):
        await another(controller, "c")
        await controller.set_traffic("e", {"b": 0.8, "c": 0.2})
        answers = Counter(await outcomes(*[handle.call(0) for _ in range(1000)]))
        assert answers.total() == 1000
        assert 120 < answers["c"] < 280


async def test_equal_keys_go_to_the_same_backend() -> None:
    async with serving(who, max_batch_size=1000) as (controller, handle, _):
        await another(controller, "c")
        await controller.set_traffic("e", {"b": 0.5, "c": 0.5})
        homes: dict[str, str] = {}
        for number in range(40):
            key = f"user {number}"
            sharded = handle.options(shard_key=key)
            answers = {*await outcomes(*[sharded.call(0) for _ in range(5)])}
            assert len(answers) == 1
            [homes[key]] = answers
        assert {*homes.values()} == {"b", "c"}
        await controller.set_traffic("e", {"c": 0.5, "b": 0.5})
        for key, home in homes.items():
            assert await handle.options(shard_key=key).call(0) == home


async def test_only_keys_that_must_move_do() -> None:
    async with serving(who, max_batch_size=1000) as (controller, handle, _):
        await another(controller, "c")
        keys = [handle.options(shard_key=str(number)) for number in range(200)]
        await controller.set_traffic("e", {"b": 0.9, "c": 0.1})
        before = [await key.call(0) for key in keys]
        await controller.set_traffic("e", {"b": 0.7, "c": 0.3})
        after = [await key.call(0) for key in keys]
        assert all(new == "c" for old, new in zip(before, after, strict=True) if old == "c")
        assert after.count("c") > before.count("c")


async def test_a_weight_of_nothing_gets_nothing_and_keeps_the_backend_in_use() -> None:
    async with serving(who) as (controller, handle, _):
        stage = await another(controller, "c")
        await controller.set_traffic("e", {"b": 1, "c": 0})
        assert {await handle.call(0) for _ in range(50)} == {"b"}
        assert stage.calls == []
        with pytest.raises(InUse, match="gets traffic of e"):
            await controller.delete_backend("c")
        await controller.set_traffic("e", {"b": 1})
        await controller.delete_backend("c")


async def test_queued_requests_end_where_they_are_when_traffic_moves(held: Held) -> None:
    async with serving_tasks(held, max_batch_size=2) as (controller, handle, _, tasks):
        callers = await under_way(tasks, *[handle.call(item) for item in range(5)])
        await another(controller, "c")
        await controller.set_traffic("e", {"c": 1})
        assert await handle.call(9) == "c"
        [deleting] = await under_way(tasks, controller.delete_backend("b"))
        assert deleting.outcome is PENDING
        await held.release()
        assert [caller.outcome for caller in callers] == [*range(5)]
        assert deleting.outcome is None


async def test_a_backend_that_is_used_can_not_be_deleted() -> None:
    async with serving(echo) as (controller, handle, _):
        for force in (False, True):
            with pytest.raises(InUse, match="gets traffic of e; send that elsewhere"):
                await controller.delete_backend("b", force=force)
        assert await handle.call(1) == 1


async def test_force_fails_queued_requests(held: Held) -> None:
    async with serving_tasks(held, max_batch_size=1) as (controller, handle, stage, tasks):
        callers = await under_way(tasks, *[handle.call(item) for item in range(3)])
        await another(controller, "c")
        await controller.set_traffic("e", {"c": 1})
        await controller.delete_backend("b", force=True)
        await settle()
        assert anyio.current_time() == 0
        assert all(isinstance(caller.outcome, ShoalError) for caller in callers)
        assert stage.alive == []
        assert "b" not in await controller.list_backends()


async def test_requests_are_held_until_there_is_traffic() -> None:
    async with without_traffic() as (controller, later, stage), anyio.create_task_group() as tasks:
        callers = await line_up(tasks, *[later.call(item) for item in range(3)])
        await anyio.sleep(100)
        assert [caller.outcome for caller in callers] == [PENDING] * 3
        assert controller.status_now().endpoints["later"].held == 3
        assert stage.calls == []
        await controller.set_traffic("later", {"b": 1})
        await settle()
        assert [caller.outcome for caller in callers] == [0, 1, 2]
        assert controller.status_now().endpoints["later"].held == 0


@pytest.mark.parametrize("turn", range(5))
async def test_requests_that_were_held_go_on_in_order(turn: int) -> None:
    async with without_traffic(max_batch_size=1) as (controller, later, stage):
        async with anyio.create_task_group() as tasks:
            await under_way(tasks, *[later.call(item) for item in range(8 + turn)])
            await controller.set_traffic("later", {"b": 1})
        assert [item for _, items in stage.calls for item in items] == [*range(8 + turn)]


async def test_so_many_are_held_and_no_more() -> None:
    async with without_traffic(max_batch_size=2000) as (controller, later, _):
        async with anyio.create_task_group() as tasks:
            callers = await under_way(tasks, *[later.call(item) for item in range(MOST_HELD)])
            error = await outcome(later.call(-1))
            assert isinstance(error, Overloaded)
            assert "wait for traffic" in str(error)
            await callers[0].gone()
            await line_up(tasks, later.call(0))
            assert isinstance(await outcome(later.call(-1)), Overloaded)
            await controller.set_traffic("later", {"b": 1})
        assert [caller.outcome for caller in callers[1:]] == [*range(1, MOST_HELD)]


async def test_a_request_that_comes_when_there_is_traffic_is_not_held() -> None:
    async with (
        without_traffic(max_batch_size=64) as (controller, later, _),
        anyio.create_task_group() as tasks,
    ):
        await under_way(tasks, *[later.call(item) for item in range(1000)])
        await controller.set_traffic("later", {"b": 1})
        assert await outcomes(*[later.call(item) for item in range(20)]) == [*range(20)]


@pytest.mark.parametrize("leaving", [0, 1, 2])
async def test_rc4_a_held_request_whose_caller_leaves_is_forgotten(leaving: int) -> None:
    async with without_traffic() as (controller, later, stage), anyio.create_task_group() as tasks:
        callers = await under_way(tasks, *[later.call(item) for item in range(3)])
        await callers[leaving].gone()
        assert callers[leaving].outcome is LEFT
        assert controller.status_now().endpoints["later"].held == 2
        await controller.set_traffic("later", {"b": 1})
        await settle()
        done = [item for _, items in stage.calls for item in items]
        assert done == [item for item in range(3) if item != leaving]


@pytest.mark.parametrize("leaving", [0, 1, 2])
async def test_a_caller_that_leaves_when_traffic_is_set_holds_up_nobody(leaving: int) -> None:
    async with without_traffic() as (controller, later, _), anyio.create_task_group() as tasks:
        callers = await under_way(tasks, *[later.call(item) for item in range(3)])
        await controller.set_traffic("later", {"b": 1})
        await callers[leaving].gone()
        for item, caller in enumerate(callers):
            assert caller.outcome in ((item, LEFT) if item == leaving else (item,))


async def test_a_held_request_ends_when_its_time_is_up() -> None:
    async with without_traffic() as (controller, held, _):
        later = held.options(timeout_s=3)
        error = await outcome(later.call(1))
        assert isinstance(error, DeadlineExceeded)
        assert anyio.current_time() == 3
        assert controller.status_now().endpoints["later"].held == 0
        assert controller.status_now().endpoints["later"].errors == 1


async def test_the_time_for_which_a_request_is_held_counts() -> None:
    async with without_traffic(slowly) as (controller, held, _), anyio.create_task_group() as tasks:
        later = held.options(timeout_s=1)
        [caller] = await line_up(tasks, later.call(100.0))
        await anyio.sleep(0.75)
        await controller.set_traffic("later", {"b": 1})
        await anyio.sleep(5)
        assert isinstance(caller.outcome, DeadlineExceeded)
        assert caller.ended_at == pytest.approx(1)


async def test_held_requests_fail_when_the_endpoint_is_deleted() -> None:
    async with without_traffic() as (controller, later, _), anyio.create_task_group() as tasks:
        callers = await under_way(tasks, later.call(1), later.call(2))
        await controller.delete_endpoint("later")
        await settle()
        errors = [caller.outcome for caller in callers]
        assert all(isinstance(error, NoSuchName) for error in errors)
        assert errors[0] is not errors[1]
        assert isinstance(await outcome(later.call(3)), NoSuchName)


@pytest.mark.parametrize("shard_key", [None, "key"])
async def test_traffic_that_is_set_while_draining_gets_the_calls(shard_key: str | None) -> None:
    async with without_traffic() as (controller, held, _):
        later = held.options(shard_key=shard_key)
        controller.drain()
        assert isinstance(await outcome(later.call(1)), ShutDown)
        await controller.set_traffic("later", {"b": 1})
        assert await later.call(1) == 1


async def test_held_requests_fail_when_the_controller_is_shut_down() -> None:
    async with without_traffic() as (controller, later, _), anyio.create_task_group() as tasks:
        callers = await under_way(tasks, later.call(1), later.call(2))
        await controller.shutdown()
        await settle()
        assert all(isinstance(caller.outcome, ShoalError) for caller in callers)


async def test_a_name_that_is_taken_is_refused_with_what_has_it() -> None:
    async with serving(echo) as (controller, _, _):
        await controller.create_endpoint("first", backend="b", route="/r", methods=["get", "POST"])
        with pytest.raises(NameTaken, match="'first' already, with route='/r'"):
            await controller.create_endpoint("first", backend="b", route="/other")
        methods = ["POST", "GET"]
        with pytest.raises(NameTaken, match="set its traffic"):
            await controller.create_endpoint("first", backend="b", route="/r", methods=methods)
        with pytest.raises(NameTaken, match="POST /r is answered by the endpoint 'first'"):
            await controller.create_endpoint("second", backend="b", route="/r", methods=["POST"])
        await controller.create_endpoint("second", backend="b", route="/r", methods=["PUT"])
        listed = await controller.list_endpoints()
        assert listed["first"]["methods"] == ["GET", "POST"]
        assert sorted(listed) == ["e", "first", "second"]


async def test_a_name_and_a_route_are_free_again_when_the_endpoint_is_deleted() -> None:
    async with serving(echo) as (controller, handle, _):
        await controller.create_endpoint("first", backend="b", route="/r")
        await controller.delete_endpoint("first")
        await controller.create_endpoint("second", backend="b", route="/r")
        await controller.create_endpoint("first", backend="b")
        assert await handle.call(1) == 1
        with pytest.raises(NoSuchName, match="there are: e, first, second"):
            await controller.delete_endpoint("third")


async def test_it_counts_requests_and_errors() -> None:
    async def code(items: list[int]) -> list[Any]:
        return [ZeroDivisionError() if item < 0 else item for item in items]

    async with serving(code) as (controller, handle, _):
        await outcomes(*[handle.call(item) for item in (1, -1, 2, -2, 3)])
        endpoint = controller.status_now().endpoints["e"]
        assert (endpoint.requests, endpoint.errors) == (5, 2)
        backend = controller.status_now().backends["b"]
        assert (backend.requests, backend.errors) == (5, 2)


async def test_a_backend_serves_several_endpoints() -> None:
    async with serving(echo) as (controller, handle, _):
        await controller.create_endpoint("f", backend="b")
        other = await controller.get_handle("f")
        assert await outcomes(handle.call(1), other.call(2)) == [1, 2]
        await controller.delete_endpoint("e")
        with pytest.raises(InUse, match="traffic of f"):
            await controller.delete_backend("b")
        assert await other.call(3) == 3
