"""`shoal.start` and `shoal.connect`: how long a controller lives, and who may call it."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading

import anyio
import pytest

import shoal
from serving.plain_code import double
from serving.scenes import deployed
from shoal import errors
from shoal.serving.clients.remote_client import RemoteClient
from shoal.serving.controller.controller import Controller
from time_limits import HANG_S

real_time = pytest.mark.real_time  # replicas load their code in threads


async def hang(items: list[int]) -> list[int]:
    await anyio.sleep_forever()
    return items


class Mine(BaseException):
    """No error."""


@real_time
@pytest.mark.parametrize("error", [KeyError("k"), Mine()], ids=repr)
async def test_what_the_block_raises_comes_out_as_it_is(error):
    client = None

    async def block() -> None:
        nonlocal client
        async with shoal.start() as client:
            await client.create_backend("b", double)
            raise error

    with pytest.raises(type(error)) as caught:
        await block()
    assert client is not None
    assert caught.value is error
    with pytest.raises(errors.ShutDown):
        await client.list_backends()


async def test_what_is_started_is_entered_once():
    starting = shoal.start()
    async with starting as client:
        with pytest.raises(RuntimeError, match="already entered"):
            async with starting:
                pass
        await client.list_backends()
    plain = shoal.start()
    await anyio.to_thread.run_sync(lambda: plain.__enter__() and plain.__exit__(None, None, None))
    for entering in (starting.__aenter__, plain.__aenter__):
        with pytest.raises(RuntimeError, match="already entered"):
            await entering()


@real_time
async def test_a_state_file_has_one_controller_at_a_time(tmp_path):
    async with shoal.start(state=tmp_path / "state.db"):
        with pytest.raises(errors.StateRefused):
            async with shoal.start(state=tmp_path / "state.db"):
                pass
    async with shoal.start(state=tmp_path / "state.db"):
        pass


@real_time
async def test_clients_and_what_belongs_to_one_process_can_not_be_pickled():
    async with shoal.start() as client:
        handle = await deployed(client, "b", double, endpoint="e")
        remote = shoal.connect("http://127.0.0.1:1")
        for one in (client, client.sync, remote, handle.stream(1)):
            with pytest.raises(TypeError):
                pickle.dumps(one)
        with pytest.raises(TypeError):
            copy.copy(client)
        for one in (handle, handle.sync):
            again = pickle.loads(pickle.dumps(one))
            with pytest.raises(RuntimeError, match="used outside"):
                await getattr(again, "sync", again).call(1)


def test_a_plain_program_gets_the_same_client_for_threads():
    with shoal.start() as client:
        client.create_backend("b", double)
        client.create_endpoint("e", backend="b")
        handle = client.get_handle("e")
        assert handle.call(3) == 6
        assert handle.options(timeout_s=5).call(4) == 8
        assert set(client.list_backends()) == {"b"}
        client.shutdown()
        client.shutdown()
    with pytest.raises(errors.ShutDown):
        client.list_backends()
    with pytest.raises(errors.ShutDown):
        handle.call(3)


def test_what_a_plain_block_raises_comes_out_as_it_is(tmp_path):
    (tmp_path / "state.db").write_text("no database" * 100)
    with pytest.raises(errors.StateRefused), shoal.start(state=tmp_path / "state.db"):
        pass
    with pytest.raises(KeyError), shoal.start() as client:
        client.list_backends()["absent"]
    with pytest.raises(errors.ReplicaNotStarted), shoal.start() as client:
        client.create_backend("b", "serving.plain_code:Broken")


async def test_a_plain_block_is_refused_in_an_event_loop():
    with pytest.raises(RuntimeError, match="async with"), shoal.start():
        pass


ASYNC = """
import anyio, shoal, sys
from serving.plain_code import double

async def main():
    async with shoal.start() as client:
        await client.create_backend("b", double, config={"placement": "process"})
        print("up", flush=True)
        await anyio.sleep_forever()

try:
    anyio.run(main, backend=sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

PLAIN = """
import shoal
from serving.plain_code import double
from test_starting import hang

try:
    with shoal.start() as client:
        client.create_backend("b", double, config={"placement": "process"})
        client.create_backend("h", hang, config={"graceful_shutdown_timeout_s": 0.1})
        client.create_endpoint("h", backend="h")
        print("up", flush=True)
        client.get_handle("h").call(1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@real_time
@pytest.mark.parametrize(("program", "backend"), [(ASYNC, "trio"), (ASYNC, "asyncio"), (PLAIN, "")])
@pytest.mark.slow
def test_ctrl_c_ends_the_program_and_leaves_nothing(program, backend):
    command = [sys.executable, "-c", program, backend]
    env = {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=HANG_S)
    assert (running.returncode, out, err) == (0, "interrupted\n", "")


@pytest.mark.parametrize("url", [5, b"http://127.0.0.1", "ftp://host", "", "unix:", "host:8000"])
def test_what_is_no_url_or_no_token_is_refused_at_once(url):
    with pytest.raises((TypeError, ValueError)):
        shoal.connect(url)
    with pytest.raises(TypeError):
        shoal.connect("http://127.0.0.1:1", token=5)  # type: ignore[arg-type]


def test_without_a_url_there_must_be_a_server_of_this_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ConnectionError, match="shoal start"):
        shoal.connect()


@real_time
async def test_without_a_url_the_server_of_this_user_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "shoal").mkdir()
    path = str(tmp_path / "shoal" / "default.sock")
    async with shoal.start(http={"uds": path}) as client:
        await client.create_backend("b", double)
        async with shoal.connect() as remote:
            assert isinstance(remote, RemoteClient)
            assert set(await remote.list_backends()) == {"b"}


class Leaves:
    """Code that leaves the block in which it runs."""

    block = None

    def __call__(self, item: int) -> int:
        self.block.__exit__(None, None, None)
        return item


class LeavesInLoop(Leaves):
    async def __call__(self, item: int) -> int:
        return super().__call__(item)


@real_time
@pytest.mark.parametrize(
    ("code", "placement"), [(Leaves, "task"), (Leaves, "thread"), (LeavesInLoop, "task")]
)
def test_a_handler_that_leaves_its_own_block_is_refused_at_once(code, placement, monkeypatch):
    block = shoal.start()
    monkeypatch.setattr(Leaves, "block", block)
    with block as client:
        client.create_backend("b", code, config={"placement": placement})
        client.create_endpoint("e", backend="b")
        with pytest.raises(errors.WouldDeadlock, match=r"the block of shoal\.start\(\)"):
            client.get_handle("e").call(1)
        assert "b" in client.list_backends()


async def test_so_it_is_in_a_block_of_an_event_loop(monkeypatch):
    block = shoal.start()

    async def leaves(item: int) -> int:
        await block.__aexit__(None, None, None)
        return item

    async with block as client:
        handle = await deployed(client, "b", leaves)
        began_at = anyio.current_time()
        with pytest.raises(errors.WouldDeadlock):
            await handle.call(1)
        assert anyio.current_time() == began_at
        assert "b" in await client.list_backends()


@real_time
@pytest.mark.parametrize("when", ["entering", "leaving"])
def test_ctrl_c_ends_the_block_at_once(when, monkeypatch):
    async def interrupted(self, *args):
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep(0.1)
        return await plain(self, *args)

    name = "__aenter__" if when == "entering" else "__aexit__"
    plain = getattr(Controller, name)
    monkeypatch.setattr(Controller, name, interrupted)
    with pytest.raises(KeyboardInterrupt), shoal.start():
        assert when == "leaving"
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and "shoal" in thread.name:
            thread.join(HANG_S)
            assert not thread.is_alive()


@real_time
@pytest.mark.parametrize("how", ["kept", "dropped"])
def test_a_block_that_nobody_leaves_keeps_no_process_alive(how):
    program = f"import shoal; block = shoal.start(); client = block.__enter__(); {how} = True"
    if how == "dropped":
        program += "; del block, client"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, timeout=HANG_S, check=True, stderr=subprocess.PIPE).stderr == b""
