"""A controller that keeps state: what comes back, after a stop, a kill, or a change of the code."""

import sys

import anyio
import pytest

import shoal
from handlers import double
from serving.scenes import Stage, deployed
from shoal import errors
from shoal.http.app.app import App
from shoal.serving.controller.controller import Controller
from shoal.serving.imports import ImportRule
from shoal.serving.state_file import StateFile
from shoal.testing.asgi import ask
from time_limits import HANG_S

# Files are written by threads, and replicas load their code there.
pytestmark = pytest.mark.real_time

CODE = "serving.plain_code"

FLAKY = """
from pathlib import Path

class Flaky:
    def __init__(self):
        if Path(__file__).with_name("broken").exists():
            raise OSError("no weights in the file")

    def __call__(self, item: int):
        return item
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.db"


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """Writes a module that only this test has; returns its name, and its file."""
    name = f"code_of_{abs(hash(request.node.nodeid))}"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name, tmp_path / f"{name}.py"


async def declare(client):
    await client.create_backend("zeta", f"{CODE}:Scaled", 3, init_kwargs={"offset": 1})
    await client.create_backend(
        "alpha", f"{CODE}:double", config={"num_replicas": 2, "max_queued_requests": 7}
    )
    await client.create_backend("mid", f"{CODE}:double")
    await client.create_endpoint("e", backend="zeta", route="/e", methods=["POST", "PUT"])
    await client.create_endpoint("alone", backend=None)
    await client.set_traffic("e", {"zeta": 0.25, "alpha": 0.75})
    await client.shadow_traffic("e", "mid", 0.5, compare="operator:eq")
    await client.update_backend_config("zeta", {"user_config": {"factor": 5}})


async def seen(client):
    status = await client.status()
    return (
        list((await client.list_backends()).items()),
        await client.list_endpoints(),
        status.endpoints["e"].shadows[0].compare,
    )


async def test_all_that_was_declared_comes_back_as_it_was(path):
    async with shoal.start(state=path) as client:
        await declare(client)
        before = await seen(client)
    async with shoal.start(state=path) as client:
        assert await seen(client) == before
        await client.set_traffic("e", {"zeta": 1})
        assert await (await client.get_handle("e")).call(2) == 11
        assert [tag for tag, _ in before[0]] == ["zeta", "alpha", "mid"]
    async with shoal.start(state=path) as client:
        assert (await client.list_endpoints())["e"]["traffic"] == {"zeta": 1.0}


async def test_the_options_of_a_placement_of_ones_own_come_back(path):
    own = {"placement": f"{CODE}:FactorReplica", "placement_options": {"factor": 5}}
    async with shoal.start(state=path) as client:
        await deployed(client, "s", f"{CODE}:Scaled", 3, config=own, endpoint="e")
    async with shoal.start(state=path) as client:
        assert await (await client.get_handle("e")).call(2) == 10
        assert await client.get_backend_config("s") == shoal.BackendConfig.of(own)


async def test_what_was_deleted_or_refused_does_not_come_back(path):
    async with shoal.start(state=path) as client:
        await declare(client)
        with pytest.raises(errors.ReplicaNotStarted):
            await client.create_backend("broken", f"{CODE}:Broken")
        with pytest.raises(errors.InUse):
            await client.delete_backend("mid")
        with pytest.raises(ValueError):
            await client.update_backend_config("mid", {"max_queued_requests": -1})
        with pytest.raises(ValueError):
            await client.set_traffic("e", {"zeta": 0.5})
        with pytest.raises(KeyError):
            await client.update_backend_config("zeta", {"user_config": {"no factor": 1}})
        await client.delete_endpoint("alone")
        await client.create_backend("gone", f"{CODE}:double")
        await client.delete_backend("gone")
        before = await seen(client)
    async with shoal.start(state=path) as client:
        assert await seen(client) == before


async def test_what_can_not_be_kept_is_refused_and_leaves_nothing(path):
    async with shoal.start(state=path) as client:
        await declare(client)
        before = await seen(client)
        handle = await client.get_handle("e")
        scaled = f"{CODE}:Scaled"
        for definition, args, more in [
            (double, (), {}),
            (scaled, (object(),), {}),
            (scaled, ((1, 2),), {}),
            (scaled, (handle,), {}),
            (scaled, (1,), {"init_kwargs": {"offset": {1: 2}}}),
            (scaled, (1,), {"config": {"placement": Stage()}}),
            (scaled, (1,), {"config": {"user_config": {"factor": {1, 2}}}}),
            (scaled, (1,), {"config": {"bucket_by": lambda item: item}}),
        ]:
            with pytest.raises(errors.NotDurable):
                await client.create_backend("new", definition, *args, **more)
        with pytest.raises(errors.NotDurable):
            await client.update_backend_config("zeta", {"user_config": {"factor": b"5"}})
        with pytest.raises(errors.NotDurable):
            await client.shadow_traffic("e", "mid", 1.0, compare=lambda a, b: a == b)
        with pytest.raises(errors.NotDurable):
            await client.shadow_traffic("alone", "mid", 1.0, compare=lambda a, b: a == b)
        assert await seen(client) == before
        await client.create_backend("new", scaled, 1)
        await client.delete_backend("new")
    async with shoal.start(state=path) as client:
        assert await seen(client) == before


async def test_a_backend_whose_code_is_broken_is_unavailable_until_it_is_not(path, module):
    name, file = module
    file.write_text(FLAKY)
    broken = file.with_name("broken")
    async with shoal.start(state=path) as client:
        await client.create_backend("bad", f"{name}:Flaky")
        await client.create_backend("good", f"{CODE}:double")
        for tag in ("bad", "good"):
            await client.create_endpoint(tag, backend=tag, route=f"/{tag}", methods=["POST"])
    broken.touch()
    app = App()
    async with shoal.start(state=path) as client, app.answering(client):
        assert (await ask(app, "/good", 2)).json() == 4
        answer = await ask(app, "/bad", 2)
        assert answer.status == 503
        assert "retry-after" in answer.headers
        assert b"weights" not in answer.body
        with pytest.raises(errors.BackendUnavailable):
            await (await client.get_handle("bad")).call(2)
        assert (await ask(app, "/-/readyz", method="GET")).status == 503
        broken.unlink()
        with anyio.fail_after(HANG_S):
            while (answer := await ask(app, "/bad", 2)).status == 503:
                await anyio.lowlevel.checkpoint()
        assert answer.json() == 2
        assert (await ask(app, "/-/readyz", method="GET")).status == 200


async def test_a_backend_whose_code_is_gone_can_be_deleted(path, module):
    name, file = module
    file.write_text(FLAKY)
    async with shoal.start(state=path) as client:
        await client.create_backend("bad", f"{name}:Flaky")
        await client.create_backend("good", f"{CODE}:double")
        await client.create_endpoint("e", backend="bad")
    del sys.modules[name]
    file.unlink()
    async with shoal.start(state=path) as client:
        with pytest.raises(errors.BackendUnavailable):
            await (await client.get_handle("e")).call(1)
        await client.set_traffic("e", {"good": 1})
        await client.delete_backend("bad")
        assert await (await client.get_handle("e")).call(1) == 2
    async with shoal.start(state=path) as client:
        assert set(await client.list_backends()) == {"good"}


async def test_what_compares_answers_may_be_gone(path, module):
    name, file = module
    file.write_text("def alike(first, second): return True\n")
    async with shoal.start(state=path) as client:
        await deployed(client, "b", f"{CODE}:double", endpoint="e")
        await client.shadow_traffic("e", "b", 1.0, compare=f"{name}:alike")
    del sys.modules[name]
    file.unlink()
    async with shoal.start(state=path) as client:
        assert await (await client.get_handle("e")).call(2) == 4
        assert (await client.list_endpoints())["e"]["shadows"] == {"b": 1.0}


async def test_what_compares_answers_is_imported_only_if_it_is_allowed(path, caplog):
    async with shoal.start(state=path) as client:
        await deployed(client, "b", f"{CODE}:double", endpoint="e")
        await client.shadow_traffic("e", "b", 1.0, compare="operator:eq")
    async with Controller(StateFile.open(path), ImportRule([CODE])) as controller:
        assert await (await controller.get_handle("e")).call(2) == 4
        [shadow] = controller.status_now().endpoints["e"].shadows
    assert (shadow.proportion, shadow.agreed) == (1.0, 0)
    assert "did not allow imports from 'operator'" in caplog.text
