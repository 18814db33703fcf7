"""The metrics of replicas and of model servers: each figure, with the labels of what it is about.

That the metrics exist is shown by test_exposition, and what counts as a death or a restart by the
tests of the supervisor, in tests/serving. A trace goes on in a model server.
"""

from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from batching.scenes import Held
from observe import traced_code
from observe.spans import Spans, ids
from replicas.remote_servers import TOKEN, listening
from serving.fake_client import full_status
from serving.scenes import Stage, echo, failing, in_turn
from shoal.http.app.app import App
from shoal.observe import instrument
from shoal.observe.collector import ShoalCollector
from shoal.serving.backends.managed import ReplicaFailures
from shoal.serving.controller.controller import Controller
from shoal.status import Status
from shoal.testing import settle
from shoal.testing.asgi import ask
from worker_processes import until

COUNTS = ("starts", "start_failures", "deaths", "restarts")


class Figures:
    """One scrape of an application."""

    def __init__(self, text: str) -> None:
        self._samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def counts(self, backend):
        """The starts, start failures, deaths and restarts of a backend's replicas."""
        names = [f"shoal_replica_{count}_total" for count in COUNTS]
        return tuple(self._samples[name, ("backend", backend)] for name in names)

    def states(self, backend):
        """How many replicas of a backend there are, by the states in which there are any."""
        return {
            key[2][1]: int(value)
            for key, value in self._samples.items()
            if key[:2] == ("shoal_replicas", ("backend", backend)) and value
        }

    def start_seconds(self, backend):
        """The histogram's count and sum, and the least bound of a bucket that has any."""
        of_backend = ("backend", backend)
        name = "shoal_replica_start_seconds"
        least = min(
            float(key[2][1])
            for key, value in self._samples.items()
            if key[:2] == (f"{name}_bucket", of_backend) and (value or key[2][1] == "+Inf")
        )
        count, total = (self._samples[f"{name}_{part}", of_backend] for part in ("count", "sum"))
        return count, total, least

    def of_replicas(self, name):
        """The values of a metric, by the backend and the replica."""
        return {
            (key[1][1], key[2][1]): value
            for key, value in self._samples.items()
            if key[0] == f"shoal_replica_{name}"
        }


async def scraped(app):
    return Figures((await ask(app, "/-/metrics", method="GET")).body.decode())


@asynccontextmanager
async def up(code=echo, *, stage, **config):
    """Opens an application with a backend ``b`` on a stage, and another one that is left alone."""
    app = App()
    async with Controller() as client, app.answering(client):
        await client.create_backend("b", code, config={"placement": stage, **config})
        await client.create_backend("other", echo, config={"placement": Stage()})
        await client.create_endpoint("e", backend="b", route="/e", methods=["POST"])
        yield app, client
        figures = await scraped(app)
        assert figures.counts("other") == (1, 0, 0, 0)
        assert figures.states("other") == {"ready": 1}
        assert figures.start_seconds("other")[:2] == (1, 0)


def taking(seconds):
    """Makes a `Stage.start` that takes so long."""

    async def start(_):
        await anyio.sleep(seconds)

    return start


async def test_one_that_is_killed_is_a_death_and_its_replacement_a_start_and_a_restart():
    stage = Stage()
    stage.start = taking(2)
    async with up(stage=stage, num_replicas=2) as (app, _):
        await settle()
        before = await scraped(app)
        stage.start = taking(40)
        await stage.lose(wait_s=1)
        meanwhile = await scraped(app)
        await anyio.sleep(40)
        after = await scraped(app)
    assert before.counts("b") == (2, 0, 0, 0)
    assert before.states("b") == {"ready": 2}
    assert before.start_seconds("b") == (2, pytest.approx(4), 2.5)
    assert meanwhile.counts("b") == (3, 0, 1, 1)
    assert meanwhile.states("b") == {"ready": 1, "starting": 1}
    assert meanwhile.start_seconds("b") == before.start_seconds("b")
    assert after.counts("b") == (3, 0, 1, 1)
    assert after.states("b") == {"ready": 2}
    # The wait before it is no part of its start.
    assert after.start_seconds("b") == (3, pytest.approx(44), 2.5)


async def test_one_that_dies_when_it_was_to_end_anyway_is_no_restart_and_nothing_is_wrong():
    stage, held = Stage(), Held()
    config = {"num_replicas": 2, "max_batch_size": 1, "max_ongoing_requests": 1}
    async with up(held, stage=stage, **config) as (app, client):
        async with anyio.create_task_group() as tasks:
            for item in range(2):
                tasks.start_soon(ask, app, "/e", item)
            await settle()
            tasks.start_soon(client.scale_backend, "b", 1)
            await settle()
            assert (await scraped(app)).states("b") == {"ready": 1, "draining": 1}
            (draining,) = [
                one for one in client.status_now().backends["b"].replicas if one.state == "draining"
            ]
            next(one for one in stage.replicas if one.tag == draining.tag).die()
            await settle()
            held.gate.set()
        figures, status = await scraped(app), client.status_now().backends["b"]
    assert figures.counts("b") == (2, 0, 1, 0)
    assert figures.states("b") == {"ready": 1}
    assert (status.state, status.failure) == ("ready", None)


async def test_those_that_can_not_be_started_are_failures_and_no_deaths():
    stage = Stage()
    async with up(stage=stage) as (app, _):
        stage.start = failing()
        await stage.lose(wait_s=100)
        failed = len(stage.replicas) - 2  # the last one waits for its turn
        meanwhile = await scraped(app)
        stage.start = in_turn
        await anyio.sleep(100)
        after = await scraped(app)
    assert failed > 3
    assert meanwhile.counts("b") == (failed + 2, failed, 1, 1)
    assert meanwhile.states("b") == {"starting": 1}
    assert meanwhile.start_seconds("b")[0] == 1
    assert after.counts("b") == (failed + 2, failed, 1, 1)
    assert after.states("b") == {"ready": 1}
    assert after.start_seconds("b")[0] == 2


async def test_one_that_an_operator_replaces_is_a_start_and_neither_death_nor_restart():
    stage, held = Stage(), Held()
    async with up(held, stage=stage) as (app, client), anyio.create_task_group() as tasks:
        tasks.start_soon(ask, app, "/e", 1)
        await settle()
        running = await scraped(app)
        stage.stop_gate = anyio.Event()
        tasks.start_soon(client.restart_backend, "b")
        await settle()
        draining = await scraped(app)
        await held.release()
        stopping = await scraped(app)
        stage.stop_gate.set()
        await settle()
        after = await scraped(app)
    assert running.counts("b") == (1, 0, 0, 0)
    assert draining.states("b") == {"ready": 1, "draining": 1}
    assert stopping.states("b") == {"ready": 1, "stopping": 1}
    assert after.states("b") == {"ready": 1}
    assert after.counts("b") == (2, 0, 0, 0)
    of_replicas = [
        {key: value for key, value in figures.of_replicas(name).items() if key[0] == "b"}
        for figures in (running, draining, after)
        for name in ("batches_total", "running_requests")
    ]
    old, new = ("b", "b#0"), ("b", "b#1")
    draining_and_new = {old: 1, new: 0}
    assert of_replicas == [
        *({old: 1}, {old: 1}, draining_and_new, draining_and_new, {new: 0}, {new: 0})
    ]


def test_each_count_is_that_of_its_name():
    """With replicas that really die there is a restart for each death."""
    backend = replace(full_status().backends["a"], starts=9, deaths=7, restarts=5)
    status = Status(backends={"a": backend})
    failures = ReplicaFailures("a")
    failures.start_failures = 3
    starts = {"a": failures}
    collector = ShoalCollector(list, list, {}, lambda: status, lambda: starts)
    registry = CollectorRegistry()
    registry.register(collector)
    assert Figures(generate_latest(registry).decode()).counts("a") == (9, 3, 7, 5)


async def test_memory_is_that_of_each_replica_that_tells_it():
    stage = Stage()
    async with up(stage=stage, num_replicas=3) as (app, client):
        await settle()
        stage.replicas[0].memory, stage.replicas[2].memory = 3_000_000_000, 4_000_000
        before = await scraped(app)
        await stage.lose(wait_s=1)
        stage.replicas[3].memory = 5_000_000
        replaced = await scraped(app)
        await client.delete_endpoint("e")
        await client.delete_backend("b")
        deleted = await scraped(app)
    assert before.of_replicas("memory_bytes") == {("b", "b#0"): 3e9, ("b", "b#2"): 4e6}
    assert replaced.of_replicas("memory_bytes") == {("b", "b#2"): 4e6, ("b", "b#3"): 5e6}
    assert deleted.of_replicas("memory_bytes") == {}


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


@pytest.mark.real_time
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


@pytest.mark.real_time
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
