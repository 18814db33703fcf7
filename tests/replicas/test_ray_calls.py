"""Code in Ray's actors calls other backends, within its traces, and actors wait for their place."""

import json
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest

import shoal
from observe import traced_code
from observe.otlp_receiver import receiving
from observe.test_tracing_batches import Spans, ids, linked
from replicas.ray_backends import Caller, CallerInBatches, CallsWhileItStarts, Model
from replicas.ray_cluster import MARKS, NODE, ON_TRIO, SMALL, cluster_of
from serving.scenes import deployed
from shoal.observe import instrument
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import ask
from shoal.testing.replicas.code import Folder

ray = pytest.importorskip("ray")

pytestmark = MARKS

ON_RAY = {"placement": "ray", "ray_options": SMALL}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Generator[Any]:
    with cluster_of({"num_cpus": 2, "num_gpus": 1}) as cluster:
        yield cluster


class Other:
    """What is called; in this process.

    Attributes:
        began: Set when a call began to wait.
        ended: Set when it was cancelled.
    """

    def __init__(self, began: anyio.Event, ended: anyio.Event) -> None:
        self.began, self.ended = began, ended

    async def __call__(self, item: Any) -> Any:
        if isinstance(item, np.ndarray):
            return item * 2
        if item == "left":
            [request] = shoal.current_batch().requests
            return request.deadline and request.deadline - anyio.current_time()
        if item == "wait":
            self.began.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.ended.set()
        if item == "fail":
            raise LookupError("no such thing")
        return item * 2

    async def steps(self, count: int) -> AsyncGenerator[int]:
        for number in range(abs(count)):
            yield number
        if count < 0:
            raise LookupError("no more")
        if count == 1000:
            self.ended.set()


@asynccontextmanager
async def calling(code: Any = Caller, **config: Any) -> AsyncGenerator[tuple[Controller, Any, Any]]:
    """Serves a caller on Ray, and what it calls in this process."""
    began, ended = anyio.Event(), anyio.Event()
    async with Controller() as controller:
        here = {"max_ongoing_requests": 10, "placement": "task"}
        await deployed(controller, "other", Other, began, ended, config=here)
        on_ray = {**ON_RAY, "max_ongoing_requests": 10, **config}
        handle = await deployed(controller, "caller", code, config=on_ray)
        yield controller, handle, (began, ended)


async def test_a_call_is_answered_or_fails_as_the_endpoint_does():
    async with calling() as (_, handle, _other):
        for method in ("__call__", "by_connect", "plain", "batched"):
            call = handle.options(method_name=method).call
            assert await call(4) == 8
            with pytest.raises(LookupError, match="no such thing"):
                await call("fail")
            assert await call("ab") == "abab"


@ON_TRIO
async def test_code_calls_from_an_open_batch():
    config = {"fill": "continuous", "streams": True, "max_batch_size": 8}
    async with calling(CallerInBatches, **config) as (_, handle, _other):
        found: dict[int, list[int]] = {}

        async def read(number: int) -> None:
            async with handle.stream(number) as stream:
                found[number] = [step async for step in stream]

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(read, number)
        assert found == {number: [2 * number] * 3 for number in range(20)}


@ON_TRIO
async def test_many_calls_at_once_are_each_answered():
    async with calling() as (_, handle, _other):
        found: dict[int, int] = {}

        async def call(number: int, method: str) -> None:
            found[number] = await handle.options(method_name=method).call(number)

        async with anyio.create_task_group() as tasks:
            for number in range(60):
                tasks.start_soon(call, number, ("__call__", "plain")[number % 2])
        assert found == {number: 2 * number for number in range(60)}


async def test_a_stream_goes_through_whole_and_in_order():
    async with calling() as (_, handle, _other):
        for method in ("steps", "plain_steps"):
            stream = handle.options(method_name=method).stream
            async with stream(100) as steps:
                assert [step async for step in steps] == list(range(100))
            async with stream(-3) as steps:
                assert [await anext(steps) for _ in range(3)] == [0, 1, 2]
                with pytest.raises(LookupError, match="no more"):
                    await anext(steps)


@ON_TRIO
async def test_a_stream_that_is_left_is_left_there_too():
    async with calling() as (controller, handle, (_, ended)):
        for method in ("steps", "plain_steps"):
            async with handle.options(method_name=method).stream(1000) as steps:
                async for step in steps:
                    if step == 2:
                        break
            while controller.status_now().backends["other"].ongoing:  # noqa: ASYNC110
                await anyio.sleep(0.005)
        assert not ended.is_set()


@ON_TRIO
@pytest.mark.parametrize("method", ["__call__", "plain"])
async def test_cancellation_is_passed_on(method):
    async with (
        calling(cancel_grace_s=20.0) as (_, handle, (began, ended)),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(handle.options(method_name=method).call, "wait")
        await began.wait()
        tasks.cancel_scope.cancel()
    assert ended.is_set()


@ON_TRIO
async def test_a_caller_that_is_killed_cancels_its_calls():
    async with calling() as (controller, handle, (began, ended)):

        async def call() -> None:
            with pytest.raises(shoal.errors.ReplicaDied, match="for the test"):
                await handle.call("wait")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await began.wait()
            controller.backends["caller"].supervisor.managed[0].replica.kill("for the test")
        await ended.wait()


@ON_TRIO
async def test_the_deadline_of_a_batch_is_that_of_the_calls_that_it_makes():
    async with calling() as (_, handle, _other):
        for method in ("__call__", "plain"):
            calling_it = handle.options(method_name=method)
            assert await calling_it.call("left") is None
            assert 900 < await calling_it.options(timeout_s=1000.0).call("left") <= 1000.01


@ON_TRIO
async def test_a_handle_has_a_time_out_of_its_own():
    async with calling() as (_, handle, (began, ended)):
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await handle.options(method_name="within").call(0.5)
        assert began.is_set()
        await ended.wait()


@ON_TRIO
async def test_a_handle_may_be_an_item():
    async with calling() as (controller, handle, _other):
        given = await controller.get_handle("other")
        assert await handle.options(method_name="by_item").call(given) == 10


@ON_TRIO
async def test_classes_that_only_this_program_knows_pass_through_calls():
    class OnlyHere(Exception):
        pass

    class Mine(int):
        def __mul__(self, by: int) -> "Mine":
            if self < 0:
                raise OnlyHere("too small")
            return Mine(int(self) * by)

    async with calling() as (_, handle, _):
        answer = await handle.call(Mine(5))
        assert (type(answer), answer) == (Mine, 10)
        with pytest.raises(OnlyHere, match="too small"):
            await handle.call(Mine(-5))


async def test_an_endpoint_that_does_not_exist_is_named():
    async with calling() as (_, handle, _other):
        with pytest.raises(KeyError, match="there is no endpoint 'none'"):
            await handle.options(method_name="missing").call("none")


@ON_TRIO
async def test_arrays_come_and_may_be_written_to():
    async with calling() as (_, handle, _other):
        array = np.arange(100_000.0)
        found = await handle.options(method_name="total").call(array)
        assert (found == array * 2 + 1).all()


@ON_TRIO
async def test_a_constructor_may_call():
    async with calling(CallsWhileItStarts) as (_, handle, _other):
        assert await handle.call(1) == 40


@ON_TRIO
async def test_over_http():
    app = shoal.App()

    @app.endpoint("/other", name="other")
    async def other(item: int) -> int:
        return item * 2

    app.backend("caller", Caller, **ON_RAY)
    app.route("caller", backend="caller", path="/caller")
    async with app.lifespan():
        assert json.loads((await ask(app, "/caller", 21)).body) == 42


@ON_TRIO
async def test_gpus_are_rays(tmp_path):
    async with Controller() as controller:
        config = {**ON_RAY, "gpus": 0.5}
        handle = await deployed(controller, "b", Model, str(tmp_path), config=config)
        assert await handle.options(method_name="environment").call("CUDA_VISIBLE_DEVICES") == "0"
        free = await anyio.to_thread.run_sync(ray.available_resources)
        assert free["GPU"] == 0.5


@ON_TRIO
async def test_an_actor_that_waits_for_a_node_is_starting_until_there_is_one(
    cluster, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("shoal.replicas.ray.replica._PATIENCE_S", 0.1)
    caplog.set_level(logging.WARNING, "shoal")
    async with Controller() as controller, anyio.create_task_group() as tasks:
        config = {
            "placement": "ray",
            "ray_options": {**SMALL, "resources": {"late": 1}},
            "start_timeout_s": 30.0,
        }
        make = partial(controller.create_backend, "b", Model, str(tmp_path), config=config)
        tasks.start_soon(make)
        while not (said := [r for r in caplog.records if r.name == "shoal.replicas"]):  # noqa: ASYNC110
            await anyio.sleep(0.01)
        [said] = [record.getMessage() for record in said]
        assert said.startswith("b#0 waits: Ray has not placed its actor, which asks for {")
        assert "'late': 1" in said
        assert "these are free: " in said
        assert " CPU" in said
        node = cluster.add_node(num_cpus=1, resources={"late": 1}, **NODE)  # in the main thread
        while "b" not in controller.backends:  # noqa: ASYNC110 - Ray is in other processes
            await anyio.sleep(0.01)
        status = controller.status_now().backends["b"]
        assert (status.state, status.starts, status.failure) == ("ready", 1, None)
        await controller.delete_backend("b")
        await anyio.to_thread.run_sync(lambda: cluster.remove_node(node))


@ON_TRIO
async def test_a_scaled_backend_serves_while_its_new_actor_waits(tmp_path):
    async with Controller() as controller, anyio.create_task_group() as tasks:
        config = {"placement": "ray", "ray_options": {"num_cpus": 0.01, "num_gpus": 1}}
        handle = await deployed(controller, "b", Model, str(tmp_path), config=config)
        tasks.start_soon(controller.scale_backend, "b", 2)
        for number in range(50):
            assert await handle.call(number) == number
        status = controller.status_now().backends["b"]
        assert (status.state, status.failure) == ("degraded", None)
        assert [one.state for one in status.replicas] == ["ready", "starting"]
        tasks.cancel_scope.cancel()


@ON_TRIO
async def test_the_wait_for_a_place_is_bounded_and_says_what_is_free(tmp_path):
    folder = Folder(str(tmp_path))
    async with Controller() as controller:
        config = {
            "placement": "ray",
            "ray_options": {**SMALL, "resources": {"nowhere": 1}},
            "place_timeout_s": 0.5,
        }
        with pytest.raises(shoal.errors.ReplicaNotStarted) as raised:
            await controller.create_backend("b", Model, str(tmp_path), config=config)
    said = str(raised.value)
    assert "b#0 was not ready within 0.5 s (place_timeout_s): Ray has not placed its actor" in said
    assert "'nowhere': 1" in said
    assert "these are free: " in said
    assert folder.notes() == []


@pytest.fixture
def spans() -> Spans:
    return Spans()


@asynccontextmanager
async def traced(spans: Spans) -> AsyncGenerator[Any]:
    """Opens a controller that is traced; gives what serves code and returns a handle to it."""
    async with Controller() as controller:
        instrument(controller, tracer_provider=spans.provider)

        async def serve(name: str, code: Any, *init_args: Any, **config: Any) -> Any:
            return await deployed(controller, name, code, *init_args, config=config)

        yield serve


def of_otlp(span: Any) -> tuple[int, int]:
    """The ids of a span that a collector has received."""
    return int.from_bytes(span.trace_id), int.from_bytes(span.span_id)


async def test_the_span_of_a_batch_is_linked_to_its_requests_and_is_that_of_its_code(spans):
    answers = set[tuple[int, int]]()

    async def call_from(name: str, number: int) -> None:
        with spans.tracer.start_as_current_span(name):
            answers.add(tuple(await handle.call(number)))

    with receiving() as receiver:
        async with traced(spans) as serve:
            inner = await serve("inner", traced_code.Plain, **ON_RAY)
            of_two = {**ON_RAY, "max_batch_size": 2, "batch_wait_timeout_s": 60}
            handle = await serve("outer", traced_code.Exporting, receiver.url, inner, **of_two)
            async with anyio.create_task_group() as tasks:
                for number, name in enumerate(["first", "second"]):
                    tasks.start_soon(call_from, name, number)
        await anyio.to_thread.run_sync(receiver.wait_for, lambda: receiver.named("inside"))
        [inside] = receiver.named("inside")
    batch, requests = spans.one("outer batch"), spans.named("outer")
    callers = {ids(spans.one(name)) for name in ("first", "second")}
    assert {ids(request.parent) for request in requests} == callers
    assert linked(batch) == {ids(request) for request in requests}
    assert [linked(request) for request in requests] == [{ids(batch)}] * 2
    assert ids(batch.parent) in linked(batch)
    # The span that the code made in the actor, and what it called from there: another actor's code.
    assert of_otlp(inside)[0] == batch.context.trace_id
    assert int.from_bytes(inside.parent_span_id) == batch.context.span_id
    calls, batches = spans.named("inner"), spans.named("inner batch")
    assert [ids(call.parent) for call in calls] == [of_otlp(inside)] * 2
    assert [ids(one.parent) for one in batches] == [ids(call) for call in calls]
    assert len(batches) == 2
    assert answers == {ids(one) for one in batches}


@ON_TRIO
async def test_plain_code_and_its_blocking_calls_are_in_the_trace(spans):
    async with traced(spans) as serve:
        inner = await serve("inner", traced_code.Async)
        handle = await serve("outer", traced_code.Plain, inner, **ON_RAY)
        with spans.tracer.start_as_current_span("caller"):
            outer, called = await handle.call(1)
    assert tuple(outer) == ids(spans.one("outer batch"))
    assert ids(spans.one("inner").parent) == tuple(outer)
    assert tuple(called) == ids(spans.one("inner batch"))
    assert ids(spans.one("outer").parent) == ids(spans.one("caller"))


@pytest.mark.parametrize("code", [traced_code.Plainly, traced_code.Asyncly])
async def test_each_step_of_a_stream_is_in_the_trace(spans, code):
    async with (
        traced(spans) as serve,
        (await serve("steps", code, **ON_RAY)).stream(1) as steps,
    ):
        found = [tuple(step) async for step in steps]
    assert found == [ids(spans.one("steps batch"))] * 2


class Steps:
    """A stream that tells the trace of each step; in this process."""

    def __call__(self) -> None:
        """The handler; nobody calls it."""

    async def steps(self, count: int) -> AsyncGenerator[tuple[int, int]]:
        for _ in range(count):
            yield traced_code.current()


@ON_TRIO
async def test_a_stream_that_goes_through_an_actor_is_in_the_trace(spans):
    async with traced(spans) as serve:
        other = await serve("other", Steps)
        handle = await serve("caller", Caller, other, **ON_RAY)
        found: dict[str, list[Any]] = {}
        for method in ("steps", "plain_steps"):
            async with handle.options(method_name=method).stream(2) as steps:
                found[method] = [tuple(step) async for step in steps]

    def within(name: str, outer: Any) -> Any:
        [span] = [one for one in spans.named(name) if ids(one.parent) == ids(outer)]
        return span

    for method, steps in found.items():
        call = within("other/steps", spans.one(f"caller/{method} batch"))
        assert steps == [ids(within("other/steps batch", call))] * 2
