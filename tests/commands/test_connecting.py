"""What a command tells while it waits for a server."""

import signal
import sys
from argparse import Namespace

import anyio
import pytest
from driven_server import served

from shoal.cli import main
from shoal.commands.server import client as connecting
from shoal.serving.clients.remote_client import RemoteClient

pytestmark = pytest.mark.real_time


@pytest.fixture
def arguments():
    with served() as url:
        yield Namespace(url=url, name="default", token_file=None)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(connecting, "_PATIENCE_S", 0.0)


def test_on_a_terminal_a_slow_verb_tells_what_it_waits_for(arguments, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    told = []

    async def until_told(client):
        is_told = anyio.Event()

        def say(line):
            told.append(line)
            is_told.set()

        monkeypatch.setattr(connecting, "say", say)
        with anyio.move_on_after(1):
            await is_told.wait()
        return await client.list_backends()

    assert connecting.ask(arguments, until_told) == {}
    assert told == ["waiting for the server to answer ..."]


def test_elsewhere_nothing_is_told(arguments, monkeypatch):
    told = []
    monkeypatch.setattr(connecting, "say", told.append)

    async def verb(client):
        for _ in range(3):
            await client.list_backends()

    connecting.ask(arguments, verb, waits_for="a replica of b")
    assert told == []


def test_ctrl_c_ends_it_in_silence(monkeypatch, capsys):
    async def status(client):
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    monkeypatch.setattr(RemoteClient, "status", status)
    assert main(["status", "--url", "http://server"]) == 130
    assert capsys.readouterr() == ("", "")
