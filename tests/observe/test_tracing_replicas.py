"""Traces go with batches to replicas in threads and processes, and come back with their calls."""

import pytest

import shoal
from observe import traced_code
from observe.spans import ids, new_spans  # noqa: F401
from serving.scenes import deployed
from shoal.observe import instrument
from shoal.serving.controller.controller import Controller

pytestmark = pytest.mark.real_time

PLACEMENTS = pytest.mark.parametrize(
    "placement", ["task", "thread", pytest.param("process", marks=pytest.mark.one_loop)]
)


@PLACEMENTS
@pytest.mark.parametrize("code", [traced_code.Plain, traced_code.Async])
async def test_code_in_a_replica_runs_within_the_span_of_its_batch(spans, placement, code):
    if placement == "thread" and code is traced_code.Async:
        pytest.skip("a replica in a thread has plain code")
    async with Controller() as client:
        instrument(client, tracer_provider=spans.provider)
        await deployed(client, "inner", code, config={"placement": placement})
        await client.create_backend(
            "outer", code, await client.get_handle("inner"), config={"placement": placement}
        )
        await client.create_endpoint("outer", backend="outer")
        handle = await client.get_handle("outer")
        with spans.tracer.start_as_current_span("caller"):
            outer, inner = await handle.call(1)
    assert tuple(outer) == ids(spans.one("outer batch"))
    assert tuple(inner) == ids(spans.one("inner batch"))
    assert ids(spans.one("inner").parent) == ids(spans.one("outer batch"))
    assert {span.context.trace_id for span in spans.exporter.get_finished_spans()} == {outer[0]}


async def test_the_calls_of_a_remote_handle_are_in_the_trace_of_their_caller(spans):
    async with shoal.start(http={"port": 0, "token": "t"}) as client:
        instrument(client, tracer_provider=spans.provider)
        await deployed(client, "inner", traced_code.Async)
        async with shoal.connect(client.url, token="t") as remote:
            handle = await remote.get_handle("inner")
            with spans.tracer.start_as_current_span("caller"):
                await handle.call(1)
    assert ids(spans.one("inner").parent) == ids(spans.one("caller"))


@PLACEMENTS
async def test_so_does_each_step_of_a_stream(spans, placement):
    async with Controller() as client:
        instrument(client, tracer_provider=spans.provider)
        await deployed(client, "steps", traced_code.Plainly, config={"placement": placement})
        async with (await client.get_handle("steps")).stream(1) as steps:
            found = [tuple(step) async for step in steps]
    assert found == [ids(spans.one("steps batch"))] * 2


async def test_without_tracing_nothing_is_sent(spans):
    async with Controller() as client:
        config = {"placement": "process"}
        await deployed(client, "plain", traced_code.Plain, config=config)
        with spans.tracer.start_as_current_span("caller"):
            assert tuple(await (await client.get_handle("plain")).call(1)) == (0, 0)
