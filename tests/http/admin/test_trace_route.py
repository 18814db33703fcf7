"""``POST /-/api/trace``: a recording as a stream, its bounds, and its ends."""

import json
from contextlib import asynccontextmanager

import anyio
import pytest

from shoal.http.admin import recordings
from shoal.http.admin.api import AdminApi
from shoal.http.app.admin_mount import AdminMount
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import Call, ask, calling

LOCAL = ("host", "localhost:8000")


async def slow_double(items: list[int]) -> list[int]:
    await anyio.sleep(0.01)
    return [item * 2 for item in items]


@pytest.fixture
async def controller(anyio_backend):
    async with Controller() as controller:
        await controller.create_backend(
            "small", slow_double, config={"max_batch_size": 4, "request_timeout_s": 30}
        )
        await controller.create_backend("large", slow_double, config={"max_batch_size": 64})
        await controller.create_endpoint("s", backend="small")
        await controller.create_endpoint("l", backend="large")
        yield controller


@pytest.fixture
def app(controller):
    return AdminMount(AdminApi(controller, token=None, allowed_modules=None))


@asynccontextmanager
async def tracing(app, item, *, until=b'"batcher"'):
    """A recording that has begun."""
    call = Call(app, "/-/api/trace", item=item, headers=[LOCAL])
    async with calling(call):
        await call.until_sent(until)
        yield call


def lines_of(body):
    return [json.loads(line) for line in body.splitlines()]


def of_kind(body, kind):
    return [line for line in lines_of(body) if line.get("record") == kind]


async def test_a_recording_has_the_batchers_their_requests_and_an_end(app, controller):
    handle = await controller.get_handle("s")
    async with tracing(app, {"seconds": 2.2}) as call:
        for number in range(3):
            assert await handle.call(number) == 2 * number
        await call.returned.wait()
    answer = call.answer
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/x-ndjson; charset=utf-8"
    first, *rest = lines_of(answer.body)
    assert (first["record"], first["format"], first["seconds"]) == ("trace", 1, 2.2)
    assert first["began_at"].endswith("+00:00")
    small, large = of_kind(answer.body, "batcher")
    assert (small["batcher"], small["options"]["max_batch_size"]) == ("small", 4)
    assert (large["batcher"], large["options"]["max_batch_size"]) == ("large", 64)
    assert [line["size"] for line in of_kind(answer.body, "batch")] == [1, 1, 1]
    requests = of_kind(answer.body, None)
    assert [line["batcher"] for line in requests] == ["small"] * 3
    assert all("timeout_s" not in line for line in requests)
    assert [line["at"] for line in of_kind(answer.body, "progress")] == [0.5, 1, 1.5, 2]
    assert rest[-1] == {
        "record": "end",
        "at": 2.2,
        "requests": 3,
        "lost": 0,
        "why": "time",
        "unfinished": 0,
    }
    assert controller.observers.all == ()


async def test_one_backend_can_be_recorded_and_a_change_of_its_options_is(app, controller):
    small, large = await controller.get_handle("s"), await controller.get_handle("l")
    async with tracing(app, {"seconds": 2, "backend": "large"}) as call:
        await small.call(1)
        await large.call(1)
        await controller.update_backend_config("large", {"max_batch_size": 32})
        await call.returned.wait()
    body = call.answer.body
    limits = [line["options"]["max_batch_size"] for line in of_kind(body, "batcher")]
    assert limits == [64, 32]
    assert [line["batcher"] for line in of_kind(body, None)] == ["large"]


async def test_a_recording_is_full_some_time(app, controller):
    handle = await controller.get_handle("l")
    limits = {"seconds": 100, "most_requests": 5}
    async with tracing(app, limits) as call, anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(handle.call, number)
        await anyio.sleep(1.2)
        for number in range(4):
            tasks.start_soon(handle.call, number)
        await call.returned.wait()
    (end,) = of_kind(call.answer.body, "end")
    assert (end["at"], end["requests"], end["lost"], end["why"]) == (1.5, 5, 3, "full")


async def test_what_a_slow_reader_misses_is_counted_and_delays_nobody(app, controller, monkeypatch):
    monkeypatch.setattr(recordings, "MOST_HELD", 4)
    handle = await controller.get_handle("s")
    async with tracing(app, {"seconds": 5}) as call:
        call.stop_reading()
        for number in range(100):
            await handle.call(number)
        assert anyio.current_time() == pytest.approx(1.0)
        call.read()
        await call.returned.wait()
    (end,) = of_kind(call.answer.body, "end")
    assert end["lost"] > 100
    # What was noted before the client stopped was still sent.
    assert len(of_kind(call.answer.body, None)) < 100


async def test_the_end_of_a_long_recording_is_written_in_steps(app, controller, monkeypatch):
    monkeypatch.setattr(recordings, "_AT_A_TIME", 2)
    written, sizes = recordings._written, []

    def noted(notes):
        sizes.append(len(notes))
        return written(notes)

    handle = await controller.get_handle("s")
    async with tracing(app, {"seconds": 60, "most_requests": 8}) as call:
        monkeypatch.setattr(recordings, "_written", noted)
        for number in range(8):
            await handle.call(number)
        await call.returned.wait()
    assert len(of_kind(call.body, None)) == 8
    assert max(sizes) == 2


async def test_one_that_does_not_read_is_disconnected_and_records_no_more(app, controller):
    async with tracing(app, {"seconds": 1000}, until=b'"progress"') as call:
        assert len(controller.observers.all) == 1
        call.stop_reading()
        await call.returned.wait()
    assert controller.observers.all == ()


async def test_one_that_leaves_ends_its_recording(app, controller):
    async with tracing(app, {"seconds": 1000}) as call:
        call.leave()
        await call.returned.wait()
        assert controller.observers.all == ()


async def test_a_server_that_ends_ends_its_recordings(app, controller):
    async with tracing(app, {"seconds": 1000}, until=b'"progress"') as call:
        controller.drain()
        await call.returned.wait()
    (end,) = of_kind(call.answer.body, "end")
    assert end["why"] == "server ended"


async def test_few_recordings_run_at_once(app, controller, monkeypatch):
    monkeypatch.setattr(recordings, "MOST_RECORDINGS", 1)
    async with tracing(app, {"seconds": 1}) as call:
        refused = await ask(app, "/-/api/trace", {"seconds": 1}, headers=[LOCAL])
        assert refused.status == 503
        assert refused.json()["type"].endswith("too-many-recordings")
        await call.returned.wait()
    again = await ask(app, "/-/api/trace", {"seconds": 1}, headers=[LOCAL])
    assert again.status == 200


@pytest.mark.parametrize(
    ("item", "status", "told"),
    [
        ({}, 422, "the body must have 'seconds'"),
        ({"seconds": 1, "payloads": True}, 422, "the body can't have 'payloads'"),
        ({"seconds": "long"}, 422, "seconds must be a number of seconds"),
        ({"seconds": 0}, 422, "seconds must be more than 0"),
        ({"seconds": 1e9}, 422, "at most 86400"),
        ({"seconds": 1, "most_requests": 0}, 422, "most_requests must be at least 1"),
        ({"seconds": 1, "most_requests": 10**12}, 422, "most_requests must be at most"),
        ({"seconds": 1, "most_requests": 1.5}, 422, "most_requests must be a whole number"),
        ({"seconds": 1, "backend": "x"}, 404, "no backend"),
        ({"seconds": 1, "backend": ["x"]}, 404, "no backend"),
    ],
)
async def test_a_mistake_is_told(app, controller, item, status, told):
    answer = await ask(app, "/-/api/trace", item, headers=[LOCAL])
    assert answer.status == status
    assert told in answer.json()["detail"]
    assert controller.observers.all == ()
