"""Backends that call other backends: by handles, in every placement, down to their ends."""

import anyio
import pytest

from serving import composed_code
from serving.composed_code import Calling, PlainAmongAsync, PlainCalling
from serving.scenes import Stage, deployed, echo
from shoal import errors
from shoal.serving.controller.controller import Controller
from shoal.testing import settle

real_time = pytest.mark.real_time  # threads and processes


async def join(client, code, *args, inner=echo, config=None, inner_config=None):
    """Makes ``inner``, and ``outer`` that is given its handle; returns that of ``outer``."""
    handle = await deployed(client, "inner", inner, config=inner_config)
    return await deployed(client, "outer", code, handle, *args, config=config)


class Hanging:
    def __init__(self):
        self.called = anyio.Event()
        self.left_at = None
        self.left = anyio.Event()
        self.let_go = anyio.Event()

    async def __call__(self, item: int):
        self.called.set()
        try:
            await self.let_go.wait()
        finally:
            self.left_at = anyio.current_time()
            self.left.set()


@real_time
@pytest.mark.parametrize(
    ("code", "placement", "inner_placement"),
    [
        (Calling, "task", "task"),
        pytest.param(Calling, "process", "task", marks=pytest.mark.one_loop),
        (PlainCalling, "thread", "task"),
        pytest.param(PlainCalling, "process", "process", marks=pytest.mark.one_loop),
    ],
)
async def test_code_makes_many_calls_reads_streams_and_gets_errors_of_other_backends(
    code, placement, inner_placement
):
    async with Controller() as client:
        config, beside = {"placement": placement}, {"placement": inner_placement}
        inner = composed_code.double
        outer = await join(client, code, inner=inner, config=config, inner_config=beside)
        assert [await outer.call(number) for number in range(3)] == [0, 2, 4]
        made, unsent = await outer.options(method_name="mapped").call(30)
        assert made == [2 * number for number in range(30)]
        assert unsent == ["int", "TypeError"]
        await client.create_backend("count", composed_code.count)
        await client.set_traffic("inner", {"count": 1})
        assert await outer.options(method_name="summed").call(40) == 780
        await client.create_backend("failing", composed_code.failing)
        await client.set_traffic("inner", {"failing": 1})
        with pytest.raises(LookupError, match="no such word: heron"):
            await outer.call("heron")
        await client.delete_endpoint("inner")
        with pytest.raises(errors.NoSuchName):
            await outer.call("heron")
        await client.create_endpoint("inner", backend="failing")
        with pytest.raises(LookupError):
            await outer.call("heron")


@real_time
@pytest.mark.one_loop
async def test_a_handle_is_given_in_an_item_and_handed_on():
    async with Controller() as client:
        double, use = [
            await deployed(client, tag, f"serving.composed_code:{tag}", config={"placement": where})
            for tag, where in (("double", "task"), ("use", "process"))
        ]
        assert await use.call(double) == 8
        code, config = composed_code.Forwarding, {"placement": "process"}
        forward = await deployed(client, "forward", code, use, double, config=config)
        assert await forward.call(0) == 8


@real_time
@pytest.mark.one_loop
@pytest.mark.parametrize("placement", ["thread", "process"])
async def test_a_blocking_handle_is_handed_on_from_a_process(placement):
    async with Controller() as client:
        double, use = [
            await deployed(client, tag, f"serving.composed_code:{tag}", config={"placement": where})
            for tag, where in (("double", "task"), ("plain_use", placement))
        ]
        code, config = composed_code.PlainForwarding, {"placement": "process"}
        forward = await deployed(client, "forward", code, use, double, config=config)
        assert await forward.call(0) == 8


async def test_code_that_calls_itself_waits_for_its_own_replica_until_the_deadline():
    class Recursive:
        async def __call__(self, depth: int):
            return 0 if depth == 0 else 1 + await handle.call(depth - 1)

    async with Controller() as client:
        handle = await deployed(client, "b", Recursive, config={"placement": Stage()}, endpoint="e")
        with pytest.raises(errors.DeadlineExceeded):
            await handle.options(timeout_s=5).call(2)
        assert anyio.current_time() == pytest.approx(5)
        assert await handle.call(0) == 0
        await client.update_backend_config("b", {"num_replicas": 3})
        assert await handle.call(2) == 2


async def test_code_that_calls_itself_without_a_deadline_ends_with_its_backend():
    class Recursive:
        async def __call__(self, depth: int):
            return await handle.call(depth - 1)

    config = {"placement": Stage(), "graceful_shutdown_timeout_s": 7}
    async with Controller() as client, anyio.create_task_group() as tasks:
        handle = await deployed(client, "b", Recursive, config=config, endpoint="e")

        async def call() -> None:
            with pytest.raises(errors.BatcherClosed):
                await handle.call(2)

        tasks.start_soon(call)
        await settle()
        await client.shutdown()
        assert anyio.current_time() == pytest.approx(7)


class Counting(Calling):
    runs = 0

    async def __call__(self, item):
        Counting.runs += 1
        return await self.handle.call(item)


async def test_the_inner_backend_may_run_its_batch_again_unseen():
    Counting.runs = 0
    inner, stage = Hanging(), Stage()
    async with Controller() as client, anyio.create_task_group() as tasks:
        config, beside = {"placement": Stage()}, {"placement": stage, "retries": 1}
        handle = await join(client, Counting, inner=inner, config=config, inner_config=beside)
        tasks.start_soon(handle.call, 1)
        await inner.called.wait()
        inner.called = anyio.Event()
        stage.replicas[0].die()
        await inner.called.wait()
        assert Counting.runs == 1
        tasks.cancel_scope.cancel()


@real_time
@pytest.mark.parametrize(
    ("code", "placement"),
    [(PlainCalling, "thread"), pytest.param(Calling, "process", marks=pytest.mark.one_loop)],
)
async def test_so_it_is_across_threads_and_processes(code, placement, tmp_path):
    log, inner = tmp_path / "runs", composed_code.killer
    config, beside = {"placement": placement, "retries": 3}, {"placement": "process"}
    async with Controller() as client:
        handle = await join(client, code, log, inner=inner, config=config, inner_config=beside)
        with pytest.raises(errors.ReplicaDied) as caught:
            await handle.call(1)
        assert caught.value.replica == "inner#0"
        assert log.read_text() == "x"
        assert [r.tag for r in (await client.status()).backends["outer"].replicas] == ["outer#0"]


@real_time
async def test_shutdown_ends_plain_code_that_waits_for_another_backend():
    inner = Hanging()
    config = {"graceful_shutdown_timeout_s": 0.1}
    async with Controller() as client, anyio.create_task_group() as tasks:
        handle = await join(client, PlainCalling, inner=inner, config=config, inner_config=config)

        async def call() -> None:
            with pytest.raises(errors.ShoalError):
                await handle.call(1)

        tasks.start_soon(call)
        await inner.called.wait()
        with anyio.move_on_after(5) as patience:
            await client.shutdown()
        inner.let_go.set()
        assert not patience.cancelled_caught


async def test_a_method_that_is_not_there_is_no_such_name():
    config = {"placement": Stage()}
    async with Controller() as client:
        handle = await join(client, Calling, config=config, inner_config=config)
        for method in ("absent", "_private", "__init__", "reconfigure"):
            with pytest.raises(errors.NoSuchName):
                await handle.options(method_name=method).call(1)


@real_time
@pytest.mark.parametrize(
    ("code", "placement"),
    [
        (PlainCalling, "thread"),
        pytest.param(PlainCalling, "process", marks=pytest.mark.one_loop),
        pytest.param(PlainAmongAsync, "process", marks=pytest.mark.one_loop),
        pytest.param(Calling, "process", marks=pytest.mark.one_loop),
    ],
)
@pytest.mark.parametrize("leaves", [False, True], ids=["deadline", "leaves"])
async def test_who_leaves_or_runs_out_of_time_ends_what_the_code_calls(code, placement, leaves):
    inner = Hanging()
    async with Controller() as client:
        config = {"placement": placement}
        handle = await join(client, code, inner=inner, config=config)
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                if leaves:
                    await handle.call(1)
                with pytest.raises(errors.DeadlineExceeded):
                    await handle.options(timeout_s=0.3).call(1)

            tasks.start_soon(call)
            await inner.called.wait()
            if leaves:
                tasks.cancel_scope.cancel()
        with anyio.move_on_after(5) as patience:
            await inner.left.wait()
        inner.let_go.set()  # or a thread that waits for it would keep the test from failing
        assert not patience.cancelled_caught
