"""Traces that go on in a model server, what both servers count, and the metrics of its address."""

from contextlib import asynccontextmanager

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from handlers import echo
from observe import traced_code
from observe.spans import Spans, ids
from replicas.remote_servers import TOKEN, listening
from shoal.observe import instrument
from shoal.observe.collector import ShoalCollector
from shoal.serving.controller.controller import Controller
from worker_processes import until

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def two_servers(tmp_path, code, **config):
    """Yields a model server with its listener, an ingress of it, and a handle of that."""
    async with Controller() as server:
        await server.create_backend("model", code, config=config)
        at = f"unix:{tmp_path}/a"
        async with listening(server, at, TOKEN) as (listener, _), Controller() as ingress:
            await forwarding(ingress, tmp_path, at)
            yield server, listener, ingress, await ingress.get_handle("model")


async def forwarding(ingress, tmp_path, at, token=TOKEN, **config):
    file = tmp_path / token[-8:]
    file.write_text(token)
    options = {"placement": "remote", "model_servers": at, "model_server_token_file": str(file)}
    await ingress.create_backend("model", "nowhere:Nothing", config={**options, **config})
    await ingress.create_endpoint("model", backend="model")


@pytest.mark.parametrize("streams", [False, True])
async def test_a_trace_goes_on_in_the_model_server(tmp_path, streams):
    here, there = Spans(), Spans()
    code = traced_code.Plainly if streams else traced_code.Async
    async with two_servers(tmp_path, code) as (server, _, ingress, handle):
        instrument(ingress, tracer_provider=here.provider)
        instrument(server, tracer_provider=there.provider)
        with here.tracer.start_as_current_span("caller"):
            if streams:
                async with handle.stream(1) as steps:
                    inside = {tuple(step) async for step in steps}
            else:
                inside = {tuple(await handle.call(1))}
    batch = there.one("model batch")
    assert inside == {ids(batch)}
    # The request over there is a child of the message's batch here.
    assert ids(there.one("model").parent) == ids(here.one("model batch"))
    assert {batch.context.trace_id} == {ids(here.one("caller"))[0]}


def figures(controller):
    registry = CollectorRegistry()
    collector = ShoalCollector(controller.statistics, list, {}, controller.status_now)
    registry.register(collector)
    return {
        (sample.name.removeprefix("shoal_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def is_settled(status):
    """Whether each accepted connection was refused but one, which is open."""
    return status.connections == 1 == status.accepted - sum(status.refused.values())


async def test_both_servers_count_requests_and_the_model_server_connections(tmp_path):
    async with two_servers(tmp_path, echo) as (server, listener, ingress, handle):
        await handle.map(range(100))
        async with Controller() as other, anyio.create_task_group() as tasks:
            tasks.start_soon(forwarding, other, tmp_path, f"unix:{tmp_path}/a", "x" * 40)
            await until(lambda: listener.status().refused)
            tasks.cancel_scope.cancel()
        await until(lambda: is_settled(listener.status()))
        here, there = figures(ingress), figures(server)
        [replica] = ingress.status_now().backends["model"].replicas
    for found in (here, there):
        assert found["requests_total", "model", "__call__", "finished"] == 100
    assert "model_server_connections" not in {name for name, *_ in here}
    assert there["model_server_connections",] == 1
    assert there["model_server_refused_connections_total", "token"] >= 1
    assert there["model_server_accepted_connections_total",] >= 2
    assert there["model_server_requests_total",] == 100
    assert there["model_server_messages_total",] == replica.batches
