"""What a client promises holds for the one in the controller's process and for the remote one."""

import itertools
import threading
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from batching.callers import read
from serving.scenes import deployed
from shoal import errors
from shoal.asgi.http_options import HttpOptions
from shoal.http.admin.api import AdminApi
from shoal.http.app.admin_mount import AdminMount
from shoal.serving.backend_config import BackendConfig
from shoal.serving.clients.remote_client import RemoteClient
from shoal.serving.controller.controller import Controller

# Replicas load their code in threads.
pytestmark = pytest.mark.real_time

CODE = "serving.plain_code"


@asynccontextmanager
async def connected():
    """A controller, and a remote client of it."""
    async with Controller() as controller:
        admin_listener = AdminMount(AdminApi(controller, token=None, allowed_modules=[CODE]))
        transport = httpx.ASGITransport(app=admin_listener)
        async with RemoteClient("http://localhost", transport=transport) as client:
            yield controller, client


@asynccontextmanager
async def remote():
    async with connected() as (_, client):
        yield client


@pytest.fixture(params=[Controller, remote], ids=["here", "remote"])
def opened(request):
    return request.param


async def handle_of(client, code, *args, **more):
    """Makes the backend ``s`` and its endpoint ``e``."""
    return await deployed(client, "s", f"{CODE}:{code}", *args, endpoint="e", **more)


async def test_a_backend_is_made_called_changed_and_deleted(opened):
    async with opened() as client:
        handle = await handle_of(client, "Scaled", 3, init_kwargs={"offset": 1})
        assert await handle.call(2) == 7
        assert await handle.remote(3) == 10
        await client.update_backend_config("s", {"user_config": {"factor": 5}})
        assert await handle.call(2) == 11
        assert (await client.get_backend_config("s")).user_config == {"factor": 5}
        await client.scale_backend("s", 2)
        await client.restart_backend("s")
        config = BackendConfig(user_config={"factor": 5}, num_replicas=2)
        assert await client.list_backends() == {"s": config}
        with pytest.raises(errors.InUse, match="gets traffic of e"):
            await client.delete_backend("s")
        await client.delete_endpoint("e")
        await client.delete_backend("s")
        assert await client.list_backends() == {}


async def test_a_placement_of_ones_own_gets_its_options(opened):
    own = {"placement": f"{CODE}:FactorReplica", "placement_options": {"factor": 5}}
    async with opened() as client:
        handle = await handle_of(client, "Scaled", 3, config=own)
        assert await handle.call(2) == 10
        assert await client.get_backend_config("s") == BackendConfig.of(own)
        await client.update_backend_config("s", {"placement_options": {"factor": 6}})
        assert await handle.call(2) == 12
        for wrong in ({"zone": "a"}, {}):
            config = {**own, "placement_options": wrong}
            with pytest.raises(TypeError, match=r"placement_options.*factor"):
                await client.update_backend_config("s", {"placement_options": wrong})
            with pytest.raises(TypeError, match=r"placement_options.*factor"):
                await client.create_backend("t", f"{CODE}:Scaled", 3, config=config)
        with pytest.raises(TypeError, match="key"):
            await client.update_backend_config("s", {"placement_options": {1: 2}})
        with pytest.raises(ValueError, match="of placement='task' by name"):
            await client.update_backend_config("s", {"placement": "task"})
        assert await handle.call(2) == 12
        changed = BackendConfig.of({**own, "placement_options": {"factor": 6}})
        assert await client.list_backends() == {"s": changed}


async def test_a_stream_is_read_and_left(opened):
    async with opened() as client:
        handle = await handle_of(client, "steps")
        assert await read(handle.stream(3)) == [0, 1, 2]
        async with handle.stream(2) as stream:
            assert await anext(stream) == 0
        with pytest.raises(TypeError, match=r"handle\.stream"):
            await handle.call(3)


async def test_many_calls_are_made_at_once(opened):
    async with opened() as client:
        handle = await handle_of(client, "Scaled", 3)
        assert await handle.map(range(100)) == [3 * number for number in range(100)]
        results = await handle.map([1, None, 2], return_exceptions=True)
        assert [results[0], type(results[1]), results[2]] == [3, TypeError, 6]
        with pytest.raises(TypeError):
            await handle.map([1, None, 2])


async def test_a_data_set_is_worked_through(opened):
    taken = []

    def source():
        for number in itertools.count():
            taken.append(number)
            yield number

    async def in_turns():
        for number in range(10):
            await anyio.lowlevel.checkpoint()
            yield number

    async with opened() as client:
        handle = await handle_of(client, "Scaled", 3)
        async with handle.map(source(), window=4) as results:
            assert [await anext(results) for _ in range(50)] == [3 * n for n in range(50)]
        assert len(taken) <= 54
        results = [one async for one in handle.map(in_turns(), as_completed=True)]
        assert sorted(results) == [(n, 3 * n) for n in range(10)]
        results = handle.map(iter([1, None, 2]), return_exceptions=True)
        assert [type(one) async for one in results] == [int, TypeError, int]


async def test_items_that_a_full_queue_refuses_are_called_again():
    async with Controller() as client:
        handle = await handle_of(client, "double", config={"max_queued_requests": 64})
        assert [one async for one in handle.map(range(200))] == [2 * n for n in range(200)]
        results = await handle.map(range(200), return_exceptions=True)
        assert {type(one) for one in results} == {int, errors.Overloaded}
        assert await handle.map(range(1100)) == [2 * n for n in range(1100)]


async def test_plain_code_makes_many_calls_at_once():
    async with Controller() as client:
        handle = (await handle_of(client, "Scaled", 3)).sync

        def block():
            results = handle.map(itertools.count(), window=4)
            assert list(itertools.islice(results, 20)) == [3 * n for n in range(20)]
            results.close()
            results = handle.map([1, None], window=4)
            assert next(results) == 3
            with pytest.raises(TypeError):
                next(results)
            return handle.map(iter([1, 2])), handle.options(priority=1).map([3])

        assert await anyio.to_thread.run_sync(block) == ([3, 6], [9])


async def test_traffic_is_divided_and_shadowed(opened):
    async with opened() as client:
        for tag in ("a", "b"):
            await client.create_backend(tag, f"{CODE}:double")
        await client.create_endpoint("e", backend="a", route="/e", methods=["POST"])
        await client.set_traffic("e", {"a": 0.25, "b": 0.75})
        await client.shadow_traffic("e", "b", 0.5)
        assert await client.list_endpoints() == {
            "e": {
                "route": "/e",
                "methods": ["POST"],
                "traffic": {"a": 0.25, "b": 0.75},
                "shadows": {"b": 0.5},
            }
        }
        status = await client.status()
        assert status.endpoints["e"].traffic == {"a": 0.25, "b": 0.75}
        assert status.backends["a"].replicas[0].state == "ready"
        await client.shadow_traffic("e", "b", 0)
        assert (await client.list_endpoints())["e"]["shadows"] == {}


REFUSED_ALIKE: list[Any] = [
    ("create_backend", ("a", f"{CODE}:double"), {}, errors.NameTaken),
    ("create_backend", ("a b", f"{CODE}:double"), {}, ValueError),
    ("create_backend", (5, f"{CODE}:double"), {}, TypeError),
    ("create_backend", ("x", "no path"), {}, ValueError),
    ("create_backend", ("x", f"{CODE}:absent"), {}, errors.ReplicaNotStarted),
    ("create_backend", ("x", f"{CODE}:Broken"), {}, errors.ReplicaNotStarted),
    ("create_backend", ("x", f"{CODE}:double"), {"config": {"replicas": 1}}, TypeError),
    ("create_backend", ("x", f"{CODE}:double"), {"config": {"retries": -1}}, ValueError),
    ("update_backend_config", ("no", {}), {}, errors.NoSuchName),
    ("update_backend_config", ("a", {"retries": "x"}), {}, TypeError),
    ("update_backend_config", ("a", 5), {}, TypeError),
    ("get_backend_config", ("no",), {}, errors.NoSuchName),
    ("scale_backend", ("a", 0), {}, ValueError),
    ("restart_backend", ("no",), {}, errors.NoSuchName),
    ("delete_backend", ("no",), {}, errors.NoSuchName),
    ("create_endpoint", ("e",), {"backend": "a"}, errors.NameTaken),
    ("create_endpoint", ("x",), {"backend": "no"}, errors.NoSuchName),
    ("create_endpoint", ("x",), {"backend": "a", "route": "x"}, ValueError),
    ("create_endpoint", ("x",), {"backend": "a", "methods": 5}, TypeError),
    ("delete_endpoint", ("no",), {}, errors.NoSuchName),
    ("set_traffic", ("e", {"a": 0.5}), {}, ValueError),
    ("set_traffic", ("e", {"a": "x"}), {}, TypeError),
    ("set_traffic", ("e", {"no": 1.0}), {}, errors.NoSuchName),
    ("set_traffic", ("no", {"a": 1.0}), {}, errors.NoSuchName),
    ("shadow_traffic", ("e", "a", 2), {}, ValueError),
    ("shadow_traffic", ("e", "a", "x"), {}, TypeError),
    ("shadow_traffic", ("e", "no", 0.5), {}, errors.NoSuchName),
    ("get_handle", ("no",), {}, errors.NoSuchName),
    ("get_handle", (5,), {"missing_ok": True}, TypeError),
    ("get_handle", ("a b",), {"missing_ok": True}, ValueError),
    ("create_backend", ("x", f"{CODE}:double"), {"config": {5: 1}}, TypeError),
    ("create_backend", ("x", f"{CODE}:double"), {"init_kwargs": 5}, TypeError),
    ("create_backend", ("x", f"{CODE}:double"), {"init_kwargs": {5: 1}}, TypeError),
    ("update_backend_config", ("a", None), {}, TypeError),
    ("delete_backend", ("a",), {"force": "yes"}, TypeError),
    ("create_endpoint", ("x",), {"backend": "a", "methods": object}, TypeError),
    ("set_traffic", ("e", None), {}, TypeError),
    ("set_traffic", ("e", [("a", 1.0)]), {}, TypeError),
    ("set_traffic", ("e", {5: 1.0}), {}, TypeError),
    ("set_traffic", ("e", {"a": float("nan")}), {}, ValueError),
    ("set_traffic", ("e", {"a": object}), {}, TypeError),
]
# What is never sent is refused in other words.
REFUSED: list[Any] = [
    ("create_backend", (object, f"{CODE}:double"), {}, TypeError),
    ("shadow_traffic", ("e", "a", float("inf")), {}, ValueError),
    ("create_backend", ("x", 5), {}, TypeError),
    ("create_backend", ("x", f"{CODE}:double"), {"config": {"retries": object}}, TypeError),
    ("create_backend", ("x", f"{CODE}:double"), {"config": {"retries": 1.5}}, TypeError),
    (
        "create_backend",
        ("x", f"{CODE}:double"),
        {"config": {"request_timeout_s": float("nan")}},
        ValueError,
    ),
    ("shadow_traffic", ("e", "a", 0.5), {"compare": 5}, TypeError),
    *[
        (verb, (name, *args), {}, errors.NoSuchName)
        for name in (5, None, ["e"], "a/b")
        for verb, args in (
            ("get_backend_config", ()),
            ("update_backend_config", ({},)),
            ("scale_backend", (2,)),
            ("delete_backend", ()),
            ("delete_endpoint", ()),
            ("get_handle", ()),
            ("set_traffic", ({"a": 1.0},)),
        )
    ],
]


async def refusal(client, verb, args, kwargs):
    with pytest.raises((ValueError, TypeError, errors.ShoalError)) as caught:
        await getattr(client, verb)(*args, **kwargs)
    return type(caught.value), str(caught.value)


@pytest.mark.one_loop
async def test_wrong_commands_are_refused_with_the_same_error():
    async with connected() as (controller, client):
        await controller.create_backend("a", f"{CODE}:double")
        await controller.create_endpoint("e", backend="a")
        for verb, args, kwargs, error in (*REFUSED_ALIKE, *REFUSED):
            here_said, remote_said = [
                await refusal(one, verb, args, kwargs) for one in (controller, client)
            ]
            row = (verb, args, kwargs)
            assert (here_said[0], remote_said[0], row) == (error, error, row)
            if (verb, args, kwargs, error) in REFUSED_ALIKE:
                assert here_said == remote_said
        assert (await controller.list_backends()).keys() == {"a"}
        assert (await controller.list_endpoints()).keys() == {"e"}


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("method", "args", "error"),
    [
        ("fail", ("x",), LookupError),
        ("absent", ("x",), (errors.NoSuchName, AttributeError)),
        (None, (), TypeError),
        (None, (1, 2), TypeError),
    ],
)
async def test_a_call_that_fails_does_so_with_the_same_words(method, args, error):
    said = []
    async with connected() as (controller, client):
        await handle_of(controller, "Scaled", 3)
        for one in (controller, client):
            handle = (await one.get_handle("e")).options(method_name=method)
            with pytest.raises(error) as caught:
                await handle.call(*args)
            said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


async def test_a_handle_of_an_endpoint_that_is_yet_to_come_works_once_it_is_there(opened):
    async with opened() as client:
        handle = await client.get_handle("later", missing_ok=True)
        with pytest.raises(errors.NoSuchName, match="there is no endpoint 'later'"):
            await handle.call(1)
        await client.create_backend("a", f"{CODE}:double")
        await client.create_endpoint("later", backend="a")
        assert await handle.call(1) == 2


async def test_rays_spelling_is_answered_with_what_to_write(opened):
    async with opened() as client:
        handle = await handle_of(client, "Scaled", 3)
        with pytest.raises(AttributeError, match=r"options\(method_name='fail'\)\.call"):
            handle.fail.remote("x")
        with pytest.raises(AttributeError, match=r"    handle\.options\(method_name='fail'\)"):
            handle.sync.fail("x")
        with pytest.raises(TypeError, match=r"result = await handle\.remote"):
            handle.remote(2).result()
        assert await handle.remote(2) == 6
        assert not hasattr(handle, "tolist")


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"method_name": 5}, TypeError),
        ({"shard_key": 5}, TypeError),
        ({"http_method": b"GET"}, TypeError),
        ({"http_headers": 5}, TypeError),
        ({"timeout_s": "1"}, TypeError),
        ({"timeout_s": float("nan")}, ValueError),
        ({"priority": 0}, ValueError),
        ({"priority": 1.5}, TypeError),
    ],
)
async def test_a_wrong_option_of_a_handle_is_refused_at_once(opened, options, error):
    async with opened() as client:
        await client.create_endpoint("e", backend=None)
        handle = await client.get_handle("e")
        with pytest.raises(error, match=f"^{next(iter(options))} must be "):
            handle.options(**options)


async def test_an_endpoint_for_which_no_methods_are_named_takes_get_and_post(opened):
    async with opened() as client:
        await client.create_backend("a", f"{CODE}:double")
        await client.create_endpoint("e", backend="a", route="/e")
        assert (await client.list_endpoints())["e"]["methods"] == ["GET", "POST"]


async def test_a_call_without_arguments_is_a_request_without_data(opened):
    async with opened() as client:
        handle = await handle_of(client, "greet")
        assert await handle.remote() == "hello nobody"
        assert await handle.call() == "hello nobody"


async def test_code_is_told_that_a_call_came_from_python_and_by_which_endpoint(opened):
    async with opened() as client:
        handle = await handle_of(client, "told")
        assert await handle.call(1) == {"context": "python", "endpoint": "e"}
        get = handle.options(http_method="GET")
        assert (await get.call(1))["method"] == "GET"


async def test_a_call_without_a_limit_may_say_so(opened):
    async with opened() as client:
        handle = await handle_of(client, "double")
        assert await handle.options(timeout_s=float("inf")).call(1) == 2


async def test_an_item_may_be_as_large_as_over_http(opened):
    async with opened() as client:
        handle = await handle_of(client, "double")
        text = "x" * (HttpOptions().max_body_bytes - 2)
        assert len(await handle.call(text)) == 2 * len(text)


async def test_a_held_call_ends_at_its_deadline(opened):
    async with opened() as client:
        await client.create_endpoint("e", backend=None)
        handle = await client.get_handle("e")
        with pytest.raises(errors.DeadlineExceeded):
            await handle.options(timeout_s=0.05).call(1)
        with anyio.move_on_after(0.05) as scope:
            await handle.call(1)
        assert scope.cancelled_caught


async def test_after_a_shutdown_every_verb_but_that_says_so(opened):
    async with opened() as client:
        handle = await handle_of(client, "double")
        await client.shutdown()
        await client.shutdown()
        for verb in (client.status, client.list_backends, lambda: handle.call(1)):
            with pytest.raises(errors.ShutDown, match="was shut down"):
                await verb()


async def test_a_thread_drives_the_controller_of_this_process():
    def drive(client):
        client.create_backend("s", f"{CODE}:Scaled", 3)
        client.create_endpoint("e", backend="s")
        handle = client.get_handle("e")
        assert handle.call(2) == 6
        with pytest.raises(LookupError, match="no such word: x"):
            handle.options(method_name="fail").call("x")
        client.create_backend("t", f"{CODE}:steps")
        client.set_traffic("e", {"t": 1.0})
        with handle.stream(3) as stream:
            assert list(stream) == [0, 1, 2]
        with handle.stream(3) as stream:
            assert next(stream) == 0
        return client.status()

    async with Controller() as controller:
        status = await anyio.to_thread.run_sync(drive, controller.sync)
        assert status.backends.keys() == {"s", "t"}
        with pytest.raises(RuntimeError, match=r"await client\.status\(\.\.\.\)"):
            controller.sync.status()


async def test_a_thread_shuts_the_controller_of_this_process_down():
    async with Controller() as controller:
        await anyio.to_thread.run_sync(controller.sync.shutdown)
        with pytest.raises(errors.ShutDown):
            await anyio.to_thread.run_sync(controller.sync.status)
        await anyio.to_thread.run_sync(controller.sync.shutdown)
    with pytest.raises(errors.ShutDown):
        await anyio.to_thread.run_sync(controller.sync.status)


async def test_a_thread_that_waits_when_the_controller_ends_is_told_so():
    waiting = threading.Event()
    said = []

    def wait(handle):
        waiting.set()
        try:
            handle.call(1)
        except errors.ShutDown as error:
            said.append(error)

    async with Controller() as controller:
        await controller.create_endpoint("e", backend=None)
        handle = await controller.get_handle("e")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, wait, handle.sync)
            await anyio.to_thread.run_sync(waiting.wait)
            await anyio.wait_all_tasks_blocked()
            await controller.shutdown()
    assert len(said) == 1
