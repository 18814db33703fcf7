"""Which of several servers a call goes to, and to which one after a failure; in virtual time."""

import collections
import functools
import itertools
import socket
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
import servers
from servers import DONE, MAY_HAVE_RUN, NOT_THERE

from shoal import errors
from shoal.http_client import HttpClient, SyncHttpClient
from shoal.testing import settle

URLS = ["http://a", "http://b", "http://c"]
HANGS = None
refusal = functools.partial(servers.refusal, retry_after="1")
LINES = {"content-type": "application/x-ndjson"}


class Fleet:
    """Servers that answer, raise or hang as these say, by their hosts; DONE unless they say so."""

    def __init__(self, **answers):
        self.answers = answers
        self.requests = []
        self.bodies = []
        self.limits = []
        self.names = []
        self._began = None

    async def __call__(self, request):
        host, now = request.url.host, anyio.current_time()
        self._began = now if self._began is None else self._began
        self.requests.append((host, now - self._began))
        self.bodies.append(request.content)
        self.limits.append(float(request.headers.get("x-request-timeout", "inf")))
        self.names.append(request.headers["host"])
        await anyio.lowlevel.checkpoint()
        answer = self.answers.get(host, DONE)
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is HANGS:
            await anyio.sleep_forever()
        if not isinstance(answer, httpx.Response):
            return await answer(request)
        # A response can be read once.
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    @property
    def hosts(self):
        return [host for host, _ in self.requests]

    def times(self, host):
        return [at for one, at in self.requests if one == host]

    def forget(self):
        self.requests.clear()
        self._began = None

    def client(self, urls=URLS, **options):
        client = httpx.AsyncClient(transport=httpx.MockTransport(self))
        return HttpClient(urls, client=client, **options)


@asynccontextmanager
async def fleet_of(**answers):
    fleet = Fleet(**answers)
    async with fleet.client() as client:
        yield fleet, client


@pytest.fixture
def fleet():
    return Fleet()


async def call_several(client, times):
    for _ in range(times):
        await client.call("/x", 1)


async def fails_first_at(fleet, client, host):
    """Makes calls until one was tried at this server first; returns its outcome."""
    for _ in URLS:
        fleet.forget()
        try:
            outcome = await client.call("/x", 1)
        except Exception as error:
            outcome = error
        if fleet.hosts[0] == host:
            return outcome
    raise AssertionError(fleet.hosts)


async def test_idle_servers_take_turns(fleet):
    async with fleet.client() as client:
        for _ in range(12):
            assert await client.call("/x", 1) == "done"
    assert collections.Counter(fleet.hosts) == {"a": 4, "b": 4, "c": 4}
    assert fleet.hosts[:3] == fleet.hosts[3:6]


async def test_clients_do_not_all_begin_with_the_same_server(fleet):
    for _ in range(60):
        async with fleet.client() as client:
            await client.call("/x", 1)
    assert set(fleet.hosts) == {"a", "b", "c"}


async def test_a_url_that_is_given_twice_is_one_server(fleet):
    async with fleet.client(["http://a", "http://b", "http://a"]) as client:
        await call_several(client, 6)
    assert collections.Counter(fleet.hosts) == {"a": 3, "b": 3}


async def test_a_server_that_never_answers_holds_only_its_share_of_the_calls():
    async with fleet_of(a=HANGS) as (fleet, client), anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(client.call, "/x", 1)
        await settle()
        fleet.forget()
        await call_several(client, 20)
        assert set(fleet.hosts) == {"b", "c"}
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("ends", ["cancelled", "left", "dropped", "refused", "failed"])
async def test_a_call_that_ended_in_any_way_no_longer_counts(ends):
    async def stream(_):
        lines = b'{"item": 1}\n{"item": 2}\n{"end": true}\n'
        return httpx.Response(200, headers=LINES, content=lines)

    urls = URLS[:2]
    answers = {"cancelled": HANGS, "refused": httpx.Response(404), "failed": NOT_THERE}
    fleet = Fleet(a=answers.get(ends, stream), b=answers.get(ends, stream))
    async with fleet.client(urls) as client:
        if ends == "left":
            async with client.stream("/x", 1) as results:
                await anext(results)
                fleet.answers.clear()
                first = fleet.hosts[0]
                await call_several(client, 4)
                assert fleet.hosts.count(first) == 1  # while the stream runs
        elif ends == "dropped":
            with pytest.warns(ResourceWarning, match="was not closed"):
                await client.stream("/x", 1).__aenter__()
        else:
            with anyio.move_on_after(1):
                with pytest.raises((errors.HttpProblem, ConnectionError)):
                    await client.call("/x", 1)
        fleet.answers.clear()
        await anyio.sleep(60)  # until no server rests
        fleet.forget()
        await call_several(client, 8)
    assert collections.Counter(fleet.hosts) == {"a": 4, "b": 4}


@pytest.mark.parametrize(
    "did_not_run",
    [
        NOT_THERE,
        httpx.ConnectTimeout("slow"),
        refusal(),
        refusal(status=429),
        refusal(retry_after="rubbish"),
        refusal("too-many-incomplete-bodies"),
        refusal("too-many-requests", 429),
        refusal("not-open"),
        refusal("", 429),
        refusal("", 503),
        httpx.Response(503, headers={"retry-after": "30"}, text="a proxy's"),
    ],
)
async def test_what_certainly_did_not_run_goes_to_another_server_at_once(did_not_run):
    async with fleet_of(a=did_not_run) as (fleet, client):
        assert await fails_first_at(fleet, client, "a") == "done"
    assert len(fleet.hosts) == 2
    assert [at for _, at in fleet.requests] == [0, 0]


@pytest.mark.parametrize(("answer", "error"), MAY_HAVE_RUN)
async def test_what_may_have_run_does_not(answer, error):
    async with fleet_of(a=answer) as (fleet, client):
        outcome = await fails_first_at(fleet, client, "a")
    assert type(outcome) is error
    assert fleet.hosts == ["a"]


async def test_a_call_that_reaches_no_server_tries_each_once_and_does_not_wait():
    fleet = Fleet(a=NOT_THERE, b=httpx.ConnectTimeout("slow"), c=NOT_THERE)
    async with fleet.client(max_attempts=1) as client:
        for _ in range(2):  # the second time, all of them rest
            fleet.forget()
            with pytest.raises(ConnectionRefusedError, match="one of several servers"):
                await client.call("/x", 1)
            assert sorted(fleet.hosts) == ["a", "b", "c"]
            assert {at for _, at in fleet.requests} == {0}
        fleet.answers["b"] = DONE
        assert await client.call("/x", 1) == "done"


async def test_the_tries_at_all_servers_have_the_time_of_the_call():
    async def slow_to_connect(request):
        await anyio.sleep(2)
        raise httpx.ConnectTimeout("slow", request=request)

    async with fleet_of(a=slow_to_connect, b=slow_to_connect, c=slow_to_connect) as (fleet, client):
        with pytest.raises(errors.DeadlineExceeded):
            await client.call("/x", 1, timeout_s=5)
    assert [at for _, at in fleet.requests] == [0, pytest.approx(2), pytest.approx(4)]
    assert fleet.limits == [pytest.approx(limit, abs=0.01) for limit in (5, 3, 1)]


async def test_retries_do_not_multiply_the_load_of_servers_that_are_all_overloaded():
    async with fleet_of(a=refusal(), b=refusal(), c=refusal()) as (fleet, client):
        for number in range(100):
            with pytest.raises(errors.Overloaded):
                await client.call("/x", 1)
            assert len(fleet.requests) <= number + 3  # two of them found a server that did not rest
        assert collections.Counter(fleet.hosts).most_common()[-1][1] >= 30  # each has its share
        await anyio.sleep(1.1)
        fleet.forget()
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(refused, client)
        assert len(fleet.requests) <= 200  # calls at the same time: at most one retry each


async def refused(client):
    with pytest.raises(errors.Overloaded):
        await client.call("/x", 1)


async def test_one_attempt_is_no_second_try_of_a_refused_call():
    fleet = Fleet(a=refusal())
    async with fleet.client(max_attempts=1) as client:
        assert type(await fails_first_at(fleet, client, "a")) is errors.Overloaded
        assert fleet.hosts == ["a"]


async def test_a_refused_call_that_then_reaches_no_server_goes_on():
    async with fleet_of(a=refusal(), b=NOT_THERE) as (fleet, client):
        for _ in range(6):
            fleet.forget()
            assert await client.call("/x", 1) == "done"
            assert len(set(fleet.hosts)) == len(fleet.hosts)
            await anyio.sleep(40)


async def calls_each(client, step_s, for_s):
    until = anyio.current_time() + for_s
    while anyio.current_time() < until:
        await client.call("/x", 1)
        await anyio.sleep(step_s)


async def test_a_server_that_failed_rests_longer_each_time_and_is_tried_again():
    async with fleet_of(a=NOT_THERE) as (fleet, client):
        await fails_first_at(fleet, client, "a")
        await calls_each(client, 0.5, 100)
        waits = [after - at for at, after in itertools.pairwise(fleet.times("a"))]
        assert waits[:7] == [pytest.approx(wait, abs=0.75) for wait in (1, 2, 4, 8, 16, 30, 30)]
        fleet.answers.clear()
        await anyio.sleep(30)
        fleet.forget()
        await calls_each(client, 0.1, 3)
        assert len(fleet.times("a")) == pytest.approx(10, abs=1)  # its turn, each time
        fleet.answers["a"] = [NOT_THERE]
        fleet.forget()
        await fails_first_at(fleet, client, "a")
        fleet.answers.clear()
        fleet.forget()
        await anyio.sleep(1.01)  # the first rest is short again
        await calls_each(client, 0.1, 0.3)
        assert "a" in fleet.hosts


async def test_calls_that_fail_at_the_same_time_are_one_failure():
    async def slow_to_fail(request):
        await anyio.sleep(0.5)
        raise httpx.ConnectError("refused", request=request)

    async with fleet_of(a=slow_to_fail) as (fleet, client):
        async with anyio.create_task_group() as tasks:
            for _ in range(60):
                tasks.start_soon(client.call, "/x", 1)
        assert len(fleet.times("a")) == 20
        fleet.answers.clear()
        await anyio.sleep(1.01)
        fleet.forget()
        await calls_each(client, 0.1, 0.3)
        assert "a" in fleet.hosts


@pytest.mark.parametrize("fails", [httpx.ReadError("reset"), httpx.RemoteProtocolError("rubbish")])
async def test_a_server_that_breaks_connections_rests(fails):
    async with fleet_of(a=fails) as (fleet, client):
        assert isinstance(await fails_first_at(fleet, client, "a"), ConnectionError)
        for _ in range(9):
            assert await client.call("/x", 1) == "done"


async def test_a_server_that_lets_the_time_of_a_call_pass_rests():
    fleet = Fleet(a=HANGS)
    async with fleet.client(timeout_s=5) as client:
        assert type(await fails_first_at(fleet, client, "a")) is errors.DeadlineExceeded
        for _ in range(9):
            assert await client.call("/x", 1) == "done"


async def test_after_its_rest_a_server_gets_one_call_first():
    async with fleet_of(a=NOT_THERE) as (fleet, client):
        await fails_first_at(fleet, client, "a")
        await anyio.sleep(1.01)
        fleet.answers["a"] = HANGS
        fleet.forget()
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(client.call, "/x", 1)
            await settle()
            assert len(fleet.times("a")) == 1
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("asked", "rest"),
    [
        (refusal(retry_after="7"), 7),
        (refusal("unavailable", retry_after="7"), 7),
        (refusal("closed", retry_after="7"), 7),
        (refusal(retry_after="86400"), 30),
        (refusal(retry_after="0"), 0),
    ],
)
async def test_a_server_rests_as_long_as_it_asks(asked, rest):
    async with fleet_of(a=asked) as (fleet, client):
        await fails_first_at(fleet, client, "a")
        fleet.answers.clear()
        began = anyio.current_time() - fleet.times("a")[0]
        fleet.requests.clear()
        await calls_each(client, 0.1, rest + 1)
    assert fleet.times("a")[0] == pytest.approx(rest, abs=0.35)
    assert began >= 0


async def test_a_stream_goes_to_another_server_before_its_first_item_only():
    stream = httpx.Response(200, headers=LINES, content=b'{"item": 1}\n{"end": true}\n')
    broken = httpx.Response(200, headers=LINES, content=b'{"item": 1}\n')
    async with fleet_of(a=refusal(), b=NOT_THERE, c=stream) as (fleet, client):
        for _ in range(3):
            fleet.forget()
            async with client.stream("/x", 1) as results:
                assert [one async for one in results] == [1]
            assert len(set(fleet.hosts)) == len(fleet.hosts)
            assert fleet.hosts[-1] == "c"
            await anyio.sleep(40)
        fleet.answers = {"a": broken, "b": broken, "c": broken}
        fleet.forget()
        async with client.stream("/x", 1) as results:
            assert await anext(results) == 1
            with pytest.raises(ConnectionError, match="broke off"):
                await anext(results)
        assert len(fleet.hosts) == 1


async def test_an_error_in_a_stream_names_the_server_that_sent_it():
    lines = b'{"item": 1}\n{"error": {"title": "No"}}\n'
    broken = httpx.Response(200, headers=LINES, content=lines)
    fleet = Fleet(a=broken, b=broken, c=broken)
    async with fleet.client() as client, client.stream("/x", 1) as results:
        assert await anext(results) == 1
        with pytest.raises(errors.HttpProblem, match=rf"^http://{fleet.hosts[0]}/x answered 500"):
            await anext(results)


@pytest.mark.parametrize("fails", [refusal(), NOT_THERE])
async def test_the_uploads_of_a_map_go_to_another_server_as_a_whole(fails):
    async def echo(request):
        lines = [b'{"result": %b}\n' % line for line in request.content.splitlines()]
        return httpx.Response(200, headers=LINES, content=b"".join(lines))

    async with fleet_of(a=[fails, *[echo] * 9], b=echo, c=echo) as (fleet, client):
        assert await client.map("/x", range(1000)) == list(range(1000))
    assert "a" in fleet.hosts
    assert len(fleet.bodies) == 5
    assert len(set(fleet.bodies)) == 4


async def test_an_upload_of_a_map_that_broke_does_not():
    async with fleet_of(**dict.fromkeys("abc", httpx.ReadError("x"))) as (fleet, client):
        outcomes = await client.map("/x", range(3), return_exceptions=True)
    assert [type(one) for one in outcomes] == [ConnectionError] * 3
    assert len(fleet.hosts) == 1


class Resolver:
    """Looks names up, in place of the system's: the addresses, an error, or it hangs."""

    def __init__(self, monkeypatch, *addresses):
        self.found = addresses
        self.times = []
        monkeypatch.setattr(anyio, "getaddrinfo", self)

    async def __call__(self, host, port, *, type, flags):  # noqa: A002 (as of the system)
        assert (host, type) == ("models", socket.SOCK_STREAM)
        self.times.append(anyio.current_time())
        await anyio.lowlevel.checkpoint()
        if isinstance(self.found, Exception):
            raise self.found
        if self.found is HANGS:
            await anyio.sleep_forever()
        return [(0, type, 6, "", (address, port)) for address in self.found]


@pytest.mark.parametrize(
    "name", ["dns:http://models:8000", ["dns:http://models:8000"], ("dns:http://models:8000",)]
)
async def test_each_address_of_a_name_is_a_server(monkeypatch, name, fleet):
    Resolver(monkeypatch, "10.0.0.1", "10.0.0.2", "fd00::1")
    async with fleet.client(name) as client:
        await call_several(client, 9)
    assert collections.Counter(fleet.hosts) == {"10.0.0.1": 3, "10.0.0.2": 3, "fd00::1": 3}
    assert set(fleet.names) == {"models:8000"}


async def test_names_and_urls_may_be_mixed(monkeypatch, fleet):
    Resolver(monkeypatch, "10.0.0.1", "10.0.0.2")
    async with fleet.client(["http://a", "dns:http://models"]) as client:
        await call_several(client, 9)
    assert collections.Counter(fleet.hosts) == {"10.0.0.1": 3, "10.0.0.2": 3, "a": 3}


async def test_a_name_is_looked_up_again_after_5_s(monkeypatch, fleet):
    resolver = Resolver(monkeypatch, "10.0.0.1", "10.0.0.2")
    async with fleet.client("dns:http://models") as client:
        await call_several(client, 9)
        resolver.found = ("10.0.0.2", "10.0.0.3")
        await anyio.sleep(4.9)
        await call_several(client, 3)
        assert set(fleet.hosts) == {"10.0.0.1", "10.0.0.2"}
        assert len(resolver.times) == 1
        await anyio.sleep(0.2)
        fleet.forget()
        await call_several(client, 9)
    assert set(fleet.hosts) == {"10.0.0.2", "10.0.0.3"}
    assert len(resolver.times) == 2


async def test_a_name_whose_lookup_hangs_holds_up_no_other(monkeypatch, fleet):
    async def look_up(host, port, *, type, flags):  # noqa: A002 (as of the system)
        if host == "stuck":
            await anyio.sleep_forever()
        return [(0, type, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr(anyio, "getaddrinfo", look_up)
    async with fleet.client(["http://a", "dns:http://stuck", "dns:http://models"]) as client:
        await call_several(client, 4)
    assert set(fleet.hosts) == {"a", "10.0.0.1"}


async def test_calls_at_the_same_time_look_a_name_up_once(monkeypatch):
    resolver = Resolver(monkeypatch, "10.0.0.1", "10.0.0.2")
    async with Fleet().client("dns:http://models") as client:
        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(client.call, "/x", 1)
            await anyio.sleep(6)
    assert len(resolver.times) == 2


async def test_a_call_that_reaches_no_server_looks_the_name_up_again(monkeypatch, fleet):
    resolver = Resolver(monkeypatch, "10.0.0.1")
    async with fleet.client("dns:http://models") as client:
        await client.call("/x", 1)
        await anyio.sleep(1.1)
        fleet.answers["10.0.0.1"] = NOT_THERE
        resolver.found = ("10.0.0.2",)
        fleet.forget()
        assert await client.call("/x", 1) == "done"
        assert fleet.hosts == ["10.0.0.1", "10.0.0.2"]
        # A fleet that is down does not have each call look it up.
        fleet.answers["10.0.0.2"] = NOT_THERE
        for _ in range(20):
            with pytest.raises(ConnectionRefusedError, match="models with the address"):
                await client.call("/x", 1)
    assert len(resolver.times) == 2


@pytest.mark.parametrize(
    "fails", [socket.gaierror("Name or service not known"), UnicodeError("label"), HANGS, ()]
)
async def test_addresses_stay_while_a_name_is_not_found(monkeypatch, fails, fleet):
    resolver = Resolver(monkeypatch, "10.0.0.1", "10.0.0.2")
    async with fleet.client("dns:http://models") as client:
        await call_several(client, 2)
        resolver.found = fails
        await anyio.sleep(10)
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call, "/x", 1)
            await settle()
            await client.call("/x", 1)
            assert anyio.current_time() == began  # only one call waits for the name
        assert anyio.current_time() - began <= 2
        fleet.forget()
        await call_several(client, 4)
        assert set(fleet.hosts) == {"10.0.0.1", "10.0.0.2"}


@pytest.mark.parametrize("fails", [socket.gaierror("Name or service not known"), ()])
async def test_a_name_without_addresses_is_an_error_until_it_has_some(monkeypatch, fails):
    resolver = Resolver(monkeypatch)
    resolver.found = fails
    async with Fleet().client("dns:http://models") as client:
        for _ in range(5):
            with pytest.raises(ConnectionRefusedError, match="dns:http://models has no address"):
                await client.call("/x", 1)
        assert len(resolver.times) == 1
        resolver.found = ("10.0.0.1",)
        await anyio.sleep(1.1)
        assert await client.call("/x", 1) == "done"


async def test_a_lookup_has_the_time_of_the_call(monkeypatch):
    resolver = Resolver(monkeypatch)
    resolver.found = HANGS
    async with Fleet().client("dns:http://models") as client:
        with pytest.raises(errors.DeadlineExceeded):
            await client.call("/x", 1, timeout_s=3)
        with anyio.move_on_after(1) as scope:
            await client.call("/x", 1)
        assert scope.cancelled_caught
        resolver.found = ("10.0.0.1",)
        assert await client.call("/x", 1) == "done"


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ([], ValueError, "at least one"),
        (["http://a", "unix:/x.sock"], ValueError, "can't be a UNIX socket"),
        ("dns:unix:/x.sock", ValueError, "can't be a UNIX socket"),
        ("dns:models:8000", ValueError, "'models:8000' is not a server's URL"),
        (["http://a", "b:8000"], ValueError, "'b:8000' is not a server's URL"),
        (["http://a", None], TypeError, "must be text, not None"),
        ([None], TypeError, "must be text, not None"),
        (None, TypeError, "must be text, not None"),
        (8000, TypeError, "must be text, not 8000"),
    ],
)
def test_servers_that_are_none_are_refused(url, error, words):
    for kind in (HttpClient, SyncHttpClient):
        with pytest.raises(error, match=words):
            kind(url)
