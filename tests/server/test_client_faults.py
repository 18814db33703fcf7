"""The log of what clients do wrong: a line each, nothing of what they sent, ten lines a minute."""

import logging
import time
from types import SimpleNamespace

import pytest
from echo_app import EchoApp
from live_server import Http2Client, live, read_all

from shoal.server.log_errors import ClientFaults

SECRET = "canary-7b2e"


def fail(faults, times=1):
    for _ in range(times):
        with faults.contained("192.0.2.1:5"):
            raise ValueError(SECRET)


def warnings(caplog):
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.INFO]


def test_a_fault_is_one_line_with_the_address_and_the_kind(caplog):
    fail(ClientFaults(time.monotonic))
    assert warnings(caplog) == ["an error ended the connection from 192.0.2.1:5: ValueError"]
    assert caplog.records[-1].exc_info is None


def test_all_kinds_in_a_group_are_told_once(caplog):
    with ClientFaults(time.monotonic).contained("a"):
        group = ExceptionGroup("", [KeyError(SECRET), OSError(SECRET), KeyError(SECRET)])
        raise ExceptionGroup(SECRET, [group, group])
    assert warnings(caplog) == ["an error ended the connection from a: KeyError, OSError"]


def test_the_traceback_is_for_those_who_debug(caplog):
    caplog.set_level(logging.DEBUG, "shoal.server")
    fail(ClientFaults(time.monotonic))
    assert [one.levelno for one in caplog.records if one.exc_info] == [logging.DEBUG]


def test_there_are_ten_lines_a_minute_and_then_their_number(caplog):
    clock = SimpleNamespace(now_s=0.0)
    faults = ClientFaults(lambda: clock.now_s)
    fail(faults, 1000)
    assert len(warnings(caplog)) == 10
    clock.now_s = 59.9
    fail(faults)
    assert len(warnings(caplog)) == 10
    clock.now_s = 60.0
    fail(faults)
    assert warnings(caplog)[10:] == [
        "991 more connections ended by errors",
        "an error ended the connection from 192.0.2.1:5: ValueError",
    ]


@pytest.mark.parametrize("passing", [KeyboardInterrupt, SystemExit])
def test_what_is_no_fault_of_a_client_passes(passing, caplog):
    faults = ClientFaults(time.monotonic)
    with pytest.raises(passing), faults.contained("a"):
        raise passing
    with pytest.RaisesGroup(passing), faults.contained("a"):
        raise BaseExceptionGroup("", [passing(), ValueError(SECRET)])
    assert warnings(caplog) == ["an error ended the connection from a: ValueError"]


@pytest.mark.real_time
async def test_a_flood_of_faults_on_a_server_is_ten_lines_without_what_was_sent(caplog):
    caplog.set_level(logging.INFO)
    async with live(EchoApp()) as server:
        for _ in range(12):
            client = Http2Client(await server.connect())
            # One reset too many is an error.
            for _ in range(102):
                asked = client.ask(f"/hold?{SECRET}".encode())
                client.connection.reset_stream(asked)
            await client.flush()
            await read_all(client.stream)
            await client.stream.aclose()
        assert await server.answers()
    lines = [one for one in warnings(caplog) if "an error ended the connection" in one]
    assert len(lines) == 10
    assert not any(SECRET in caplog.handler.format(one) for one in caplog.records)
