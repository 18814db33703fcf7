"""Traces go with batches to code in Ray's actors, and come back with the calls that it makes."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from observe import traced_code
from observe.otlp_receiver import receiving
from observe.test_tracing_batches import Spans, ids, linked
from replicas.ray_backends import Caller
from replicas.ray_cluster import MARKS, SMALL, cluster_of
from serving.scenes import deployed
from shoal.observe import instrument
from shoal.serving.controller.controller import Controller

pytest.importorskip("ray")

pytestmark = MARKS

# Each test makes an actor, and one loop is as good as the other for what both have in common.
ON_TRIO = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
ON_RAY = {"placement": "ray", "ray_options": SMALL}


@pytest.fixture(scope="module", autouse=True)
def _on_a_cluster() -> Generator[None]:
    """Every test is."""
    with cluster_of({"num_cpus": 2}):
        yield


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
