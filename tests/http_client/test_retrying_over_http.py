"""What the client makes again, when, and what it never does."""

import contextlib
import email.utils
import gc
import json
import math
import time

import anyio
import httpx
import pytest
from servers import DONE, MAY_HAVE_RUN, NOT_THERE, refusal

import shoal
from shoal import errors
from shoal.http_client import HttpClient
from shoal.http_client.servers import delay_before


class Server:
    """Gives these answers, or raises these errors, in this order; the last one for ever.

    Attributes:
        times: When each request came, in seconds after the first.
        limits: The time limit that each named, in seconds; None for none.
    """

    def __init__(self, *answers):
        self._answers = answers
        self._came = []
        self.limits = []

    @property
    def times(self):
        return [came - self._came[0] for came in self._came]

    async def __call__(self, request):
        answer = self._answers[min(len(self._came), len(self._answers) - 1)]
        self._came.append(anyio.current_time())
        limit = request.headers.get("x-request-timeout")
        self.limits.append(None if limit is None else float(limit))
        await anyio.lowlevel.checkpoint()
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await anyio.sleep_forever()
        # A response can be read once.
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def client_of(server, **options):
    client = httpx.AsyncClient(transport=httpx.MockTransport(server))
    return HttpClient("http://server", client=client, **options)


async def call(server, **options):
    async with client_of(server) as client:
        return await client.call("/x", 1, **options)


@pytest.mark.parametrize(
    "refused",
    [
        refusal(),
        refusal(status=429),
        refusal(retry_after="0"),
        refusal("too-many-incomplete-bodies"),
        refusal("", 429, "0"),
        refusal("", 503, "0"),
        httpx.Response(503, headers={"retry-after": "0"}, text="a proxy's"),
        NOT_THERE,
        httpx.ConnectTimeout("slow"),
    ],
)
async def test_what_was_refused_is_made_again(refused):
    server = Server(refused, refused, DONE)
    assert await call(server) == "done"
    assert len(server.times) == 3


NOT_OPEN = refusal("not-open", retry_after="0"), errors.NotOpen


@pytest.mark.parametrize(("answer", "error"), [*MAY_HAVE_RUN, NOT_OPEN])
async def test_what_may_have_run_is_not(answer, error):
    server = Server(answer, DONE)
    with pytest.raises(error) as caught:
        await call(server)
    assert type(caught.value) is error
    assert len(server.times) == 1


async def test_the_waits_double_and_are_drawn_at_random():
    server = Server(refusal())
    async with client_of(server, max_attempts=6) as client:
        with pytest.raises(errors.Overloaded, match="http://server/x answered 503: No"):
            await client.call("/x", 1)
    waits = [later - sooner for sooner, later in zip(server.times, server.times[1:], strict=False)]
    assert len(waits) == 5
    shares = [10 * wait / 2**number for number, wait in enumerate(waits)]
    assert all(0.5 <= share <= 1 for share in shares)
    assert len(set(shares)) == 5


NOW = 1e9


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        *[(str(seconds), seconds) for seconds in (0, 7, 9)],
        (email.utils.formatdate(NOW + 8, usegmt=True), 8),
        (email.utils.formatdate(NOW - 1000, usegmt=True), 0),
    ],
)
async def test_the_server_may_ask_for_a_longer_wait(monkeypatch, asked, wait):
    monkeypatch.setattr(time, "time", lambda: NOW)
    server = Server(refusal("", 503, asked), DONE)
    assert await call(server) == "done"
    assert wait + 0.05 <= server.times[1] <= wait + 0.1


@pytest.mark.parametrize("given", ["", "soon", "-1", "1.5", "9" * 30, "Mon, 99 Foo 9999 99:99:99"])
async def test_rubbish_is_not_asked(given):
    server = Server(refusal(retry_after=given), DONE)
    assert await call(server) == "done"  # the kind of the problem says that it was refused
    assert 0.05 <= server.times[1] <= 0.1
    with pytest.raises(errors.HttpProblem):
        await call(Server(refusal("", 503, given), DONE))


@pytest.mark.parametrize(("asked", "attempts"), [("11", 4), ("0", 1)])
async def test_no_try_follows_a_wait_that_is_too_long_or_the_last_attempt(asked, attempts):
    server = Server(refusal(retry_after=asked), DONE)
    async with client_of(server, max_attempts=attempts) as client:
        with pytest.raises(errors.Overloaded):
            await client.call("/x", 1, timeout_s=math.inf)
    assert len(server.times) == 1


async def test_a_try_that_would_come_too_late_is_not_waited_for():
    server = Server(refusal(retry_after="10"))
    with pytest.raises(errors.Overloaded):
        await call(server, timeout_s=10)
    with anyio.fail_after(10), pytest.raises(errors.Overloaded):
        await call(server)
    assert anyio.current_time() == 0


async def test_each_try_names_the_time_that_is_left():
    server = Server(refusal(retry_after="3"), refusal(retry_after="3"), DONE)
    assert await call(server, timeout_s=20) == "done"
    assert server.limits == [pytest.approx(20 - came, abs=0.0011) for came in server.times]
    assert all(limit >= 20 - came for limit, came in zip(server.limits, server.times, strict=True))


async def test_the_time_of_all_tries_is_limited():
    server = Server(refusal(), None)
    with pytest.raises(errors.DeadlineExceeded, match="did not answer the call in time"):
        await call(server, timeout_s=5)
    assert anyio.current_time() == pytest.approx(5)
    assert len(server.times) == 2


async def test_the_client_has_a_limit_of_its_own_unless_it_is_told_otherwise():
    async with client_of(Server(None)) as client:
        with pytest.raises(errors.DeadlineExceeded):
            await client.call("/x", 1)
        assert anyio.current_time() == pytest.approx(60)
    server = Server(DONE)
    async with client_of(server, timeout_s=None) as client:
        await client.call("/x", 1)
        await client.call("/x", 1, timeout_s=2)
    async with client_of(server, timeout_s=3) as client:
        await client.call("/x", 1)
        await client.call("/x", 1, timeout_s=math.inf)
    assert server.limits == [None, 2, 3, None]


async def test_the_deadline_of_the_scope_is_passed_on_and_told_by_the_scope():
    server = Server(DONE)
    with anyio.fail_after(7):
        await call(server)
        await call(server, timeout_s=3)
    assert server.limits == [pytest.approx(7, abs=0.001), 3]
    with anyio.move_on_after(4) as scope:
        await call(Server(None))
    assert scope.cancelled_caught


async def test_a_server_whose_clock_is_a_little_ahead_does_not_speak_for_the_scope():
    class Ahead(Server):
        async def __call__(self, request):
            await anyio.sleep(4.95)
            return await super().__call__(request)

    late = refusal("deadline-exceeded", 504)
    with anyio.move_on_after(5) as scope:
        await call(Ahead(late))
    assert scope.cancelled_caught
    with anyio.move_on_after(50) as scope, pytest.raises(errors.DeadlineExceeded):
        await call(Ahead(late))  # the server's own limit
    assert anyio.current_time() < scope.deadline - 40


async def test_a_wait_between_two_tries_can_be_cancelled():
    server = Server(refusal(retry_after="9"))
    async with client_of(server) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.call, "/x", 1)
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()
    assert len(server.times) == 1


async def test_a_wait_that_is_cancelled_keeps_no_error():
    gc.collect()
    gc.disable()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, Server(httpx.ConnectError("refused")))
            await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        kept = [one for one in gc.get_objects() if isinstance(one, ConnectionRefusedError)]
    finally:
        gc.enable()
    assert kept == []


async def test_a_stream_that_is_refused_is_entered_again():
    lines = b'{"item": 1}\n\n{"item": 2}\n{"end": true}\n'
    stream = httpx.Response(200, headers={"content-type": "application/x-ndjson"}, content=lines)
    server = Server(refusal(), NOT_THERE, stream)
    async with client_of(server) as client, client.stream("/x", 1) as results:
        assert [result async for result in results] == [1, 2]
    assert len(server.times) == 3


@pytest.mark.parametrize("timeout_s", [None, 5])
async def test_a_stream_has_no_time_limit_unless_it_is_given_one(timeout_s):
    async def lines():
        yield b'{"item": 1}\n'
        await anyio.sleep(1000)
        yield b'{"item": 2}\n'

    limits = []

    async def serve(request):
        limits.append(request.headers.get("x-request-timeout"))
        headers = {"content-type": "application/x-ndjson"}
        return httpx.Response(200, headers=headers, content=lines())

    async with client_of(serve) as client:
        began = anyio.current_time()
        async with client.stream("/x", 1, timeout_s=timeout_s) as results:
            assert await anext(results) == 1
            if timeout_s is None:
                assert await anext(results) == 2
                assert limits == [None]
                return
            with pytest.raises(errors.DeadlineExceeded, match="did not end in time"):
                await anext(results)
    assert limits == ["5.000"]
    assert anyio.current_time() - began == pytest.approx(5)


async def test_an_endpoint_that_is_overloaded_is_called_again():
    async def slow(items: list[int]) -> list[int]:
        began.set()
        await anyio.sleep(1.7)
        return items

    began = anyio.Event()
    app = shoal.App(retry_after_s=1)
    app.endpoint("/slow", name="slow", max_batch_size=1, max_queued_requests=0)(slow)
    options = {"client": httpx.AsyncClient(transport=httpx.ASGITransport(app))}
    async with (
        app.lifespan(),
        HttpClient("http://localhost", **options) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(client.call, "/slow", 1)
        await began.wait()
        called = anyio.current_time()
        assert await client.call("/slow", 2) == 2
    # Refused at once, and after 1 s; made after 2 s.
    assert 3.7 < anyio.current_time() - called < 4.1


async def test_the_limit_is_a_header_of_the_request():
    server = Server(DONE)
    for timeout_s in (5, 0.0001, 2e9, 0):
        with contextlib.suppress(errors.DeadlineExceeded):
            await call(server, timeout_s=timeout_s)
    assert server.limits == [5, 0.001, None, 0]
    server = Server(DONE)
    await call(server, headers={"X-Request-Timeout": "2"})
    assert server.limits == [2]


@pytest.mark.parametrize(("timeout_s", "error"), [(-1, ValueError), ("1", TypeError)])
async def test_a_limit_that_is_none_is_refused(timeout_s, error):
    with pytest.raises(error, match="timeout_s"):
        await call(Server(DONE), timeout_s=timeout_s)
    with pytest.raises(error, match="timeout_s"):
        client_of(Server(DONE), timeout_s=timeout_s)
    with pytest.raises(error, match="timeout_s"):
        client_of(Server(DONE)).stream("/x", timeout_s=timeout_s)


@pytest.mark.parametrize(("attempts", "error"), [(0, ValueError), (1.5, TypeError)])
def test_attempts_are_checked(attempts, error):
    with pytest.raises(error, match="max_attempts"):
        HttpClient("http://x", max_attempts=attempts)


async def test_many_attempts_are_no_overflow():
    assert 5 <= delay_before(9_999, 0.0) <= 10


def test_the_texts_of_a_problem_are_bounded():
    problem = {"type": "x", "title": "t" * 10**6, "detail": "d" * 10**6, "instance": "i" * 10**6}
    failure = shoal.http_client.bodies.failure_of("u", 500, "", json.dumps(problem).encode())
    assert len(str(failure.error)) == 2000
    assert not failure.was_refused


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"type": 5}',
        b'{"type": ["urn:shoal:problem:overloaded"], "status": "x", "title": {}}',
    ],
)
def test_an_error_answer_of_any_body_is_an_error(body):
    failure = shoal.http_client.bodies.failure_of("u", 500, "", body)
    assert type(failure.error) is errors.HttpProblem
    assert failure.error.status == 500
    assert not failure.was_refused
