"""Replicas in Ray actors, on a cluster of several nodes that are all on this machine."""

import errno
import os
import re
import signal
import threading
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

from replicas.playing import died, noted, playing
from replicas.ray_backends import (
    AlwaysStuck,
    Box,
    ByKeyword,
    KnownHereOnly,
    Model,
    Opaque,
    Raising,
    RaisingInTheLoop,
)
from replicas.ray_cluster import MARKS, NODE, SMALL, cluster_of
from serving.kinds_code import KINDS as KINDS_OF_TABLES
from serving.kinds_code import Async, Plain
from serving.kinds_code import PlainSetting as PlainContext
from serving.kinds_code import Setting as AsyncContext
from shoal.batching.current import Identity, running_batch, setting
from shoal.core.request import Batch, DispatchReason
from shoal.errors import (
    BatcherClosed,
    HandlerFailed,
    ReplicaDied,
    ReplicaNotStarted,
    WrongResultType,
)
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, ReplicaOptions
from shoal.testing.policies import make_request
from shoal.testing.replicas.check import check_replica
from shoal.testing.replicas.stage import Played
from time_limits import SLOW_TEST_S
from worker_processes import until

ray = pytest.importorskip("ray")

from shoal.replicas.ray.link import Link  # noqa: E402 - it needs Ray
from shoal.replicas.ray.placing import new_actor  # noqa: E402
from shoal.replicas.ray.replica import RayReplica  # noqa: E402
from shoal.replicas.remote.sockets import connect  # noqa: E402

pytestmark = MARKS


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Generator[Any]:
    """A cluster of two nodes, one of them with a resource ``x``; the replicas join it."""
    with cluster_of({"num_cpus": 2}, {"num_cpus": 2, "resources": {"x": 1}}) as cluster:
        yield cluster


def made(
    target: Any,
    *init_args: Any,
    user_config: Any = None,
    start_timeout_s: float = 60.0,
    cancel_grace_s: float = 10.0,
    **options: Any,
) -> RayReplica:
    """Makes a replica on Ray."""
    shared = ReplicaOptions(start_timeout_s=start_timeout_s, cancel_grace_s=cancel_grace_s)
    return RayReplica(
        Blueprint(
            identity=Identity("model", "model#7"),
            definition=Definition(target, init_args),
            user_config=user_config,
            options=shared,
            placement_options={"ray_options": SMALL, **options},
        )
    )


def on_ray(target: Any, *init_args: Any, **given: Any) -> AbstractAsyncContextManager[Played]:
    """Plays a replica on Ray."""
    return playing(made(target, *init_args, **given))


@pytest.mark.timeout(SLOW_TEST_S)
@pytest.mark.parametrize(
    ("anyio_backend", "kind"),
    [("trio", "async"), ("asyncio", "async"), ("trio", "plain")],  # plain code runs in no loop
    indirect=["anyio_backend"],
)
async def test_the_replicas_keep_the_promises_of_all_replicas(kind):
    def placement(blueprint: Blueprint) -> RayReplica:
        return RayReplica(replace(blueprint, placement_options={"ray_options": SMALL}))

    placement.takes_open_batches = True  # type: ignore[attr-defined]
    await check_replica(placement, kinds=[kind], crash=partial(os._exit, 3), patience_s=30.0)


async def test_joining_ray_leaves_the_handler_of_sigterm_alone(folder):
    ray.shutdown()
    before = signal.getsignal(signal.SIGTERM)
    async with on_ray(Model, folder.path) as played:
        assert played.error is None
        assert ray.is_initialized()
        assert signal.getsignal(signal.SIGTERM) is before


async def test_a_replica_runs_where_its_resources_are(cluster, folder):
    if not ray.is_initialized():
        ray.init()
    (node,) = [n["NodeID"] for n in ray.nodes() if n["Alive"] and "x" in n["Resources"]]
    async with on_ray(Model, folder.path, ray_options={**SMALL, "resources": {"x": 1}}) as played:
        assert await played.run("nodes", [1]) == [node]


async def test_the_resources_of_a_stopped_replica_are_free(folder):
    options = {"ray_options": {**SMALL, "resources": {"x": 1}}}
    for _ in range(2):
        async with on_ray(Model, folder.path, **options) as played:
            assert await played.run("__call__", [1]) == [1]


async def test_a_replica_that_finds_no_place_says_what_it_asks_for(folder):
    ask = {"resources": {"nowhere": 1}}
    async with on_ray(Model, folder.path, ray_options=ask, place_timeout_s=0.5) as played:
        assert isinstance(played.error, ReplicaNotStarted)
        assert "not placed" in str(played.error)
        assert "nowhere" in str(played.error)


async def test_addresses_of_ray_client_are_refused(folder, monkeypatch):
    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    async with on_ray(Model, folder.path) as played:
        assert isinstance(played.error, ReplicaNotStarted)
        assert "can't use Ray Client, that is addresses with ray://" in str(played.error)


async def test_an_actor_has_the_name_of_its_replica(folder):
    listed = partial(ray.util.list_named_actors, all_namespaces=True)
    async with on_ray(Model, folder.path) as one, on_ray(Model, folder.path) as other:
        assert one.error is other.error is None
        names = [actor["name"] for actor in await anyio.to_thread.run_sync(listed)]
    assert len({name for name in names if name.startswith("model#7 ")}) == 2


async def test_a_replica_that_does_not_answer_dies(folder, monkeypatch):
    monkeypatch.setattr("shoal.replicas.ray.replica._PING_PERIOD_S", 0.2)
    async with on_ray(Model, folder.path) as played:
        (pid,) = await played.run("pids", [1])
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ReplicaDied, match="did not answer: nothing was received for 2 s"):
            await played.run("__call__", [1])
        await died(played)


async def test_environment_variables_go_over_those_of_the_runtime_env(folder):
    options = {
        "env": {"SHOAL_A": "ours"},
        "ray_options": {
            **SMALL,
            "runtime_env": {"env_vars": {"SHOAL_A": "theirs", "SHOAL_B": "kept"}},
        },
    }
    async with on_ray(Model, folder.path, **options) as played:
        assert await played.run("environment", ["SHOAL_A", "SHOAL_B"]) == ["ours", "kept"]


async def test_async_code_has_the_kind_of_event_loop_of_the_program(folder, anyio_backend_name):
    async with on_ray(Model, folder.path) as played:
        assert await played.run("loops", [1]) == [anyio_backend_name]


async def test_deadlines_arrive_as_the_time_that_is_left(folder):
    async with on_ray(Model, folder.path) as played:
        now = anyio.current_time()
        batch = Batch(
            1, DispatchReason.FULL, [make_request(1, deadline=now + 1000), make_request(2)]
        )
        token = running_batch.set(batch)
        left_s, nothing = await played.replica.run("seconds_left", [1, 2])
        running_batch.reset(token)
        # Ray lets asyncio run on uvloop where that is installed, whose clock counts milliseconds.
        assert 900 < left_s <= 1000.01
        assert nothing is None


@pytest.mark.parametrize("method", ["traces", "traces_in_a_loop"])
async def test_code_continues_the_trace_of_its_batch(folder, method):
    pytest.importorskip("opentelemetry")
    async with on_ray(Model, folder.path) as played:
        batch = Batch(1, DispatchReason.FULL, [make_request(1), make_request(2)])
        batch.trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        token = running_batch.set(batch)
        found = await played.replica.run(method, [1, 2])
        running_batch.reset(token)
    assert found == ["af7651916cd43dd8448eb211c80319c"] * 2


async def test_large_items_arrive(folder):
    async with on_ray(Model, folder.path) as played:
        assert await played.run("sums", [Box(3_000_000), Box(1)]) == [3_000_000, 1]


async def test_many_calls_run_at_once(folder):
    async with on_ray(Model, folder.path) as played, anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(played.run, "is_stuck", [1])
        await noted(folder, "began", 50)
        folder.release("on")


async def waits_for_the_end(played: Played, deaths: list[ReplicaDied]) -> None:
    try:
        await played.run("waits", [1])
    except ReplicaDied as death:
        deaths.append(death)


async def test_a_replica_whose_process_is_killed_dies(folder):
    async with on_ray(Model, folder.path) as played:
        (pid,) = await played.run("pids", [1])
        call: list[Any] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waits_for_the_end, played, call)
            await noted(folder, "began")
            os.kill(pid, signal.SIGKILL)
            await played.ended.wait()
        for death in (played.error, *call):
            assert isinstance(death, ReplicaDied)
            assert death.replica == "model#7"
            assert isinstance(death.__cause__, ray.exceptions.RayActorError)
        assert call[0] is not played.error
        with pytest.raises(ReplicaDied):
            await played.run("__call__", [1])


async def test_an_idle_replica_whose_process_is_killed_dies(folder):
    async with on_ray(Model, folder.path) as played:
        (pid,) = await played.run("pids", [1])
        os.kill(pid, signal.SIGKILL)
        await died(played)


async def test_all_work_on_a_node_that_is_lost_fails(cluster, folder):
    node = cluster.add_node(num_cpus=1, resources={"doomed": 1}, **NODE)
    on_it = {"ray_options": {**SMALL, "resources": {"doomed": 0.1}}}
    deaths: list[ReplicaDied] = []
    async with (
        on_ray(Model, folder.path, **on_it) as one,
        on_ray(Model, folder.path, **on_it) as other,
        anyio.create_task_group() as tasks,
    ):
        for played in (one, one, other):
            tasks.start_soon(waits_for_the_end, played, deaths)
        await noted(folder, "began", 3)
        await anyio.to_thread.run_sync(partial(cluster.remove_node, node, allow_graceful=False))
        await one.ended.wait()
        await other.ended.wait()
    assert len(deaths) == 3
    assert isinstance(one.error, ReplicaDied)
    assert isinstance(other.error, ReplicaDied)


ENDS = pytest.mark.parametrize(
    ("how", "what"), [("exit", "SystemExit(3)"), ("ctrl-c", "KeyboardInterrupt()")]
)
FAILS = [("panic", "Panic: index"), ("cancelled", "CancelledError")]
HOOKS = pytest.mark.parametrize("code", [Raising, RaisingInTheLoop])


@ENDS
@pytest.mark.parametrize("method", ["__call__", "in_the_loop", "plain_steps", "steps_in_the_loop"])
async def test_code_that_would_end_a_process_ends_its_replica(method, how, what):
    async with on_ray(Raising) as played:
        if "steps" in method:
            step, error = await played.steps(method, [how])
            assert step == ["step"]
        else:
            with pytest.raises(ReplicaDied) as raised:
                await played.run(method, [how])
            error = raised.value
        await played.ended.wait()
        assert isinstance(error, ReplicaDied)
        assert error is not played.error
        for death in (error, played.error):
            assert str(death) == f"model#7 was killed: its code raised {what}"


async def test_code_that_raises_no_exception_fails_its_batch_alone():
    async with on_ray(Raising) as played:
        for how, what in FAILS:
            for method in ("__call__", "in_the_loop", "gathered"):
                with pytest.raises(HandlerFailed, match=what):
                    await played.run(method, [how])
            for method in ("plain_steps", "steps_in_the_loop"):
                step, error = await played.steps(method, [how])
                assert step == ["step"]
                assert isinstance(error, HandlerFailed)
                assert what in str(error)
        assert await played.run("__call__", ["well"]) == ["well"]
        assert await played.steps("steps_in_the_loop", ["well"]) == [["step"], ["well"]]
    assert played.error is None


@ENDS
async def test_a_batched_method_that_would_end_a_process_ends_its_replica(how, what):
    async with on_ray(Raising) as played:
        # The batch may have failed before the end of the replica was known.
        with pytest.raises((ReplicaDied, BatcherClosed), match=what.partition("(")[0]):
            await played.run("gathered", [how])
        await played.ended.wait()
        assert str(played.error) == f"model#7 was killed: its code raised {what}"


@pytest.mark.parametrize(("how", "what"), [("exit", "SystemExit(3)"), ("panic", "Panic('index')")])
async def test_a_constructor_that_raises_no_exception_is_a_failed_start(how, what):
    async with on_ray(Raising, how) as played:
        assert isinstance(played.error, ReplicaNotStarted)
        assert str(played.error) == f"model#7 was killed: its code raised {what}"


@HOOKS
async def test_a_first_config_that_would_end_a_process_is_a_failed_start(code):
    async with on_ray(code, user_config="exit") as played:
        assert isinstance(played.error, ReplicaNotStarted)
        assert str(played.error) == "model#7 was killed: its code raised SystemExit(3)"


async def tell(played: Played, hook: str, how: str) -> None:
    """Has a hook raise something."""
    if hook == "reconfigure":
        await played.replica.reconfigure(how)
    else:
        await played.replica.reconfigure(f"be in {hook} {how}")
        await played.replica.check_health()


@pytest.mark.parametrize(
    ("code", "hook"),
    [(Raising, "reconfigure"), (RaisingInTheLoop, "reconfigure"), (RaisingInTheLoop, "health")],
)
async def test_a_hook_that_would_end_a_process_ends_its_replica(code, hook):
    async with on_ray(code) as played:
        with pytest.raises(ReplicaDied) as raised:
            await tell(played, hook, "exit")
        await played.ended.wait()
        for death in (raised.value, played.error):
            assert str(death) == "model#7 was killed: its code raised SystemExit(3)"


async def test_a_plain_health_that_would_end_a_process_fails_alone():
    async with on_ray(Raising) as played:
        with pytest.raises(HandlerFailed, match="SystemExit: 3"):
            await tell(played, "health", "exit")
        assert await played.run("__call__", ["well"]) == ["well"]


@HOOKS
async def test_a_hook_that_raises_no_exception_fails_alone(code, caplog):
    async with on_ray(code) as played:
        for how, what in FAILS:
            for hook in ("reconfigure", "health"):
                with pytest.raises(HandlerFailed, match=what):
                    await tell(played, hook, how)
        assert await played.run("in_the_loop", ["well"]) == ["well"]
        await played.replica.reconfigure("be in closing exit")
    assert played.error is None
    assert "close() failed" in caplog.text


async def test_a_replica_is_lost_when_the_program_leaves_ray(folder):
    async with on_ray(Model, folder.path, cancel_grace_s=0.1) as played:
        ray.shutdown()
        with pytest.raises(ReplicaDied):
            await played.replica.check_health()
        await died(played)


async def test_a_replica_that_waits_for_its_place_ends_when_the_program_leaves_ray(
    folder, monkeypatch, caplog
):
    monkeypatch.setattr("shoal.replicas.ray.replica._PATIENCE_S", 0.1)
    options = {"ray_options": {**SMALL, "resources": {"nowhere": 1}}, "place_timeout_s": 20.0}

    async def leave() -> None:
        await until(lambda: "model#7 waits: " in caplog.text)
        await anyio.to_thread.run_sync(ray.shutdown)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        async with on_ray(Model, folder.path, **options) as played:
            # Ray may be the first to say it.
            said = str(played.error)
            assert isinstance(played.error, ReplicaNotStarted)
            assert "the program has called ray.shutdown()" in said or "never ran" in said


async def test_code_that_is_stuck_when_its_time_is_up_is_killed(folder):
    async with on_ray(Model, folder.path, cancel_grace_s=0.1) as played:
        async with anyio.create_task_group() as tasks:
            batch = Batch(1, DispatchReason.FULL, [])
            with setting(running_batch, batch):
                tasks.start_soon(played.replica.run, "is_stuck", [1])
            await noted(folder, "began")
            tasks.cancel_scope.cancel()
            batch.set_overdue()
        await died(played)
        assert "0.1 s after its time was up" in str(played.error)


async def test_a_generator_that_is_stuck_when_its_time_is_up_is_killed(folder):
    async with on_ray(Model, folder.path, cancel_grace_s=0.1) as played:
        batch = Batch(1, DispatchReason.FULL, [])
        with setting(running_batch, batch):
            async with aclosing(played.replica.run_stream("is_stuck_in_a_step", [1])) as steps:
                assert await anext(steps) == [1]
                await noted(folder, "began")
                batch.set_overdue()
        await died(played)


async def test_work_whose_callers_have_left_ends_no_actor(folder):
    async with on_ray(Model, folder.path, cancel_grace_s=0.0) as played:
        with anyio.move_on_after(0.05):
            await played.run("takes_its_time", [0.3])
        assert await played.run("__call__", [1]) == [1]


async def test_async_code_that_is_cancelled_leaves_the_replica_alive(folder):
    async with on_ray(Model, folder.path) as played:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(played.run, "waits", [1])
            await noted(folder, "began")
            tasks.cancel_scope.cancel()
        assert "cancelled" in folder.notes()
        assert await played.run("__call__", [1]) == [1]


async def test_a_generator_runs_only_a_little_ahead_of_its_reader(folder):
    async with (
        on_ray(Model, folder.path) as played,
        aclosing(played.replica.run_stream("counts", [1000])) as steps,
    ):
        assert await anext(steps) == [0]
        await noted(folder, "step", 4)
        assert await played.run("__call__", [1]) == [1]
        assert folder.notes().count("step") < 20


async def test_an_async_generator_may_hold_a_cancel_scope_between_its_steps(folder):
    async with on_ray(Model, folder.path) as played:
        assert await played.steps("counts_in_a_scope", [50]) == [[n] for n in range(50)]


async def test_a_crash_in_a_stream_comes_after_its_steps(folder):
    async with on_ray(Model, folder.path) as played:
        async with aclosing(played.replica.run_stream("crashes_in_a_step", [1])) as steps:
            assert await anext(steps) == [1]
            folder.release("on")
            with pytest.raises(ReplicaDied):
                await anext(steps)
        await played.ended.wait()


async def test_a_crash_is_noticed_at_once_although_a_forked_child_lives_on(folder):
    async with on_ray(Model, folder.path, cancel_grace_s=0.1) as played:
        [pid] = await played.run("forks", [1])
        os.kill(pid, signal.SIGKILL)
        with anyio.move_on_after(30.0):  # pings would notice after 45 s
            await played.ended.wait()
        folder.release("on")
        assert isinstance(played.error, ReplicaDied)


async def test_health_does_not_wait_for_work(folder):
    async with (
        on_ray(AlwaysStuck, cancel_grace_s=0.0) as played,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(300):
            tasks.start_soon(played.run, "__call__", [1])
        await anyio.wait_all_tasks_blocked()
        await played.replica.check_health()
        tasks.cancel_scope.cancel()
        played.replica.kill("the test is over")


async def test_close_is_called_before_the_actor_ends(folder):
    async with on_ray(Model, folder.path) as played:
        await played.replica.reconfigure(5)
    assert played.error is None
    assert folder.notes() == ["configured 5", "closed"]


async def test_an_error_whose_class_only_this_program_knows_keeps_its_type(folder):
    class Mine(Exception):
        pass

    async with on_ray(Model, folder.path) as played:
        with pytest.raises(Mine, match="some text"):
            await played.run("raises", [Mine("some text")])


async def test_an_error_keeps_its_class_and_cause_whatever_its_constructor_takes(folder):
    async with on_ray(Model, folder.path) as played:
        with pytest.raises(ExceptionGroup) as raised:
            await played.run("raises_by_keyword", [1])
        got = raised.value
        assert [type(member) for member in got.exceptions] == [ByKeyword, ValueError]
        assert (got.exceptions[0].code, got.__cause__.code) == (1, 3)


async def test_an_error_that_can_not_be_sent_is_told_as_text(folder):
    async with on_ray(Model, folder.path) as played:
        with pytest.raises(HandlerFailed, match="at a distance"):
            await played.run("raises_strangely", [1])


@pytest.mark.parametrize(
    ("kind", "why"), [(Opaque, "can't be sent"), (KnownHereOnly, "known elsewhere only")]
)
async def test_items_that_can_not_be_sent_or_loaded_are_a_type_error(folder, kind, why):
    async with on_ray(Model, folder.path) as played:
        with pytest.raises(TypeError, match=why):
            await played.run("__call__", [kind()])
        assert await played.run("__call__", [1]) == [1]


@pytest.mark.parametrize(
    ("method", "why"), [("opaque", "not to be pickled"), ("strange", "elsewhere")]
)
async def test_results_that_can_not_be_sent_are_a_type_error(folder, method, why):
    async with on_ray(Model, folder.path) as played:
        with pytest.raises(TypeError, match=why):
            await played.run(method, [1])
        assert await played.run("__call__", [1]) == [1]


async def test_an_actor_that_is_made_when_its_start_was_stopped_is_killed(folder, monkeypatch):
    begun, stopped = threading.Event(), threading.Event()
    lifelines: list[Any] = []

    def late(*args: Any) -> Any:
        begun.set()
        stopped.wait()
        actor = new_actor(*args)
        lifelines.append(actor.lifeline)
        return actor

    monkeypatch.setattr("shoal.replicas.ray.replica.new_actor", late)
    played = Played(made(Model, folder.path))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.serve)
        await anyio.to_thread.run_sync(begun.wait)
        played.replica.stop()
    assert isinstance(played.error, ReplicaNotStarted)
    stopped.set()
    await until(lambda: lifelines)
    died = await anyio.to_thread.run_sync(partial(lifelines[0].exception, 30.0))
    assert isinstance(died, ray.exceptions.RayActorError)


async def test_a_replica_that_is_killed_while_it_starts_is_not_started(folder):
    played = Played(made(Model, folder.path, ray_options={"resources": {"nowhere": 1}}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.serve)
        await anyio.lowlevel.checkpoint()
        played.replica.kill("nobody wants it")
    assert isinstance(played.error, ReplicaNotStarted)
    assert "nobody wants it" in str(played.error)


@pytest.mark.parametrize("code", [Plain, Async])
async def test_a_table_is_refused_as_the_results_of_a_batch_in_an_actor(code: Any) -> None:
    async with on_ray(code) as played:
        for kind, advice in KINDS_OF_TABLES.items():
            with pytest.raises(WrongResultType, match=advice):
                await played.run("__call__", [kind])
            with pytest.raises(WrongResultType, match=advice):
                async with aclosing(played.replica.run_stream("steps", [kind])) as steps:
                    await anext(steps)


async def test_a_variable_that_code_sets_holds_until_its_call_ends_in_an_actor() -> None:
    for code in (PlainContext, AsyncContext):
        async with on_ray(code, user_config={"version": 1}) as played:
            for _ in range(2):
                assert await played.run("one", ["a"]) == ["nobody"]
                await played.replica.reconfigure({"version": 2})
                await played.replica.check_health()
                assert await played.steps("steps", ["a"]) == [["nobody"], ["a"]]


async def test_an_actor_takes_no_connection_without_its_token(folder, monkeypatch):
    made: list[Any] = []
    attach = Link.attach

    async def attach_after_a_stranger(self: Link, actor: Any, soon: Any) -> str:
        made.append(await anyio.to_thread.run_sync(actor.ready.result))
        [(_, address)] = made
        for token in ("x" * 40, None):
            with pytest.raises(OSError, match="token"):
                await connect(address, token)
        async with await anyio.connect_tcp(address.host, address.port) as stranger:
            await stranger.send(b"GET / HTTP/1.1\r\n\r\n" * 10)
            return await attach(self, actor, soon)

    monkeypatch.setattr(Link, "attach", attach_after_a_stranger)
    async with on_ray(Model, folder.path) as played:
        assert await played.run("__call__", [1]) == [1]
        [(_, address)] = made
        with pytest.raises(OSError):  # it listens no more
            await anyio.connect_tcp(address.host, address.port)


async def test_an_actor_that_can_not_be_reached_says_where_it_listens(folder, monkeypatch):
    async def refused(address: Any, token: Any) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr("shoal.replicas.ray.link.connect", refused)
    async with on_ray(Model, folder.path) as played:
        assert isinstance(played.error, ReplicaNotStarted)
        where = r"model#7 can't be reached at plain-tcp://[0-9.]+:[0-9]+: .*Connection refused"
        assert re.fullmatch(where, str(played.error))
