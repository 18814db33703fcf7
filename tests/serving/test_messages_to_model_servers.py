"""What a message of several calls to a model server owes to each of them, and how backends end."""

import anyio
import pytest

from handlers import echo
from serving.scenes import deployed
from serving.test_model_servers import Model, ingress, model_server, one_held, status_of
from serving.test_model_servers import model as model
from shoal.errors import BatcherClosed, ItemTooLarge, Overloaded, ReplicaDied
from shoal.replicas.remote import keep_alive
from shoal.serving.controller.controller import Controller
from time_limits import HANG_S
from worker_processes import until

pytestmark = pytest.mark.real_time


async def outcome_of(call, outcomes=None):
    try:
        outcome = await call
    except Exception as error:
        outcome = error
    if outcomes is not None:
        outcomes.append(outcome)
    return outcome


async def test_the_calls_of_a_message_that_fit_into_the_queue_are_served(tmp_path):
    outcomes = []
    config = {"max_batch_size": 1, "max_queued_requests": 4}
    async with one_held(tmp_path, **config) as (_, server, handle, tasks):
        for n in range(10):
            tasks.start_soon(outcome_of, handle.call(n), outcomes)
        await until(lambda: status_of(server).queued == 4)
    assert sum(isinstance(one, Overloaded) for one in outcomes) == 6
    assert len([one for one in outcomes if isinstance(one, int)]) == 4


async def test_a_caller_of_a_message_that_leaves_frees_its_place_over_there(tmp_path):
    outcomes = []
    async with one_held(tmp_path, max_batch_size=1) as (model, server, handle, tasks):
        async with anyio.create_task_group() as together:
            for n in range(6):
                if n in (2, 4):
                    tasks.start_soon(outcome_of, handle.call(n), outcomes)
                else:
                    together.start_soon(handle.call, n)
            await until(lambda: status_of(server).queued == 6)
            together.cancel_scope.cancel()
        await until(lambda: status_of(server).queued == 2)
    assert sorted(outcomes) == [2, 4]
    assert model.batches == [1, 1, 1]


async def test_the_only_caller_of_a_message_that_leaves_frees_its_place_over_there(tmp_path):
    stays = {"cancel_abandoned": False}
    async with one_held(tmp_path, stays) as (model, server, handle, _):
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(handle.call, "leaves")
            await until(lambda: status_of(server).queued == 1)
            leaving.cancel_scope.cancel()
        await until(lambda: status_of(server).queued == 0)
    assert model.batches == [1]


@pytest.mark.parametrize(
    ("error", "retries"),
    [
        (BatcherClosed("another batcher is closed"), 1),
        (ReplicaDied("it says", replica="model#0"), 0),  # and is replaced
    ],
)
async def test_an_error_of_the_code_that_looks_like_an_end_is_its_result(at, error, retries):
    async def model(items: list[int]) -> list[int]:
        if 1 in items:
            raise error
        return items

    async with model_server(at, model), ingress(at, retries=retries) as (controller, handle):
        with pytest.raises(type(error), match=r"another batcher|it says"):
            await handle.call(1)
        with anyio.fail_after(HANG_S):
            assert await handle.call(2) == 2
        assert status_of(controller).deaths == 0


async def test_a_model_server_without_a_replica_gets_no_more_work(at, also, caplog):
    class Broken:
        def __init__(self):
            if broken:
                raise RuntimeError("the GPU is broken")

        async def __call__(self, items: list[str]) -> list[str]:
            if "die" in items:
                raise SystemExit("the code wants to end")
            return ["the broken one"] * len(items)

    broken = False
    async with (
        model_server(at, Broken) as (server, _),
        model_server(also, Model()),
        ingress(at, also, retries=1) as (_, handle),
    ):
        broken = True
        while status_of(server).state != "unavailable":
            await outcome_of(handle.call("die"))
        outcomes = [await outcome_of(handle.call("go on")) for _ in range(8)]
        assert outcomes == ["go on"] * 8
        await until(lambda: "lost the model server" in caplog.text)
        assert f"lost the model server at {at}: it has no replica" in caplog.text
        broken = False


async def test_the_work_of_a_backend_that_is_deleted_ends_and_the_next_one_gets_more(at, model):
    outcomes = []
    async with (
        model_server(at, model) as (server, _),
        ingress(at) as (controller, handle),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(outcome_of, handle.call("hold"), outcomes)
        await model.holding.wait()
        deleted = anyio.Event()

        async def delete():
            await server.delete_backend("model")
            deleted.set()

        tasks.start_soon(delete)
        members = controller.backends["model"].pool.members
        await until(lambda: not any(member.replica.takes_work for member in members))
        tasks.start_soon(outcome_of, handle.call("later"), outcomes)
        await anyio.wait_all_tasks_blocked()
        assert not outcomes
        model.released.set()
        await until(lambda: outcomes == ["hold"])
        with anyio.fail_after(HANG_S):
            await deleted.wait()
        await server.create_backend("model", Model(), config={"max_batch_size": 64})
        await until(lambda: len(outcomes) == 2)
    assert outcomes == ["hold", "later"]


async def test_the_death_of_a_replica_elsewhere_ends_no_replica_here():
    started = []

    class Calling:
        def __init__(self):
            started.append(self)

        async def __call__(self, items: list[int]) -> list[int]:
            if 1 in items:  # as code that calls another server through `shoal.connect`
                raise ReplicaDied("a replica of another server died")
            return items

    async with Controller() as controller:
        handle = await deployed(controller, "model", Calling)
        with pytest.raises(ReplicaDied):
            await handle.call(1)
        with anyio.fail_after(HANG_S):
            assert await handle.call(2) == 2
    assert len(started) == 1


async def test_a_message_that_is_too_large_fails_alone(at, monkeypatch):
    async def model(items: list[bytes]) -> list[bytes]:
        return [item * 100 for item in items]

    async with model_server(at, model), ingress(at) as (controller, handle):
        monkeypatch.setattr(keep_alive, "MOST_BYTES", 10_000)
        with pytest.raises(ItemTooLarge, match="the items of a batch take 20,"):
            await handle.call(bytes(20_000))
        with pytest.raises(ItemTooLarge, match="the results of __call__"):
            await handle.call(bytes(200))
        assert await handle.call(b"x") == b"x" * 100
        assert status_of(controller).deaths == 0


async def test_a_model_server_that_returns_with_other_methods_gets_no_calls(at, also, caplog):
    async def two(items: list[int], scales: list[int]) -> list[int]:
        return [item * scale for item, scale in zip(items, scales, strict=True)]

    async with (
        model_server(at, echo),
        ingress(at) as (controller, handle),
        model_server(also, two),
    ):
        await controller.update_backend_config("model", {"model_servers": [at, also]})
        await until(lambda: "has other methods than before" in caplog.text)
        assert [await handle.call(n) for n in range(8)] == list(range(8))
        await until(lambda: controller.backends["model"].supervisor.failures.start_failures > 1)
        assert caplog.text.count("has other methods than before") == 1


@pytest.mark.parametrize("hangs", [False, True])
async def test_one_sick_replica_does_not_take_its_model_server_away(at, hangs):
    class Sick:
        numbers = 0

        def __init__(self):
            self.number = Sick.numbers
            Sick.numbers += 1

        async def __call__(self, items: list[int]) -> list[int]:
            return items

        async def health(self):
            checked.append(self.number)
            is_sick = self.number == 0 and len(checked) > 2
            if is_sick and hangs:
                await anyio.sleep_forever()
            return not is_sick

    checked = []
    config = {"num_replicas": 2, "health_check_period_s": 3600}
    often = {"health_check_period_s": 0.02, "health_check_timeout_s": 5}
    async with model_server(at, Sick, **config), ingress(at, **often) as (controller, handle):
        await until(lambda: checked.count(0) >= 9)
        assert await handle.call(1) == 1
        assert status_of(controller).deaths == 0


async def test_priorities_beyond_the_levels_over_there_are_the_lowest(at, model):
    async with (
        model_server(at, model, priority_levels=2),
        ingress(at, priority_levels=5) as (_, handle),
    ):
        assert await handle.options(priority=5).call("low") == "low"
    assert model.metadata[0][1] == 2


@pytest.mark.parametrize(("retries", "deleted"), [(0, 1), (1, 1), (1, 2)])
async def test_calls_that_a_deleted_backend_drops_run_elsewhere_if_they_may(
    at, also, retries, deleted
):
    models, outcomes = [Model(), Model()], []
    config = {"max_batch_size": 1}

    async def call(handle):
        outcomes.extend(await handle.map([1, "hold", 3, 4], return_exceptions=True))

    async with (
        model_server(at, models[0], **config) as (one, _),
        model_server(also, models[1], **config) as (other, _),
        ingress(at, also, retries=retries) as (_, handle),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(call, handle)
        await until(lambda: any(model.holding.is_set() for model in models))
        both = [(models[0], one), (models[1], other)]
        if models[1].holding.is_set():
            both.reverse()
        for model, server in both[:deleted]:
            await model.holding.wait()
            await until(lambda server=server: status_of(server).queued == 2)
            await server.delete_backend("model", force=True)
        both[1][0].released.set()
        await until(lambda: outcomes)
    assert outcomes[0] == 1
    if retries == deleted:
        assert outcomes == [1, "hold", 3, 4]
        assert [len(model.batches) for model, _ in both] == [2, 3]
    else:
        assert {type(one) for one in outcomes[1:]} == {ReplicaDied}


async def test_callers_may_leave_calls_that_run_elsewhere(at, also):
    models, outcomes = [Model(), Model()], {}
    levels = {"priority_levels": 3}
    config = {"max_batch_size": 1, **levels}
    scopes = {4: anyio.CancelScope()}

    async def call(handle, item, priority):
        with scopes.get(item, anyio.CancelScope()):
            outcomes[item] = await handle.options(priority=priority).call(item)

    async with (
        model_server(at, models[0], **config) as (one, _),
        model_server(also, models[1], **config) as (other, _),
        ingress(at, also, retries=1, **levels) as (_, handle),
        anyio.create_task_group() as tasks,
    ):
        for item, priority in ((1, 1), ("hold", 2), (3, 3), (4, 3)):
            tasks.start_soon(call, handle, item, priority)
        await until(lambda: any(model.holding.is_set() for model in models))
        backwards = models[1].holding.is_set()
        servers = (other, one) if backwards else (one, other)
        again = models[0] if backwards else models[1]
        await servers[0].delete_backend("model", force=True)
        await again.holding.wait()
        await until(lambda: status_of(servers[1]).queued == 2)
        await until(lambda: outcomes == {1: 1})  # it was served before
        scopes[4].cancel()
        await until(lambda: status_of(servers[1]).queued == 1)
        again.released.set()
    assert outcomes == {1: 1, "hold": "hold", 3: 3}


async def test_a_call_of_high_priority_need_not_wait_for_those_that_are_sent_with_it(at, model):
    outcomes = []
    config = {"max_batch_size": 1, "priority_levels": 3}
    ingress_config = {"priority_levels": 3, "priority_mixing": "isolate"}
    async with (
        model_server(at, model, **config),
        ingress(at, **ingress_config) as (_, handle),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(outcome_of, handle.options(priority=1).call("high"), outcomes)
        tasks.start_soon(outcome_of, handle.options(priority=3).call("hold"), outcomes)
        await model.holding.wait()
        await until(lambda: outcomes == ["high"])
        model.released.set()
    assert outcomes == ["high", "hold"]
