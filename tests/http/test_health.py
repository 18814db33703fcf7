"""What an operator asks an application: its figures, and where they stay bounded."""

import re

import anyio
import pytest
from held_app import metrics_of
from prometheus_client.parser import text_string_to_metric_families as parse

import shoal
from handlers import asking, double
from serving.scenes import Stage
from shoal.core.histogram import NO_ENDPOINT, TIME_BOUNDS_S
from shoal.errors import ReplicaNotStarted
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling

CALL = "__call__"
BOUNDS = [*map(str, TIME_BOUNDS_S), "+Inf"]


async def scraped(app):
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in parse(await metrics_of(app))
        for sample in family.samples
    }


@pytest.fixture
def x_app():
    app = shoal.App()
    app.endpoint("/x", name="x", max_batch_size=1, max_queued_requests=1)(double)
    return app


async def test_an_app_is_scraped(x_app):
    async with x_app.lifespan():
        await ask(x_app, "/x", 1)
        await ask(x_app, "/x", "no number")
        await ask(x_app, "/nowhere", 1)
        await ask(x_app, "/x", 1, method="PUT")
        answer = await ask(x_app, "/-/metrics", method="GET")
        samples = await scraped(x_app)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert samples["shoal_request_seconds_count", "json", "ok", "x"] == 1
    assert samples["shoal_request_seconds_count", "invalid", "json", "x"] == 1
    assert samples["shoal_request_seconds_count", NO_ENDPOINT, "invalid", "other"] == 2
    assert samples["shoal_requests_total", CALL, "finished", "x"] == 1


async def test_an_app_that_is_not_open_can_be_scraped_and_one_that_closed_is_down(x_app):
    assert "shoal_batcher_up{" not in await metrics_of(x_app)
    async with x_app.lifespan():
        assert (await scraped(x_app))["shoal_batcher_up", CALL, "x"] == 1
    assert (await scraped(x_app))["shoal_batcher_up", CALL, "x"] == 0


async def test_how_requests_ended_is_told_apart(app):
    go = anyio.Event()

    async def held(items: list[int]) -> list[int]:
        await go.wait()
        if items == [0]:
            raise ValueError
        return items

    app.endpoint("/x", name="x", max_batch_size=1, max_queued_requests=2)(held)
    failing, leaving, late = (Call(app, "/x", item=item) for item in (0, 1, 2))
    async with app.lifespan(), calling(failing) as tasks:
        await settle()
        tasks.start_soon(leaving.run)
        tasks.start_soon(late.run)
        await settle()
        await ask(app, "/x", 3)
        leaving.leave()
        await leaving.returned.wait()
        samples = await scraped(app)
        assert samples["shoal_queued_requests", CALL, "x"] == 1
        assert samples["shoal_running_requests", CALL, "x"] == 1
        go.set()
        await late.returned.wait()
        samples = await scraped(app)
    ended = {
        outcome: samples["shoal_requests_total", CALL, outcome, "x"]
        for outcome in ("cancelled", "expired", "failed", "finished", "rejected")
    }
    assert ended == {"cancelled": 1, "expired": 0, "failed": 1, "finished": 1, "rejected": 1}
    counted = {"failed": 1, "left": 1, "ok": 1, "unavailable": 1}
    for outcome, count in counted.items():
        key = sorted(("json", outcome, "x"))
        assert samples["shoal_request_seconds_count", *key] == count


async def test_what_callers_send_makes_no_new_series(x_app):
    async with x_app.lifespan():
        await ask(x_app, "/x", 1)
        await ask(x_app, "/nowhere", 1)
        await ask(x_app, "/x", 1, method="PUT")
        await ask(x_app, "/x", 1, headers=[("x-serve-call-method", "none")])
        before = set(await scraped(x_app))
        for number in range(50):
            name = f"n{number}"
            await ask(x_app, f"/{name}", 1, method=name, headers=[("x-request-id", name)])
            headers = [("x-request-id", name), ("x-serve-shard-key", name), (name, name)]
            await ask(x_app, "/x", number, headers=headers)
            await ask(x_app, "/x", number, headers=[*headers, ("x-serve-call-method", name)])
        after = set(await scraped(x_app))
    # The first scrape was itself a request.
    assert {key[1:] for key in after - before} <= {
        (NO_ENDPOINT, "ok", "other"),
        *((*sorted((bound, NO_ENDPOINT, "ok", "other")),) for bound in BOUNDS),
    }


@pytest.mark.parametrize(
    "config",
    [{"num_replicas": 2}, {"autoscaling": {"min_replicas": 0, "downscale_delay_s": 80}}],
    ids=["another works", "scaled to 0"],
)
async def test_liveness_ignores_that_ray_was_lost_where_nothing_needs_it(config, app):
    stage, is_back = Stage(), False

    async def start(_):
        if not is_back or stage.alive:
            raise ReplicaNotStarted("no Ray", needs_restart=True)

    async def alive():
        return (await ask(app, "/-/healthz", method="GET")).status

    app.backend("b", double, placement=stage, **config)
    app.route("e", backend="b", path="/e")
    async with app.lifespan():
        stage.start = start
        for replica in stage.replicas:
            replica.die()
        await anyio.sleep(60)
        assert await alive() == 503
        is_back = "num_replicas" in config
        await anyio.sleep(60)
        status = app.controller.status_now().backends["b"]
        assert (status.wanted, len(stage.alive)) == ((2, 1) if is_back else (0, 0))
        assert status.failure == "no Ray"
        assert await alive() == 200


async def endpoints_in(app):
    series = r'^(shoal_\w+)_(?:count|total)\{.*endpoint="([^"]+)"'
    return set(re.findall(series, await metrics_of(app), re.MULTILINE))


@pytest.mark.real_time
async def test_what_was_counted_of_a_deleted_endpoint_is_forgotten(app):
    @app.post("/value")
    def value(item: int) -> int:
        return item

    @app.post("/steps")
    async def steps(item: int):
        yield item

    async with app.lifespan():
        for path in ("/value", "/steps", "/none"):
            await ask(app, path, 1)
        before = await endpoints_in(app)
        of_steps = {pair for pair in before if pair[1] == "steps"}
        assert ("shoal_request_seconds", "steps") in of_steps
        assert len(of_steps) > 1  # of its streams, too
        assert {name for _, name in before} == {"-", "value", "steps"}
        await app.controller.delete_endpoint("steps")
        assert await endpoints_in(app) == before - of_steps
        assert (await ask(app, "/steps", 1)).status == 404
        assert await endpoints_in(app) == before - of_steps


# Which outcome, protocol and trace a request over HTTP is counted by, however it ends


def ended(app, endpoint="x"):
    times = [*app._shared.times, *([] if app.controller is None else app.controller.times)]
    return {(o.protocol, o.outcome): o.times.total for o in times if o.endpoint == endpoint}


async def test_a_stream_whose_client_leaves_halfway_was_left(app):
    async def endless(items: list[int]):
        yield items
        await anyio.sleep_forever()

    app.endpoint("/x", name="x")(endless)
    async with asking(app, "/x", 1) as [call]:
        await settle()
        assert ended(app) == {}
        call.leave()
        await call.returned.wait()
        assert ended(app) == {("json", "left"): 1}


async def test_a_call_by_a_handle_is_counted_apart(app):
    async def picky(items: list[int]) -> list[int]:
        if 0 in items:
            raise ValueError
        await anyio.sleep(items[0])
        return items

    async def steps(items: list[int]):
        for _ in range(2):
            yield items

    app.endpoint("/x", name="x")(picky)
    app.endpoint("/steps", name="steps")(steps)
    async with app.lifespan():
        handle = await app.controller.get_handle("x")
        await handle.call(1)
        with pytest.raises(ValueError):
            await handle.call(0)
        with pytest.raises(shoal.errors.DeadlineExceeded):
            await handle.options(timeout_s=1).call(5)
        with anyio.move_on_after(1):
            await handle.call(5)
        await ask(app, "/x", 1)
        assert ended(app) == {
            ("json", "ok"): 1,
            ("python", "ok"): 1,
            ("python", "failed"): 1,
            ("python", "timeout"): 1,
            ("python", "left"): 1,
        }
        streams = await app.controller.get_handle("steps")
        async with streams.stream(1) as whole:
            assert [item async for item in whole] == [1, 1]
        async with streams.stream(1) as part:
            await anext(part)
        assert ended(app, "steps") == {("python", "ok"): 1, ("python", "left"): 1}


async def test_a_replica_of_a_continuous_batch_runs_its_requests_and_none_while_idle(app):
    go = anyio.Event()

    async def held(batch: shoal.OpenBatch[int, int]) -> None:
        async for _ in batch.steps():
            await go.wait()
            for request in batch.active:
                request.finish(request.item)

    app.endpoint("/x", name="x", fill="continuous", max_batch_size=4)(held)
    async with app.lifespan(), anyio.create_task_group() as tasks:
        for item in range(3):
            tasks.start_soon(ask, app, "/x", item)
        await settle()

        def figures():
            backend = app.controller.status_now().backends["x"]
            return backend.ongoing, backend.replicas[0].ongoing

        assert figures() == (3, 3)
        go.set()
        await settle()
        assert figures() == (0, 0)
