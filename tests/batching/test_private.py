"""What Shoal reads of other libraries may go: calls are answered and cancelled as before."""

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import shoal
from shoal.loops import private
from shoal.testing import settle

WITHOUT = pytest.mark.usefixtures("gone")

NAMES = [name for name in vars(private) if name.startswith("OF_")]


@pytest.fixture(params=NAMES)
def gone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, request.param, "_absent")


@WITHOUT
async def test_calls_are_answered_and_cancelled() -> None:
    seen: list[list[int]] = []

    @shoal.batch(max_batch_size=2, batch_wait_timeout_s=None)
    async def double(items: list[int]) -> list[int]:
        seen.append(items)
        return [2 * item for item in items]

    async with shoal.open_batchers(double), anyio.create_task_group() as tasks:
        with anyio.CancelScope() as left:
            tasks.start_soon(double, 1)
            await settle()
            left.cancel()
            await double(2)
        assert await double(3) == 6
    assert seen == [[1, 3]]


@WITHOUT
async def test_a_handler_that_leaves_a_scope_open_leaves_no_call_waiting() -> None:
    async def leaves(items: list[int]) -> list[int]:
        if items == [1]:
            anyio.CancelScope().__enter__()
        return items

    try:
        async with shoal.Batcher(leaves) as call:
            assert await call(1) == 1
            with contextlib.suppress(shoal.errors.BatcherClosed):
                assert await call(2) == 2
    except* RuntimeError:
        pass  # the batcher is broken


@WITHOUT
async def test_a_call_that_waits_for_itself_is_refused() -> None:
    async def own(items: list[int]) -> list[Any]:
        with pytest.raises(shoal.errors.WouldDeadlock):
            await batcher.call(1)
        return items

    batcher = shoal.Batcher(own, max_concurrent_batches=1)
    async with batcher as call:
        assert await call(2) == 2


@WITHOUT
@pytest.mark.one_loop
async def test_no_node_of_ray_is_known_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SimpleNamespace(
        gcs_client=SimpleNamespace(get_draining_nodes=lambda timeout: {"a": 0})
    )
    monkeypatch.setitem(
        sys.modules,
        "ray._private.worker",
        SimpleNamespace(global_worker=worker),  # type: ignore[arg-type]
    )
    assert private.draining_nodes_of_ray(1.0) == ({} if private.OF_RAY == "_absent" else {"a": 0})


@WITHOUT
@pytest.mark.one_loop
async def test_no_actor_of_ray_is_asked_whether_it_lives() -> None:
    method = SimpleNamespace(remote=lambda: "reference")
    actor = SimpleNamespace(__ray_ready__=method)
    is_gone = private.OF_RAY_ACTORS == "_absent"
    assert private.ready_call_of_ray_actor(actor) == (None if is_gone else "reference")


@WITHOUT
@pytest.mark.one_loop
async def test_no_client_of_ray_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stub:
        def is_connected(self) -> bool:
            return True

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Ray Client is not connected")

    loaded: Any = SimpleNamespace(ray=Stub())
    monkeypatch.setitem(sys.modules, "ray.util.client", loaded)
    assert private.uses_ray_client() == (private.OF_RAY_CLIENTS != "_absent")


@pytest.mark.one_loop
async def test_no_other_file_reads_them() -> None:
    package = Path(shoal.__file__).parent
    readers = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for name in (
            *("_task_states", "_parent_scope", "_cancel_status", "_asyncio_future_blocking"),
            *("_use_prebuilt", "gcs_client", "__ray_ready__", "ray.util.client"),
            "_generator_backpressure",
        )
        if name in path.read_text()
    ]
    assert set(readers) == {"loops/private.py"}
