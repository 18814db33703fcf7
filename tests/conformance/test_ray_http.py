"""What Ray Serve's tests assert of requests over HTTP (groups RI and RC), on a real socket."""

import json
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

import shoal
from shoal.asgi.http_options import HttpOptions
from shoal.asgi.lifespan import AppLifespan
from shoal.server.server import serve

pytestmark = [pytest.mark.trio, pytest.mark.slow]

HANG_S = 15
LINES = {"accept": "application/x-ndjson"}


class Server:
    """A running server and a client of it; `drained` is there once it has ended."""

    def __init__(self) -> None:
        self.stop = trio.Event()
        self.ended = trio.Event()
        self.client: httpx.AsyncClient
        self.drained: Any = None

    async def run(self, app: Any, config: HttpOptions, task_status: Any) -> None:
        async def shutdown() -> None:
            await self.stop.wait()
            if isinstance(app, shoal.App):
                app.begin_drain()

        def started(url: str) -> None:
            self.client = httpx.AsyncClient(base_url=url, timeout=HANG_S)
            task_status.started()

        self.drained = await serve(app, config, shutdown=shutdown, started=started)
        self.ended.set()

    async def post(self, path: str, item: Any = "item") -> httpx.Response:
        return await self.client.post(path, json=item)

    @asynccontextmanager
    async def stream(self, path: str, item: Any = "item") -> AsyncIterator[AsyncIterator[str]]:
        """Reads a stream's lines; leaving leaves it."""
        put, lines = trio.open_memory_channel[str](math.inf)

        # In a task, because httpx's generators end well when they are cancelled, but not when they
        # are dropped half read.
        async def read() -> None:
            asking = self.client.stream("POST", path, json=item, headers=LINES)
            async with put, asking as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    put.send_nowait(line)

        async with lines, trio.open_nursery() as nursery:
            nursery.start_soon(read)
            yield lines
            nursery.cancel_scope.cancel()

    async def wait_until(self, endpoint: str, **counts: int) -> None:
        """Asks until an endpoint has so many requests queued and running."""
        while True:
            state = (await self.client.get("/-/readyz")).json()["endpoints"][endpoint]
            if counts.items() <= state.items():
                return


@asynccontextmanager
async def serving(app: Any, **config: Any) -> AsyncIterator[Server]:
    server = Server()
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run, app, HttpOptions(port=0, **config))
            async with server.client:
                yield server
                server.stop.set()


class Caller:
    """A client that makes one call, and may leave before it is answered."""

    def __init__(self, server: Server, path: str, item: Any = "item") -> None:
        self._asked = (server, path, item)
        self._scope = trio.CancelScope()
        self.answer: Any = None

    def leave(self) -> None:
        self._scope.cancel()

    async def run(self) -> None:
        server, path, item = self._asked
        with self._scope:
            try:
                self.answer = await server.post(path, item)
            except httpx.TransportError as error:
                self.answer = error


@asynccontextmanager
async def calling(*callers: Caller) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for caller in callers:
            nursery.start_soon(caller.run)
        yield


class Held:
    """A handler that says when it runs, waits for its gate, and says when it was cancelled."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.entered = trio.Event()
        self.gate = trio.Event()
        self.cancelled = trio.Event()

    async def __call__(self, items: list[str]) -> list[str]:
        self.batches.append(items)
        self.entered.set()
        try:
            await self.gate.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return items


class Steps:
    """A generator handler that yields its item once, waits for its gate, and yields it again."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.closed = trio.Event()

    async def __call__(self, items: list[str]) -> AsyncIterator[list[str]]:
        try:
            yield items
            await self.gate.wait()
            yield items
        finally:
            self.closed.set()


def chain(**outer_options: Any) -> tuple[shoal.App, Held, Held]:
    """An application whose handler ``/outer`` calls a batched function; and the two as one sees."""
    inner, seen = Held(), Held()
    call_inner = shoal.batch(inner.__call__)
    app = shoal.App()
    app.endpoint("/inner")(call_inner)

    @app.endpoint("/outer", name="outer", **outer_options)
    async def outer(items: list[str]) -> list[str]:
        seen.entered.set()
        try:
            return [await call_inner(item) for item in items]
        except trio.Cancelled:
            seen.cancelled.set()
            raise

    return app, seen, inner


async def ask_all(server: Server, path: str, *items: Any) -> list[httpx.Response]:
    callers = [Caller(server, path, item) for item in items]
    async with calling(*callers):
        pass
    return [caller.answer for caller in callers]


async def read_all(server: Server, path: str, *items: Any) -> list[list[Any]]:
    """The whole stream of each item, read by as many clients at once."""
    streams: dict[Any, list[Any]] = {}

    async def read(item: Any) -> None:
        async with server.stream(path, item) as lines:
            streams[item] = [json.loads(line) async for line in lines]

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(read, item)
    return [streams[item] for item in items]


def items_of(stream: list[Any]) -> list[Any]:
    assert stream[-1] == {"end": True}
    return [line["item"] for line in stream[:-1]]


# RI: whole requests.


async def test_ri4_items_of_a_stream_need_not_be_hashable() -> None:
    app = shoal.App()

    @app.endpoint("/texts", max_batch_size=4, batch_wait_timeout_s=None)
    async def texts(prompts: list[str]) -> AsyncIterator[list[dict[str, str]]]:
        for _ in range(10):
            yield [{"text": prompt} for prompt in prompts]

    async with serving(app) as server:
        streams = await read_all(server, "/texts", *"abcd")
    bodies = ["".join(item["text"] for item in items_of(stream)) for stream in streams]
    assert bodies == ["a" * 10, "b" * 10, "c" * 10, "d" * 10]


async def test_ri6_every_stream_gets_its_chunks_in_order() -> None:
    app = shoal.App()

    @app.endpoint("/digits", max_batch_size=3, batch_wait_timeout_s=None)
    async def digits(items: list[int]) -> AsyncIterator[list[str]]:
        for number in range(10):
            yield [str(number)] * len(items)

    async with serving(app) as server:
        streams = await read_all(server, "/digits", 0, 1, 2)
    assert ["".join(items_of(stream)) for stream in streams] == ["0123456789"] * 3


# RI9-RI15: batches by what their items cost.


class Costs:
    """An endpoint whose first batch is held until all other calls are in line."""

    def __init__(self, app: shoal.App, answer: Any, cost: Any, most: int) -> None:
        self.batches: list[list[Any]] = []
        self.gate = trio.Event()
        self._answer = answer
        self._cost = cost
        app.endpoint("/sized", name="sized", max_batch_size=most, batch_size_fn=cost)(self.run)

    async def run(self, items: list[Any]) -> list[Any]:
        if items == ["plug"]:
            await self.gate.wait()
            return items
        self.batches.append(items)
        return [self._answer(item) for item in items]

    @property
    def loads(self) -> list[int]:
        return [sum(map(self._cost, batch)) for batch in self.batches]


async def ask_sized(cost: Any, answer: Any, most: int, *items: Any) -> tuple[list[Any], list[int]]:
    """The answers to calls that are all in line at once, and the load of each batch."""
    app = shoal.App()
    sized = Costs(app, answer, lambda item: 1 if item == "plug" else cost(item), most)
    async with serving(app) as server:
        plug = Caller(server, "/sized", "plug")
        callers = [Caller(server, "/sized", item) for item in items]
        async with calling(plug):
            await server.wait_until("sized", running=1)
            async with calling(*callers):
                await server.wait_until("sized", queued=len(items))
                sized.gate.set()
    assert [caller.answer.status_code for caller in (plug, *callers)] == [200] * (1 + len(items))
    return [caller.answer.json() for caller in callers], sized.loads


async def test_ri9_batches_are_bounded_by_the_sizes_of_their_items() -> None:
    items = [{"value": n, "size": size} for n, size in enumerate((30, 40, 20, 25), start=1)]
    answers, loads = await ask_sized(
        shoal.of_list(lambda items: sum(item["size"] for item in items)),
        lambda item: 2 * item["value"],
        100,
        *items,
    )
    assert answers == [2, 4, 6, 8]
    assert (len(loads), sum(loads)) == (2, 115)
    assert max(loads) <= 100


async def test_ri10_batches_of_graphs_are_bounded_by_their_nodes() -> None:
    graphs = [[n] * nodes for n, nodes in enumerate((30, 40, 35, 50), start=1)]
    answers, loads = await ask_sized(len, sum, 100, *graphs)
    assert answers == [30, 80, 105, 200]
    assert sum(loads) == 155
    assert max(loads) <= 100


async def test_ri11_batches_of_texts_are_bounded_by_their_words() -> None:
    texts = ["word " * words for words in (5, 12, 1, 10)]
    answers, loads = await ask_sized(
        lambda text: len(text.split()), lambda text: len(text.split()), 1000, *texts
    )
    assert answers == [5, 12, 1, 10]
    assert loads == [28]


async def test_ri13_an_item_larger_than_a_batch_is_refused_alone() -> None:
    app = shoal.App()
    handled: list[int] = []

    @app.endpoint("/sized", max_batch_size=10, batch_size_fn=lambda size: size)
    async def sized(sizes: list[int]) -> list[int]:
        handled.extend(sizes)
        return sizes

    async with serving(app) as server:
        refused, served = await ask_all(server, "/sized", 15, 10)
    assert (refused.status_code, served.status_code, served.json()) == (413, 200, 10)
    assert refused.headers["content-type"] == "application/problem+json"
    assert handled == [10]


async def test_ri14_an_item_that_does_not_fit_is_served_by_the_next_batch() -> None:
    answers, loads = await ask_sized(lambda size: size, str, 10, 6, 6, 3, 4)
    assert answers == ["6", "6", "3", "4"]
    assert sum(loads) == 19
    assert max(loads) <= 10


async def test_ri15_requests_of_many_sizes_are_all_answered() -> None:
    sizes = [10, 20, 50, 15, 90, 5]
    answers, loads = await ask_sized(lambda size: size, lambda size: size, 100, *sizes)
    assert answers == sizes
    assert sum(loads) == 190
    assert max(loads) <= 100


# RC1-RC9: clients that leave.


@pytest.mark.parametrize("mounted", [False, True])
async def test_rc1_a_client_that_leaves_cancels_the_handler_and_what_it_calls(
    mounted: bool,
) -> None:
    app, outer, inner = chain()
    site = Starlette(lifespan=app.lifespan, routes=[Mount("/ml", app=app)])
    async with serving(site if mounted else app) as server:
        caller = Caller(server, "/ml/outer" if mounted else "/outer")
        async with calling(caller):
            await inner.entered.wait()
            caller.leave()
        await outer.cancelled.wait()
        await inner.cancelled.wait()
    assert caller.answer is None


async def test_rc7_a_stream_left_after_its_first_item_closes_its_generator() -> None:
    steps, app = Steps(), shoal.App()
    app.endpoint("/steps")(steps)
    async with serving(app) as server:
        async with server.stream("/steps", "hi") as lines:
            assert await anext(lines) == '{"item":"hi"}'
            assert not steps.closed.is_set()
        await steps.closed.wait()
    assert not steps.gate.is_set()


# RC10-RC12: overload.


@pytest.mark.parametrize(
    ("settings", "status", "retry_after"),
    [({}, 503, "1"), ({"overload_status": 429, "retry_after_s": 7}, 429, "7")],
)
async def test_rc10_rc11_above_the_bound_calls_are_refused_at_once(
    settings: Any, status: int, retry_after: str
) -> None:
    held, app = Held(), shoal.App(**settings)
    app.endpoint("/held", name="held", max_batch_size=1, max_queued_requests=1)(held)
    async with serving(app) as server:
        running, queued = Caller(server, "/held", "running"), Caller(server, "/held", "queued")
        async with calling(running), calling(queued):
            await server.wait_until("held", running=1, queued=1)
            # They are answered while the handler is held, so nothing waited for a place.
            refused = await ask_all(server, "/held", *map(str, range(10)))
            held.gate.set()
    assert {answer.status_code for answer in refused} == {status}
    assert {answer.headers["retry-after"] for answer in refused} == {retry_after}
    assert {answer.headers["content-type"] for answer in refused} == {"application/problem+json"}
    assert {answer.json()["type"] for answer in refused} == {"urn:shoal:problem:overloaded"}
    assert [caller.answer.status_code for caller in (running, queued)] == [200, 200]
    assert {caller.answer.json() for caller in (running, queued)} == {"running", "queued"}


async def test_rc12_a_rejection_passes_through_a_calling_endpoint() -> None:
    inner, app = Held(), shoal.App()
    call_inner = shoal.batch(inner.__call__, max_batch_size=1, max_queued_requests=0)
    app.endpoint("/inner")(call_inner)

    @app.endpoint("/outer")
    async def outer(items: list[str]) -> list[str]:
        return [await call_inner(item) for item in items]

    async with serving(app) as server, calling(Caller(server, "/inner")):
        await inner.entered.wait()
        answer = await server.post("/outer")
        inner.gate.set()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["type"] == "urn:shoal:problem:overloaded"


# RC13-RC19: time-outs.


async def test_rc13_fast_requests_are_answered_within_their_time_out() -> None:
    held, app = Held(), shoal.App()
    held.gate.set()
    app.endpoint("/held", request_timeout_s=5)(held)
    async with serving(app) as server:
        answers = await ask_all(server, "/held", *map(str, range(10)))
    assert [answer.json() for answer in answers] == list(map(str, range(10)))


async def test_rc14_a_request_whose_handler_hangs_times_out() -> None:
    held, app = Held(), shoal.App()
    app.endpoint("/held", request_timeout_s=0.1)(held)
    async with serving(app) as server:
        answer = await server.post("/held")
    assert answer.status_code == 504
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:shoal:problem:deadline-exceeded"


async def test_rc15_a_running_and_a_queued_request_time_out_and_then_one_is_served() -> None:
    held, app = Held(), shoal.App()
    app.endpoint("/held", max_batch_size=1, request_timeout_s=0.5)(held)
    async with serving(app) as server:
        answers = await ask_all(server, "/held", "1", "2")
        assert [answer.status_code for answer in answers] == [504, 504]
        held.gate.set()
        assert (await server.post("/held", "3")).json() == "3"


async def test_rc17_nothing_is_left_of_requests_that_timed_out() -> None:
    held, app = Held(), shoal.App()
    app.endpoint("/held", name="held", max_batch_size=2, request_timeout_s=0.1)(held)
    async with serving(app) as server:
        await server.post("/held")
        tasks_before = trio.lowlevel.current_statistics().tasks_living
        url = server.client.base_url
        async with httpx.AsyncClient(base_url=url, timeout=HANG_S) as others:
            for _ in range(10):
                assert (await others.post("/held", json="item")).status_code == 504
        while trio.lowlevel.current_statistics().tasks_living > tasks_before:
            await trio.lowlevel.checkpoint()
        await server.wait_until("held", running=0, queued=0)


async def test_rc18_a_time_out_cancels_the_handler_and_what_it_calls() -> None:
    app, outer, inner = chain(request_timeout_s=0.1)
    async with serving(app) as server:
        assert (await server.post("/outer")).status_code == 504
        await outer.cancelled.wait()
        await inner.cancelled.wait()


async def test_rc19_what_times_out_in_line_never_reaches_the_handler() -> None:
    held, app = Held(), shoal.App()
    batcher = shoal.batch(held.__call__, max_batch_size=1)
    app.endpoint("/held")(batcher)
    async with serving(app) as server:
        async with calling(Caller(server, "/held", "running")):
            await held.entered.wait()
            batcher.batcher.configure(request_timeout_s=0.1)
            assert (await server.post("/held", "queued")).status_code == 504
            held.gate.set()
        assert (await server.post("/held", "late")).status_code == 200
    assert held.batches == [["running"], ["late"]]


# RC20-RC24: streams and whole responses.


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_rc20_chunks_arrive_in_order(kind: str) -> None:
    app = shoal.App()

    def sync_count(items: list[int]) -> Iterator[list[int]]:
        for number in range(10):
            yield [number] * len(items)

    async def async_count(items: list[int]) -> AsyncIterator[list[int]]:
        for number in range(10):
            yield [number] * len(items)

    app.endpoint("/count")(sync_count if kind == "sync" else async_count)
    async with serving(app) as server:
        (stream,) = await read_all(server, "/count", 1)
    assert items_of(stream) == list(range(10))


async def next_item(lines: AsyncIterator[str]) -> str:
    """Reads the next line that is no heartbeat; on a busy machine one comes before the first."""
    while not (line := await anext(lines)):
        pass
    return line


async def test_rc21_chunks_arrive_one_by_one_and_streams_are_independent() -> None:
    one, other = Steps(), Steps()
    app = shoal.App(heartbeat_s=0.01)
    app.endpoint("/one", name="one")(one)
    app.endpoint("/other", name="other")(other)
    async with (
        serving(app) as server,
        server.stream("/one", "a") as lines,
        server.stream("/other", "b") as other_lines,
    ):
        assert await next_item(lines) == '{"item":"a"}'
        assert await next_item(other_lines) == '{"item":"b"}'
        assert await anext(lines) == ""  # a heartbeat: for 0.01 s there was no second chunk
        other.gate.set()
        assert [line async for line in other_lines if line] == ['{"item":"b"}', '{"end":true}']
        assert not one.closed.is_set()
        one.gate.set()
        assert [line async for line in lines if line] == ['{"item":"a"}', '{"end":true}']


async def test_rc22_status_headers_and_media_type_of_a_response_are_kept() -> None:
    app = shoal.App()

    @app.endpoint("/moved")
    async def moved(items: list[str]) -> list[Response]:
        return [
            Response(f"moved {item}", 301, {"location": "/there", "x-model": "old"}, "text/x-note")
            for item in items
        ]

    async with serving(app) as server:
        answer = await server.post("/moved", "away")
    assert (answer.status_code, answer.text) == (301, "moved away")
    assert (answer.headers["location"], answer.headers["x-model"]) == ("/there", "old")
    assert answer.headers["content-type"] == "text/x-note; charset=utf-8"


@pytest.mark.parametrize("media_type", ["application/x-ndjson", "text/event-stream"])
async def test_rc23_an_error_after_the_first_chunk_is_an_explicit_last_event(
    media_type: str,
) -> None:
    app = shoal.App()

    @app.endpoint("/fails")
    async def fails(items: list[str]) -> AsyncIterator[list[str]]:
        yield items
        raise RuntimeError("a text that clients must not see")

    async with serving(app) as server:
        answer = await server.client.post("/fails", json="a", headers={"accept": media_type})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == f"{media_type}; charset=utf-8"
    lines = [line for line in answer.text.splitlines() if line]
    if media_type == "text/event-stream":
        assert lines[:2] == ['data: "a"', "event: error"]
        problem = json.loads(lines[2].removeprefix("data: "))
    else:
        assert lines[0] == '{"item":"a"}'
        problem = json.loads(lines[1])["error"]
    assert (problem["status"], problem["type"]) == (500, "urn:shoal:problem:internal")
    assert "must not see" not in answer.text


async def test_rc24_a_generator_is_cancelled_when_its_client_leaves_and_not_before() -> None:
    steps, app = Steps(), shoal.App(heartbeat_s=0.01)
    app.endpoint("/steps")(steps)
    async with serving(app) as server:
        async with server.stream("/steps") as lines:
            assert await next_item(lines) == '{"item":"item"}'
            for _ in range(20):
                assert await anext(lines) == ""
            assert not steps.closed.is_set()
        await steps.closed.wait()


# RC25-RC30: the end of the server.


async def is_refused(server: Server) -> bool:
    port = server.client.base_url.port
    assert port is not None
    try:
        await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
    except OSError:
        return True
    return False


class Ending(shoal.App):
    """Notes the steps of its end."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def begin_drain(self) -> None:
        self.steps.append("drain")
        super().begin_drain()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await super().__call__(scope, receive, send)
        if scope.get("path") == "/held" and "refused" in self.steps:
            self.steps.append("answered")

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        async with super().lifespan():
            yield
            self.steps.append("lifespan")
        self.steps.append("closed")


async def test_rc25_the_steps_of_a_shutdown_come_in_order_and_share_one_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budgets: list[float] = []
    stop = AppLifespan.stop

    async def noted_stop(lifespan: AppLifespan, timeout_s: float) -> None:
        budgets.append(timeout_s)
        await stop(lifespan, timeout_s)

    monkeypatch.setattr(AppLifespan, "stop", noted_stop)
    held, app = Held(), Ending()
    app.endpoint("/held", name="held")(held)
    async with serving(app, graceful_timeout_s=HANG_S) as server:
        caller = Caller(server, "/held")
        async with calling(caller):
            await held.entered.wait()
            server.stop.set()
            while not await is_refused(server):
                pass
            assert app.steps == ["drain"]
            app.steps.append("refused")
            held.gate.set()
    assert caller.answer.status_code == 200
    assert app.steps == ["drain", "refused", "answered", "lifespan", "closed"]
    assert 0 < budgets[0] < HANG_S
    assert math.isclose(budgets[0], HANG_S - server.drained.took_s)


async def test_rc26_what_does_not_end_in_time_is_cancelled_and_the_shutdown_completes() -> None:
    held, app = Held(), Ending()
    app.endpoint("/held")(held)
    async with serving(app, graceful_timeout_s=0.05) as server:
        caller = Caller(server, "/held")
        async with calling(caller):
            await held.entered.wait()
            server.stop.set()
    assert isinstance(caller.answer, httpx.Response)
    assert caller.answer.status_code == 503
    assert held.cancelled.is_set()
    assert app.steps == ["drain", "lifespan", "closed"]
    assert (server.drained.finished, server.drained.cut) == (0, 1)


async def test_rc27_a_server_that_never_started_only_ends() -> None:
    stop, app, announced = trio.Event(), Ending(), list[str]()

    @app.endpoint("/slow")
    class Slow:
        def __init__(self) -> None:
            trio.from_thread.run_sync(stop.set)
            trio.from_thread.run(trio.sleep_forever)

        def __call__(self, items: list[str]) -> list[str]:
            return items

    with trio.fail_after(HANG_S):
        drained = await serve(
            app, HttpOptions(port=0), shutdown=stop.wait, started=announced.append
        )
    assert not drained.started
    assert announced == []
    assert app.steps == []


async def test_rc28_what_is_under_way_is_waited_for_after_the_listener_has_closed() -> None:
    steps, app = Steps(), shoal.App()
    app.endpoint("/steps")(steps)
    async with serving(app) as server, server.stream("/steps") as lines:
        await anext(lines)
        server.stop.set()
        while not await is_refused(server):
            pass
        assert not steps.closed.is_set()
        steps.gate.set()
        assert [line async for line in lines] == ['{"item":"item"}', '{"end":true}']
    assert (server.drained.finished, server.drained.cut) == (1, 0)


async def test_rc30_an_idle_server_ends_without_waiting_out_a_time() -> None:
    app = shoal.App()
    app.endpoint("/held")(Held())
    times = {"graceful_timeout_s": HANG_S * 2, "keep_alive_timeout_s": HANG_S * 2}
    async with serving(app, **times) as server:
        assert (await server.client.get("/-/healthz")).status_code == 200
        server.stop.set()
        await server.ended.wait()  # the client's idle connection is still there
    assert (server.drained.finished, server.drained.cut) == (0, 0)


# RC33: health.


async def test_rc33_readiness_takes_no_slot_when_all_are_taken() -> None:
    held, app = Held(), shoal.App()
    app.endpoint("/held", name="held", max_batch_size=1, max_queued_requests=0)(held)
    async with serving(app) as server, calling(Caller(server, "/held")):
        await held.entered.wait()
        assert (await server.post("/held")).status_code == 503
        answers = [await server.client.get("/-/readyz") for _ in range(3)]
        held.gate.set()
    assert [answer.status_code for answer in answers] == [200] * 3
    (state,) = answers[-1].json()["endpoints"].values()
    assert (state["running"], state["queued"]) == (1, 0)
    assert held.batches == [["item"]]


async def test_rc33_a_broken_batcher_turns_the_server_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a bug of ours")

    app = shoal.App()
    app.endpoint("/held", name="held")(Held())
    async with serving(app) as server:
        assert (await server.client.get("/-/readyz")).status_code == 200
        monkeypatch.setattr("shoal.core.forming.former.Former.decide", broken)
        answers = await ask_all(server, "/held", "1", "2")
        readiness = await server.client.get("/-/readyz")
        alive = await server.client.get("/-/healthz")
    assert [answer.status_code for answer in answers] == [503, 503]
    assert (readiness.status_code, readiness.json()["status"]) == (503, "not ready: held")
    assert alive.status_code == 200
