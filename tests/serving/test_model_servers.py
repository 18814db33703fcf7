"""Backends with ``placement="remote"``: their model servers run in this process."""

import logging
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

import anyio
import numpy as np
import pytest

import shoal
from replicas.remote_servers import listening
from serving.scenes import deployed
from shoal.errors import DeadlineExceeded, Overloaded, ReplicaDied, ReplicaNotStarted
from shoal.replicas.remote import keep_alive as keep_alive_module
from shoal.replicas.remote import replica
from shoal.serving.backend_config import BackendConfig
from shoal.serving.controller.controller import Controller
from shoal.serving.model_server import ingress as ingress_module
from time_limits import HANG_S
from worker_processes import until

pytestmark = pytest.mark.real_time


class Model:
    """Records its batches; an item ``"hold"`` waits until it is released."""

    def __init__(self):
        self.batches = []
        self.metadata = []
        self.holding = anyio.Event()
        self.released = anyio.Event()
        self.closed = anyio.Event()

    async def __call__(self, items: list[object]) -> list[object]:
        self.batches.append(len(items))
        self.metadata += [(r.metadata, r.priority) for r in shoal.current_batch().requests]
        words = {item for item in items if isinstance(item, str)}
        if "hold" in words:
            self.holding.set()
            try:
                await self.released.wait()
            finally:
                self.closed.set()
        if "fail" in words:
            raise KeyError("of the code")
        return [ValueError("bad") if isinstance(i, str) and i == "bad" else i for i in items]

    async def count(self, items: list[int]):
        try:
            for n in range(3):
                yield [item + n for item in items]
            await self.released.wait()
        finally:
            self.closed.set()


@pytest.fixture
def model():
    return Model()


@asynccontextmanager
async def model_server(address, model, **config):
    async with Controller() as controller:
        await controller.create_backend("model", model, config={"max_batch_size": 64, **config})
        async with listening(controller, address) as (listener, _):
            yield controller, listener


@asynccontextmanager
async def ingress(*addresses, **config):
    config = {"placement": "remote", "model_servers": addresses, **config}
    async with Controller() as controller:
        yield controller, await deployed(controller, "model", "nowhere:Nothing", config=config)


@asynccontextmanager
async def one_held(tmp_path, ingress_config=None, **config):
    """A model server whose code is held by one call until the block's end."""
    model, at = Model(), f"unix:{tmp_path}/a"
    async with (
        model_server(at, model, **config) as (server, _),
        ingress(at, **(ingress_config or {})) as (_, handle),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(handle.call, "hold")
        await model.holding.wait()
        yield model, server, handle, tasks
        model.released.set()


async def call(handle, item, results):
    results.append(await handle.call(item))


def status_of(controller):
    return controller.backends["model"].status()


async def test_the_items_of_several_ingresses_share_batches(at, model):
    async with (
        model_server(at, model) as (server, _),
        ingress(at) as (_, one),
        ingress(at) as (_, other),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(one.call, "hold")
        await model.holding.wait()
        for n in range(8):
            tasks.start_soon((one, other)[n % 2].call, n)
        await until(lambda: status_of(server).queued == 8)
        model.released.set()
    assert model.batches == [1, 8]


async def test_results_and_errors_are_those_of_each_item(at, model):
    async with model_server(at, model), ingress(at) as (_, handle):
        big = np.arange(300_000, dtype=np.float32)
        results = await handle.map(["a", "bad", big, 4], return_exceptions=True)
        assert (results[0], results[3]) == ("a", 4)
        assert isinstance(results[1], ValueError)
        np.testing.assert_array_equal(results[2], big)
        with pytest.raises(KeyError, match="of the code") as caught:
            await handle.call("fail")
        assert "In the model server at unix:" in str(caught.value.__cause__.__notes__)


async def test_metadata_and_priorities_cross(at, model):
    levels = {"priority_levels": 3}
    async with model_server(at, model, **levels), ingress(at, **levels) as (_, handle):
        await handle.call("usual")
        await handle.options(priority=3, shard_key="k").call("low")
    (usual, usual_level), (low, low_level) = model.metadata
    assert (usual["endpoint"], usual_level) == ("model", 2)
    assert (low["shard_key"], low_level) == ("k", 3)


async def test_deadlines_and_callers_that_leave_free_the_queue_over_there(tmp_path):
    async with one_held(tmp_path) as (model, server, handle, _):
        with pytest.raises(DeadlineExceeded):
            await handle.options(timeout_s=0.05).call("late")
        await until(lambda: status_of(server).queued == 0)
        with anyio.move_on_after(0.05):
            await handle.call("leaves")
        await until(lambda: status_of(server).queued == 0)
    assert model.batches == [1]


async def test_a_full_queue_over_there_is_an_overload_here(tmp_path):
    async with one_held(tmp_path, max_queued_requests=1) as (_, server, handle, tasks):
        tasks.start_soon(handle.call, "waits")
        await until(lambda: status_of(server).queued == 1)
        with pytest.raises(Overloaded):
            await handle.call("too many")


async def test_streams_cross_step_by_step_and_one_that_is_left_is_closed(at, model):
    async with model_server(at, model), ingress(at) as (_, handle):
        got = []
        async with handle.options(method_name="count").stream(5) as stream:
            async for item in stream:
                got.append(item)
                if len(got) == 3:
                    break
        assert got == [5, 6, 7]
        await model.closed.wait()


async def lost(handle):
    with pytest.raises(ReplicaDied):
        await handle.call("hold")


async def test_an_ingress_that_ends_takes_its_requests_along_and_no_model(at, model):
    async with model_server(at, model) as (server, listener):
        async with ingress(at) as (_, handle), anyio.create_task_group() as tasks:
            tasks.start_soon(lost, handle)
            await model.holding.wait()
            [connection] = listener.ingresses
            connection._connection.shut_down()  # as the end of the other process would
            connection._ended.set()
            await model.closed.wait()
            tasks.cancel_scope.cancel()
        async with ingress(at) as (_, handle):
            assert await handle.call("again") == "again"
        assert status_of(server).starts == 1


@pytest.mark.parametrize("retries", [0, 1])
async def test_work_of_a_lost_model_server_runs_on_another_if_it_may(at, also, retries):
    one, other = Model(), Model()
    results = []

    async def call_once(handle):
        try:
            await call(handle, "hold", results)
        except ReplicaDied as error:
            results.append(error)

    async with (
        model_server(at, one) as (_, listener),
        model_server(also, other),
        ingress(at, also, retries=retries) as (controller, handle),
        anyio.create_task_group() as tasks,
    ):
        other.released.set()
        while not one.holding.is_set():
            tasks.start_soon(call_once, handle)
            await until(lambda: one.holding.is_set() or results)
            results.clear()
        listener.close()
        for connection in [*listener.ingresses]:
            connection._ended.set()
        await until(lambda: len(results) == 1)
        if retries:
            assert results == ["hold"]
        else:
            assert "lost the model server at unix:" in str(results[0])
        assert await handle.call("more") == "more"
        await until(lambda: status_of(controller).deaths == 1)


async def test_a_model_server_that_drains_finishes_its_work_and_gets_no_more(at, also, caplog):
    caplog.set_level(logging.INFO)
    one, other = Model(), Model()
    results = []
    async with (
        model_server(at, one) as (_, listener),
        model_server(also, other),
        ingress(at, also) as (controller, handle),
        anyio.create_task_group() as tasks,
    ):
        other.released.set()
        while not one.holding.is_set():
            tasks.start_soon(call, handle, "hold", results)
            await until(lambda: one.holding.is_set() or results)
            results.clear()
        listener.drain()
        before = len(one.batches)
        members = controller.backends["model"].pool.members
        await until(lambda: not all(member.replica.takes_work for member in members))
        for n in range(20):
            await handle.call(n)
        assert len(one.batches) == before
        assert not results
        one.released.set()
        await until(lambda: results == ["hold"])
        with anyio.fail_after(HANG_S):
            await listener.wait_alone()
        # Logged when the replica has ended; the newest failure may be of a new connection.
        await until(lambda: "shutting down" in caplog.text)
        assert status_of(controller).deaths == 0
        supervisor = controller.backends["model"].supervisor
        await until(lambda: supervisor.failures.start_failures >= 1)
        assert "can't use the model server at" in caplog.text
        # It is expected to return soon.
        assert {r.levelno for r in caplog.records} == {logging.INFO}
        supervisor.waits_until = supervisor._return_by[at] = 0  # as if it had taken too long
        await until(lambda: caplog.records[-1].levelno == logging.ERROR)


async def test_an_ingress_that_drains_gets_the_results_of_its_work(at):
    one, results = Model(), []

    async with (
        model_server(at, one) as (server, _),
        ingress(at) as (controller, handle),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(call, handle, "hold", results)
        await one.holding.wait()
        controller.drain()
        tasks.start_soon(call, handle, "next", results)
        await until(lambda: status_of(server).queued == 1)
        one.released.set()
        await until(lambda: results == ["hold", "next"])


async def test_a_start_waits_for_a_model_server_and_not_for_ever(at):
    with pytest.raises(ReplicaNotStarted, match="can't use the model server at unix:"):
        async with ingress(at, start_timeout_s=0.3):
            pass

    async def begin_late():
        await anyio.sleep(0.2)
        async with model_server(at, Model()):
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin_late)
        async with ingress(at) as (_, handle):
            assert await handle.call(1) == 1
        tasks.cancel_scope.cancel()


async def test_an_address_without_a_server_is_tried_again_and_logged_once(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    at, nobody = f"unix:{tmp_path}/a", f"unix:{tmp_path}/b"

    def levels():
        return [r.levelno for r in caplog.records if nobody in r.getMessage()]

    async with model_server(at, Model()), ingress(at, nobody) as (controller, handle):
        supervisor = controller.backends["model"].supervisor
        await until(lambda: supervisor.failures.start_failures >= 4)
        assert levels() == [logging.INFO]  # it may still be starting
        supervisor.waits_until = 0  # as if that had taken too long
        await until(lambda: logging.ERROR in levels())
        assert levels() == [logging.INFO, logging.ERROR]
        assert await handle.call(1) == 1
        async with model_server(nobody, Model()):
            await until(lambda: [r.state for r in status_of(controller).replicas] == ["ready"] * 2)


@pytest.mark.parametrize("silent", ["model server", "ingress"])
async def test_a_peer_that_hangs_is_given_up(at, model, monkeypatch, silent, caplog):
    async def hang(*_):
        await anyio.sleep_forever()

    hangs, watches = ingress_module, replica
    if silent == "ingress":
        hangs, watches = replica, ingress_module
    monkeypatch.setattr(hangs, "keep_alive", hang)
    keep_alive = partial(keep_alive_module.keep_alive, period_s=0.02)
    monkeypatch.setattr(watches, "keep_alive", keep_alive)
    monkeypatch.setattr(ingress_module.Ingress, "_check_health", hang)
    period_s = 0.02 if silent == "model server" else 10
    config = {"health_check_period_s": period_s}
    async with model_server(at, model) as (_, listener), ingress(at, **config) as (controller, _):
        await until(lambda: status_of(controller).deaths >= 1)
        assert "a health check failed" not in caplog.text  # the death is logged
        if silent == "model server":  # the newest failure may be of a new connection
            await until(lambda: "nothing was received for 0.2 s" in caplog.text)
        assert listener is not None


async def test_a_peer_that_takes_less_than_is_sent_is_not_given_up():
    class Link:
        sent_bytes = 0
        unsent_bytes = 1000

        @property
        def is_closed(self):
            self.sent_bytes += self.is_taking
            self.unsent_bytes += 1000
            return self.unsent_bytes > 30_000

        def send(self, frame):
            pass

        numbers = count()
        received_bytes = property(lambda self: next(self.numbers))

    link = Link()
    for is_taking in (True, False):
        said = []
        link.unsent_bytes, link.is_taking = 1000, is_taking
        await keep_alive_module.keep_alive(link, said.append, period_s=0)
        assert bool(said) is not is_taking


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "needs model_servers"),
        ({"model_servers": []}, "model_servers is empty"),
        ({"model_servers": "models:9"}, "model_servers must be tls://"),
        ({"model_servers": "tls://models:0"}, "has port 0"),
        ({"model_servers": "tcp://models:9"}, "is not encrypted, and leaves this machine"),
        ({"model_servers": "unix:/a", "num_replicas": 2}, "num_replicas has no effect"),
        ({"model_servers": "unix:/a", "max_batch_size": 9}, "max_batch_size has no effect"),
        ({"model_servers": "unix:/a", "user_config": 1}, "user_config has no effect"),
        ({"model_servers": "unix:/a", "fill": "continuous"}, "fill has no effect"),
        ({"model_servers": "unix:/a", "handler_timeout_s": 9}, "handler_timeout_s has no effect"),
        ({"model_servers": "unix:/a", "gpus": 1}, "gpus is for placement="),
    ],
)
def test_options_that_the_model_server_decides_are_refused(config, says):
    with pytest.raises(ValueError, match=says):
        BackendConfig.of({"placement": "remote", **config})
