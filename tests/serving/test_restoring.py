"""A controller that keeps state: written before it takes effect, and there at the next start."""

import sys
import threading
from pathlib import Path
from unittest import mock

import anyio
import pytest

import shoal
from batching.callers import line_up, outcome
from handlers import double
from serving.scenes import Stage, deployed
from shoal import errors
from shoal.http.app.app import App
from shoal.serving.controller.controller import Controller
from shoal.serving.controller.journal import Journal
from shoal.serving.imports import ImportRule
from shoal.serving.state_file import StateFile
from shoal.serving.state_records import Change
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
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


async def test_what_can_not_be_written_does_not_take_effect(path: Path) -> None:
    two = {"num_replicas": 2}
    double, config = f"{CODE}:double", {"user_config": {"factor": 4}}
    async with Controller(StateFile.open(path)) as controller:
        await controller.create_backend("a", f"{CODE}:Scaled", 3, config=config)
        await controller.create_backend("b", double)
        await controller.create_endpoint("e", backend="a", route="/e")
        handle = await controller.get_handle("e")
        before = await controller.list_endpoints()
        verbs = [
            controller.create_backend("c", double),
            controller.delete_backend("b"),
            controller.update_backend_config("a", {"user_config": {"factor": 5}, **two}),
            controller.create_endpoint("f", backend="a", route="/f"),
            controller.delete_endpoint("e"),
            controller.set_traffic("e", {"b": 1}),
            controller.shadow_traffic("e", "b", 1),
        ]
        with mock.patch.object(StateFile, "apply", side_effect=OSError("no space is left")):
            for verb in verbs:
                assert isinstance(await outcome(verb), OSError)
        assert await controller.list_endpoints() == before
        assert sorted(await controller.list_backends()) == ["a", "b"]
        assert [one.route for one in controller.endpoints.values()] == ["/e"]
        assert await handle.call(100) == 400
        status = (await controller.status()).backends
        assert (status["a"].wanted, len(status["a"].replicas)) == (1, 1)
        await controller.create_backend("c", double)
        await controller.delete_backend("b")
    async with shoal.start(state=path) as client:
        assert [*await client.list_backends()] == ["a", "c"]


async def test_a_change_that_is_cancelled_is_kept_whole_or_not_at_all(path: Path) -> None:
    async with shoal.start(state=path) as controller:
        await controller.create_backend("b", f"{CODE}:double")
        for passes in range(12):
            async with anyio.create_task_group() as tasks:
                creating = controller.create_endpoint(f"e{passes}", backend="b")
                [caller] = await line_up(tasks, creating)
                for _ in range(passes):
                    await anyio.lowlevel.checkpoint()
                caller.leave()
        there = await controller.list_endpoints()
    async with shoal.start(state=path) as client:
        assert await client.list_endpoints() == there


async def test_the_file_is_not_closed_while_a_change_is_being_written(path, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()
    is_writing = False
    closed_while_writing: list[bool] = []
    apply, close = StateFile.apply, StateFile.close

    def slow_apply(file: StateFile, *changes: Change) -> None:
        nonlocal is_writing
        is_writing = True
        writing.set()
        assert go_on.wait(HANG_S)
        apply(file, *changes)
        is_writing = False

    def noted_close(file: StateFile) -> None:
        closed_while_writing.append(is_writing)
        close(file)

    monkeypatch.setattr(StateFile, "close", noted_close)
    async with Controller(StateFile.open(path)) as controller:
        await controller.create_endpoint("e", backend=None)
        monkeypatch.setattr(StateFile, "apply", slow_apply)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, controller.create_endpoint("f", backend=None))
            await anyio.to_thread.run_sync(writing.wait)
            timer = threading.Timer(0.1, go_on.set)  # shutdown may hold the loop up, and not us
            timer.start()
            await controller.shutdown()
            timer.join()
    assert closed_while_writing == [False]


async def test_nothing_is_written_once_the_file_was_let_go(tmp_path: Path) -> None:
    """A verb may be on its way to the file when the controller ends."""
    declarations = Journal(StateFile.open(tmp_path / "state.db"))
    declarations.close()
    with pytest.raises(errors.ShutDown):
        await declarations.delete("backend", "b")


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """Writes a module that only this test has; returns its name, and its file."""
    name = f"code_of_{abs(hash(request.node.nodeid))}"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name, tmp_path / f"{name}.py"


async def declare(client):
    await client.create_backend("zeta", f"{CODE}:Scaled", 3, init_kwargs={"offset": 1})
    config = {"num_replicas": 2, "max_queued_requests": 7}
    await client.create_backend("alpha", f"{CODE}:double", config=config)
    await client.create_backend("mid", f"{CODE}:double")
    await client.create_endpoint("e", backend="zeta", route="/e", methods=["POST", "PUT"])
    await client.create_endpoint("alone", backend=None)
    await client.set_traffic("e", {"zeta": 0.25, "alpha": 0.75})
    await client.shadow_traffic("e", "mid", 0.5, compare="operator:eq")
    await client.update_backend_config("zeta", {"user_config": {"factor": 5}})


async def seen(client):
    backends = list((await client.list_backends()).items())
    compare = (await client.status()).endpoints["e"].shadows[0].compare
    return backends, await client.list_endpoints(), compare


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
