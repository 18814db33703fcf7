"""`shoal.connect()` without a URL, in the code of a backend."""

from contextlib import asynccontextmanager

import anyio
import pytest

import shoal
from serving import composed_code
from serving.scenes import deployed
from shoal import errors
from shoal.serving.controller.controller import Controller
from shoal.starting import ChildClient

# Replicas load their code in threads and processes.
pytestmark = [pytest.mark.real_time, pytest.mark.slow]


@asynccontextmanager
async def up(code, **config):
    async with Controller() as client:
        await deployed(client, "inner", composed_code.double)
        yield client, await deployed(client, "outer", code, config=config)


@pytest.mark.parametrize(
    ("code", "placement"),
    [
        (composed_code.Connecting, "task"),
        pytest.param(composed_code.Connecting, "process", marks=pytest.mark.one_loop),
        (composed_code.PlainConnecting, "thread"),
        pytest.param(composed_code.PlainConnecting, "process", marks=pytest.mark.one_loop),
        (composed_code.ConnectingAtStart, "task"),
    ],
)
async def test_code_connects_to_the_controller_that_it_runs_in(code, placement):
    async with up(code, placement=placement) as (_client, handle):
        assert await handle.call(3) == 6


@pytest.mark.parametrize("placement", ["task", pytest.param("process", marks=pytest.mark.one_loop)])
async def test_code_has_a_handle_of_an_endpoint_that_is_yet_to_come(placement):
    async with up(composed_code.Connecting, placement=placement) as (client, handle):
        later = await handle.options(method_name="early").call(3)
        calling = handle.options(method_name="late")
        with pytest.raises(errors.NoSuchName, match="'later'"):
            await calling.call(later)
        await client.create_endpoint("later", backend="inner")
        assert await calling.call(later) == 6


@pytest.mark.parametrize(
    "placement", ["thread", pytest.param("process", marks=pytest.mark.one_loop)]
)
async def test_plain_code_enters_the_client_that_it_runs_in(placement):
    async with up(composed_code.PlainConnecting, placement=placement) as (_client, handle):
        assert await handle.options(method_name="entered").call(3) == 6
        with pytest.raises(AttributeError, match=r"options\(method_name='classify'\)"):
            await handle.options(method_name="by_name").call(3)


async def test_each_controllers_code_finds_its_own():
    async with (
        up(composed_code.Connecting) as (_client, handle),
        up(composed_code.Connecting) as (other, _handle),
    ):
        await other.delete_endpoint("inner")
        assert await handle.call(3) == 6


async def test_leaving_the_client_inside_ends_nothing():
    async with up(composed_code.Connecting) as (client, handle):
        assert [await handle.call(number) for number in range(3)] == [0, 2, 4]
        assert set(await client.list_backends()) == {"inner", "outer"}


async def test_code_may_make_and_change_what_is_beside_it():
    async def grow(tag: str):
        async with shoal.connect() as client:
            await deployed(client, tag, "serving.composed_code:double")
            return sorted(await client.list_backends())

    async with up(grow) as (client, handle):
        assert await handle.call("more") == ["inner", "more", "outer"]
        assert await (await client.get_handle("more")).call(2) == 4


@pytest.mark.parametrize("state", [False, True])
async def test_code_whose_backend_was_restored_connects_as_well(tmp_path, state):
    path = tmp_path / "state.db" if state else None
    for _ in range(2):
        async with shoal.start(state=path) as client:
            if "outer" not in await client.list_backends():
                for tag, name in (("inner", "double"), ("outer", "Connecting")):
                    await deployed(client, tag, f"serving.composed_code:{name}")
            assert await (await client.get_handle("outer")).call(3) == 6


async def test_outside_of_backends_there_is_no_controller_to_be_found(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with Controller():
        with pytest.raises(ConnectionError):
            shoal.connect()


async def test_the_controller_inside_may_be_shut_down_by_its_code():
    async def end(item: int):
        async with shoal.connect() as client:
            await client.shutdown()

    async with up(end, graceful_shutdown_timeout_s=0.1) as (client, handle):
        with pytest.raises(errors.BatcherClosed):
            await handle.call(1)
        await client.shutdown()


@pytest.mark.one_loop
async def test_calls_of_code_in_a_process_have_the_deadline_of_its_batch():
    async def left(item: int) -> float | None:
        [request] = shoal.current_batch().requests
        return request.deadline and request.deadline - anyio.current_time()

    async with Controller() as client:
        inner = await deployed(client, "inner", left)
        config = {"placement": "process"}
        outer = await deployed(client, "outer", composed_code.Calling, inner, config=config)
        assert await outer.call(1) is None
        assert 900 < await outer.options(timeout_s=1000.0).call(1) <= 1000.01
        code, shorter = composed_code.PlainCalling, inner.options(timeout_s=50.0)
        shorter = await deployed(client, "shorter", code, shorter, config=config)
        assert 0 < await shorter.options(timeout_s=1000.0).call(1) <= 50.01


@pytest.mark.one_loop
@pytest.mark.parametrize("client", [ChildClient(), ChildClient().sync])
async def test_the_client_in_a_process_says_where_the_other_verbs_are(client):
    with pytest.raises(AttributeError, match=r"only has get_handle\(\).*'list_backends'"):
        client.list_backends  # noqa: B018 - it raises
