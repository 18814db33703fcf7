"""Which model servers there are: lists, files and names, and their changes."""

import os
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from replicas.remote_servers import bound
from serving.scenes import deployed
from serving.test_model_servers import Model, ingress, model_server, status_of
from shoal.errors import BackendUnavailable, ReplicaNotStarted
from shoal.serving.backends import membership
from shoal.serving.controller.controller import Controller
from time_limits import HANG_S
from worker_processes import until

pytestmark = pytest.mark.real_time


def ready(controller):
    return {r.address for r in status_of(controller).replicas if r.state == "ready"}


async def test_a_file_of_addresses_is_read_again(tmp_path, at, also, monkeypatch, caplog):
    monkeypatch.setattr(membership, "LOOKUP_S", 0.02)
    file = tmp_path / "models"
    file.write_text(f"# the models\n{at}\n\n")

    async with (
        model_server(at, Model()),
        model_server(also, Model()),
        ingress(f"file:{file}") as (controller, handle),
    ):
        assert ready(controller) == {at}
        file.write_text(f"{at}\n{also}  # another\n{at}\n")
        await until(lambda: ready(controller) == {at, also})
        file.write_text(also)
        await until(lambda: ready(controller) == {also})
        assert status_of(controller).wanted == 1
        file.write_text("not an address")
        await until(lambda: "a line of the file must be tls://" in caplog.text)
        assert await handle.call(1) == 1
        file.write_text("")  # as while it is being written
        await until(lambda: "it has no address" in caplog.text)
        assert await handle.call(2) == 2
        file.write_text(at)
        await until(lambda: ready(controller) == {at})
        assert await handle.call(3) == 3
        assert status_of(controller).deaths == 0


async def test_a_name_stands_for_all_of_its_addresses(monkeypatch):
    found = [(2, 1, 6, "", ("10.0.0.1", 9)), (2, 1, 6, "", ("10.0.0.2", 9))]

    async def getaddrinfo(host, port, **_):
        assert (host, port) == ("models", 9)
        if not found:
            raise OSError("no such name")
        return [*found, (10, 1, 6, "", ("fd00::1", 9, 0, 0))]

    monkeypatch.setattr(membership.anyio, "getaddrinfo", getaddrinfo)
    lookups = membership.Lookup("model", ["tls://models:9", "unix:/a", "tls://[fd00::9]:9"])
    rest = ("unix:/a", "tls://[fd00::9]:9")
    assert await lookups.addresses() == ("tls://10.0.0.1:9", "tls://10.0.0.2:9", *rest)
    del found[0]
    assert await lookups.addresses(["tls://10.0.0.2:9"]) == ("tls://10.0.0.2:9", *rest)
    found.clear()  # the last addresses stay
    assert await lookups.addresses() == ("tls://10.0.0.2:9", *rest)


async def test_a_name_with_both_versions_of_ip_leads_to_each_server_once(monkeypatch):
    found = [
        (10, 1, 6, "", ("fd00::1", 9, 0, 0)),
        (10, 1, 6, "", ("fd00::2", 9, 0, 0)),
        (2, 1, 6, "", ("10.0.0.1", 9)),
        (2, 1, 6, "", ("10.0.0.2", 9)),
    ]

    async def getaddrinfo(*_, **__):
        return found

    monkeypatch.setattr(membership.anyio, "getaddrinfo", getaddrinfo)
    lookups = membership.Lookup("model", ["tls://models:9"])
    sixth = ("tls://[fd00::1]:9", "tls://[fd00::2]:9")
    fourth = ("tls://10.0.0.1:9", "tls://10.0.0.2:9")
    assert await lookups.addresses() == sixth
    assert await lookups.addresses(sixth[1:]) == sixth
    found.reverse()  # in the order in which they were found
    assert await lookups.addresses(sixth[1:]) == sixth[::-1]
    assert await lookups.addresses() == fourth[::-1]  # none of the others could be reached
    del found[1]
    assert await lookups.addresses(fourth[1:]) == fourth[1:]
    assert await membership.Lookup("model", ["tls://models:9"]).addresses() == fourth[1:]


async def test_a_name_whose_servers_can_not_be_reached_fails_in_time(monkeypatch):
    """Each look-up tries the other version of IP, which is no news."""
    asked = 0

    async def getaddrinfo(*_, **__):
        nonlocal asked
        asked += 1
        return [(2, 1, 6, "", ("127.0.0.1", 9)), (10, 1, 6, "", ("::1", 9, 0, 0))]

    monkeypatch.setattr(membership.anyio, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(membership, "LOOKUP_S", 0.05)
    config = {"placement": "remote", "model_servers": ["tls://models:9"], "start_timeout_s": 0.5}
    async with Controller() as controller:
        with pytest.raises(ReplicaNotStarted), anyio.fail_after(HANG_S):
            await controller.create_backend("model", "nowhere:N", config=config)
    assert asked > 2


async def test_the_list_is_changed_while_it_serves(at, also):
    async with (
        model_server(at, Model()),
        model_server(also, Model()),
        ingress(at) as (controller, handle),
    ):
        [first] = status_of(controller).replicas
        await controller.update_backend_config("model", {"model_servers": [at, also]})
        await until(lambda: [r.state for r in status_of(controller).replicas] == ["ready"] * 2)
        assert status_of(controller).replicas[0].tag == first.tag
        assert await handle.call(1) == 1


async def test_a_list_that_leads_nowhere_takes_no_model_server_away(tmp_path, at, caplog):
    async with model_server(at, Model()), ingress(at) as (controller, handle):
        changed = {"model_servers": f"file:{tmp_path}/missing"}
        await controller.update_backend_config("model", changed)
        await until(lambda: "can't look up file:" in caplog.text)
        assert await handle.call(1) == 1


async def test_a_start_without_an_address_fails_in_time(tmp_path):
    (tmp_path / "models").write_text("# none yet\n")
    with anyio.fail_after(HANG_S), pytest.raises(BackendUnavailable, match="leads to no address"):
        async with ingress(f"file:{tmp_path}/models", start_timeout_s=0.2):
            pass


async def test_a_file_that_can_not_be_read_delays_no_other_entry(tmp_path, monkeypatch):
    def noting(path):
        read.append(path.name)
        return read_text(path)

    read, read_text = [], Path.read_text
    monkeypatch.setattr(Path, "read_text", noting)
    monkeypatch.setattr(membership, "_TIMEOUT_S", 0.5)  # the other one is read by a thread, too
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "models").write_text("unix:/a")
    lookups = membership.Lookup("model", [f"file:{tmp_path}/pipe", f"file:{tmp_path}/models"])
    try:
        with anyio.fail_after(HANG_S):
            for _ in range(3):
                assert await lookups.addresses() == ("unix:/a",)
        assert read.count("pipe") == 1  # no further thread waits for it
    finally:
        os.close(os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK))  # ends the thread


async def test_a_failed_change_keeps_the_model_servers_that_were_found_during_it(
    tmp_path, at, also, monkeypatch
):
    monkeypatch.setattr(membership, "LOOKUP_S", 0.02)
    file = tmp_path / "models"
    file.write_text(at)
    async with (
        model_server(at, Model()),
        model_server(also, Model()),
        ingress(f"file:{file}") as (controller, _),
    ):
        (tmp_path / "a").rename(tmp_path / "away")
        with closing(bound(at)):  # a replica that is started now waits
            async with anyio.create_task_group() as tasks:
                change = {"cancel_grace_s": 3}
                tasks.start_soon(controller.update_backend_config, "model", change)
                await until(lambda: len(status_of(controller).replicas) == 2)
                file.write_text(f"{at}\n{also}")
                await until(lambda: status_of(controller).wanted == 2)
                tasks.cancel_scope.cancel()
        (tmp_path / "away").rename(tmp_path / "a")
        await until(lambda: ready(controller) == {at, also})
        assert status_of(controller).wanted == 2


async def test_a_backend_moves_to_model_servers_and_back_while_it_serves(tmp_path, at, also):
    here, there = Model(), Model()
    async with model_server(at, there), model_server(also, there), Controller() as controller:
        config = {"num_replicas": 3, "max_batch_size": 64}
        handle = await deployed(controller, "model", here, config=config)
        assert await handle.call(1) == 1
        away = {"placement": "remote", "num_replicas": 1, "max_batch_size": 10}
        nowhere = {**away, "model_servers": f"file:{tmp_path}/missing"}
        with pytest.raises(ReplicaNotStarted, match="leads to no address"):
            await controller.update_backend_config("model", nowhere)
        assert [r.address for r in status_of(controller).replicas] == [None] * 3
        away["model_servers"] = [at, also]
        await controller.update_backend_config("model", away)
        assert {r.address for r in status_of(controller).replicas} == {at, also}
        assert status_of(controller).wanted == 2
        assert await handle.call(2) == 2
        back = {"placement": "task", "model_servers": None}
        broken = {**back, "placement": "process", "python": "/nowhere"}
        with pytest.raises(ReplicaNotStarted, match="/nowhere"):
            await controller.update_backend_config("model", broken)
        assert status_of(controller).wanted == 2
        await controller.update_backend_config("model", back)
        assert [r.address for r in status_of(controller).replicas] == [None]
        assert await handle.call(3) == 3
    assert (len(here.batches), len(there.batches)) == (2, 1)
