"""Requests that the server begins itself, once the application has lent what begins them."""

import gc
import logging
import time
import weakref
from typing import Any

import anyio
import pytest
from held_app import answers_counted, kind_of, metrics_of, statistics
from held_app import counted as requests_and_errors
from lent_heads import app_of, same
from live_server import read_until, request
from starlette.exceptions import HTTPException
from starlette.responses import Response

import shoal
from shoal.front_ends.remote_call import RemoteCalls
from shoal.http.json.item_calls import ItemCall
from shoal.statistics import BatchObserver
from worker_processes import kill, until, workers_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


@pytest.fixture
def front_ends(monkeypatch):
    """The requests of each front end that was started."""
    begin, made = RemoteCalls.__init__, []

    def noting(self, *args):
        made.append(self)
        begin(self, *args)

    monkeypatch.setattr(RemoteCalls, "__init__", noting)
    return made


async def test_each_caller_gets_its_own_result_and_is_counted(asking):
    app = app_of(same)
    async with asking(app) as asker:
        await asker.ask_without(b"1")
        before = sum(statistics(app, "x").batches.values())
        counts = requests_and_errors(app, "x")[0], (await answers_counted(app, "x"))["ok"]
        for n in range(20):
            answer = await asker.ask(b"%d" % n)
            assert tuple(answer) == (200, n)
            assert answer.headers["content-type"] == "application/json"
        assert sum(statistics(app, "x").batches.values()) == before + 20
        after = requests_and_errors(app, "x")[0], (await answers_counted(app, "x"))["ok"]
        assert after == (counts[0] + 20, counts[1] + 20)


async def test_a_handler_sees_the_request_as_always(asking):
    seen = []

    async def handler(items: list[int]) -> list[int]:
        [one] = shoal.current_batch().requests
        seen.append((dict(one.metadata), one.deadline - one.arrived_at))
        return items

    async with asking(app_of(handler, request_timeout_s=7)) as asker:
        first = await asker.ask(b"1", "/x?a=b", "X-Own: c")
        last = await asker.ask_without(b"1", "/x?a=b", "X-Own: c")
    (early, early_s), (late, late_s) = seen[0], seen[-1]
    assert early.pop("request_id") == first.headers["x-request-id"]
    assert late.pop("request_id") == last.headers["x-request-id"]
    assert early.pop("headers").items() == late.pop("headers").items()
    assert early == late
    assert early_s == pytest.approx(7) == late_s


class Odd:
    def __init__(self, cls):
        self._cls = cls

    def __getattr__(self, name):
        raise self._cls(name)


RESULTS = {
    "bytes": (lambda: b"abc", 200),
    "a response": (lambda: Response(b"abc", 418), 418),
    "a set in a list": (lambda: [{1}], 200),
    "no JSON": (lambda: [object()], 500),
    "what raises": (lambda: [Odd(ValueError)], 500),
    "what exits": (lambda: [Odd(SystemExit)], 500),
}


@pytest.mark.parametrize("kind", RESULTS)
async def test_results_of_all_kinds_are_answered_as_always(asking, kind):
    make, status = RESULTS[kind]

    async def handler(items: list[int]) -> list[Any]:
        return [make() if item else item for item in items]

    async with asking(app_of(handler)) as asker:
        first = await asker.ask(b"1")
        await asker.ask_without(b"0")
        assert (await asker.ask(b"1")).without_id() == first.without_id()
        assert first.status == status
        assert tuple(await asker.ask(b"0")) == (200, 0)


async def test_errors_are_the_same_problems_and_are_counted(asking):
    async def handler(items: list[int]) -> list[Any]:
        return [[1, ValueError("no"), HTTPException(404, "gone")][item] for item in items]

    app = app_of(handler)
    async with asking(app) as asker:
        early = {item: await asker.ask(b"%d" % item) for item in (1, 2)}
        await asker.ask_without(b"0")
        for item, status in ((1, 500), (2, 404)):
            errors = requests_and_errors(app, "x")[1]
            answer = await asker.ask(b"%d" % item)
            assert answer.status == status
            assert answer.without_id() == early[item].without_id()
            assert answer.headers["x-request-id"] in answer.body.decode()
            assert requests_and_errors(app, "x")[1] == errors + (status == 500)
        assert tuple(await asker.ask_without(b"0")) == (200, 1)


async def test_a_deadline_and_a_full_queue(asking, held):
    app = app_of(held, max_batch_size=1, max_queued_requests=1, request_timeout_s=0.5)
    async with asking(app) as asker:
        await asker.ask_and_hold(held)
        others = [await asker.server.connect() for _ in range(3)]
        sent = request("/x", method="POST", body=b"2")
        for n, other in enumerate(others[:2]):
            await other.send_all(sent)
            await until(lambda n=n: len(held.batches) + statistics(app, "x").queued == n + 1)
        refused = await asker.ask(b"2")
        assert (refused.status, kind_of((0, refused.body))) == (503, "overloaded")
        assert "retry-after" in refused.headers
        for other in others[:2]:
            late = await read_until(other, b"\r\n\r\n")
            assert late.startswith(b"HTTP/1.1 504 ")
        assert statistics(app, "x").rejected == 1
        counted = await answers_counted(app, "x")
        assert counted == {"ok": counted["ok"], "unavailable": 1, "timeout": 2}
        for other in others:
            await other.aclose()


async def test_a_client_that_leaves_ends_its_call(asking, held):
    app = app_of(held, max_batch_size=1)
    async with asking(app) as asker:
        await asker.ask_and_hold(held)
        async with await asker.server.connect() as running:
            await running.send_all(request("/x", method="POST", body=b"2"))
            await until(lambda: held.batches == [[2]])
            async with await asker.server.connect() as waiting:
                await waiting.send_all(request("/x", method="POST", body=b"3"))
                await until(lambda: statistics(app, "x").queued == 1)
            await until(lambda: not statistics(app, "x").queued)
        await until(lambda: held.cancelled == 1)
        held.go.set()
        assert tuple(await asker.ask(b"4")) == (200, 4)
        assert (await answers_counted(app, "x"))["left"] == 2
        assert [3] not in held.batches


async def test_a_killed_worker_ends_its_calls(asking, front_ends, held):
    app = app_of(held, max_batch_size=1)
    async with asking(app) as asker:
        await asker.ask_and_hold(held)
        await asker.send(b"2")
        await until(lambda: held.batches == [[2]])
        kill(workers_of()[0])
        await until(lambda: held.cancelled == 1)
        held.go.set()
        await until(lambda: not statistics(app, "x").running)
        await until(lambda: not front_ends[0].running)
        assert front_ends[0].shared.running == 0


async def test_what_runs_at_the_end_is_finished(asking, held):
    async with asking(app_of(held)) as asker:
        await asker.ask_and_hold(held)
        await asker.send(b"2")
        await until(lambda: held.batches == [[2]])
        asker.server.stop.set()
        await anyio.sleep(0.1)
        held.go.set()
        assert tuple(await asker.read()) == (200, 2)


async def test_what_does_not_end_is_told_so(asking, held):
    async with asking(app_of(held), graceful_timeout_s=0.2) as asker:
        await asker.ask_and_hold(held)
        await asker.send(b"2")
        await until(lambda: held.batches == [[2]])
        asker.server.stop.set()
        assert (await asker.read()).status == 503
        held.go.set()


async def test_nothing_of_a_request_is_kept(asking):
    items = []

    class Item(list):
        pass

    async def handler(items_: list[list[int]]) -> list[int]:
        items.extend(weakref.ref(one.context) for one in shoal.current_batch().requests)
        return [sum(item) for item in items_]

    async with asking(app_of(handler)) as asker:
        await asker.ask_without(b"[1]")
        gc.collect()
        gc.disable()
        try:
            items.clear()
            for _ in range(5):
                await asker.ask(b"[1]")
            assert [one() for one in items[:-1]] == [None] * 4
        finally:
            gc.enable()


async def test_many_clients_share_batches(asking, held):
    app = app_of(held, max_batch_size=64, max_concurrent_batches=1)
    async with asking(app) as asker:
        await asker.ask_and_hold(held)
        clients = [await asker.server.connect() for _ in range(9)]
        for n, client in enumerate(clients):
            await client.send_all(request("/x", method="POST", body=b"%d" % n))
            await until(lambda: held.batches == [[0]])
        await until(lambda: statistics(app, "x").queued == 8)
        held.go.set()
        for n, client in enumerate(clients):
            assert (await read_until(client, b"\r\n\r\n%d" % n)).startswith(b"HTTP/1.1 200 ")
            await client.aclose()
        assert len(held.batches) == 2


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("when", ["body that does not fit", "failed batch", "queued"])
async def test_nothing_is_kept_of_a_request_that_fails_or_whose_client_leaves_then(
    asking, front_ends, when, leaves
):
    go = anyio.Event()

    async def handler(items: list[int]) -> list[int]:
        if items != [1]:
            await go.wait()
            raise ValueError
        return items

    app = app_of(handler, max_batch_size=1)
    body = b"x" if when == "body that does not fit" else b"2"
    async with asking(app) as asker:
        await asker.ask_without(b"1")
        [calls] = front_ends
        logging.disable()  # pytest would keep the errors
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                go = anyio.Event()
                if not leaves:
                    go.set()
                    assert (await asker.ask(body)).status >= 400
                    continue
                with asker.server.connect_now(request("/x", method="POST", body=body)):
                    if when == "failed batch":
                        await until(lambda: statistics(app, "x").running)
                    else:
                        time.sleep(0.01)  # noqa: ASYNC251 - the server reads both at once
                time.sleep(0.02)  # noqa: ASYNC251 - it reads of the leaving as the batch ends
                go.set()
                await until(lambda: not calls.running)
                await anyio.sleep(0.01)
            go.set()
            await until(lambda: not statistics(app, "x").running)
            await anyio.sleep(0.01)
            assert not [one for one in gc.get_objects() if type(one) is ItemCall]
        finally:
            gc.enable()
            logging.disable(logging.NOTSET)
        assert calls.shared.running == 0


async def test_a_call_ends_in_the_time_of_the_application(asking, held):
    app = app_of(held, app=shoal.App(answer_timeout_s=0.3))
    async with asking(app) as asker:
        await asker.ask_and_hold(held)
        assert (await asker.ask(b"2")).status == 504
        held.go.set()
        metrics = (await metrics_of(app)).splitlines()
        [took] = [line for line in metrics if 'request_seconds_sum{endpoint="x",outcome="t' in line]
        assert float(took.split()[-1]) >= 0.3


class Exits(BatchObserver):
    def request_left(self, *_):
        raise SystemExit(3)


async def test_an_observer_that_exits_fails_the_call_alone(asking, held):
    app = app_of(held, max_batch_size=1, max_queued_requests=0)
    app.observers.add(Exits())
    async with asking(app) as asker:
        await asker.ask_and_hold(held)
        async with await asker.server.connect() as other:
            await other.send_all(request("/x", method="POST", body=b"2"))
            await until(lambda: statistics(app, "x").running)
            assert (await asker.ask(b"3")).status == 500
            held.go.set()
            await read_until(other, b"\r\n\r\n2")
        assert tuple(await asker.ask(b"4")) == (200, 4)


async def test_nothing_new_begins_once_the_server_cuts_off_its_calls(asking, held):
    async with asking(app_of(held), graceful_timeout_s=0.2) as asker:
        await asker.ask_and_hold(held)
        async with await asker.server.connect() as other:
            await other.send_all(request("/x", method="POST", body=b"2"))
            await until(lambda: held.batches == [[2]])
            asker.server.stop.set()
            assert (await read_until(other, b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
            held.go.set()
            assert (await asker.ask(b"3")).status == 503
    assert held.batches == [[2]]
