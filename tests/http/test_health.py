"""What an operator asks an application: its figures, and where they stay bounded."""

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

import shoal
from handlers import double
from serving.scenes import Stage
from shoal.core.histogram import NO_ENDPOINT, TIME_BOUNDS_S
from shoal.errors import ReplicaNotStarted
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling

CALL = "__call__"
BOUNDS = [*map(str, TIME_BOUNDS_S), "+Inf"]


def samples_of(text):
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


async def scrape(app):
    answer = await ask(app, "/-/metrics", method="GET")
    assert answer.status == 200
    return answer


@pytest.fixture
def app():
    app = shoal.App()
    app.endpoint("/x", name="x", max_batch_size=1, max_queued_requests=1)(double)
    return app


async def test_an_app_is_scraped(app):
    async with app.lifespan():
        await ask(app, "/x", 1)
        await ask(app, "/x", "no number")
        await ask(app, "/nowhere", 1)
        await ask(app, "/x", 1, method="PUT")
        answer = await scrape(app)
    assert answer.headers["content-type"].startswith("text/plain")
    samples = samples_of(answer.body.decode())
    assert samples["shoal_request_seconds_count", "json", "ok", "x"] == 1
    assert samples["shoal_request_seconds_count", "invalid", "json", "x"] == 1
    assert samples["shoal_request_seconds_count", NO_ENDPOINT, "invalid", "other"] == 2
    assert samples["shoal_requests_total", CALL, "finished", "x"] == 1


async def test_an_app_that_is_not_open_can_be_scraped_and_one_that_closed_is_down(app):
    assert "shoal_batcher_up{" not in (await scrape(app)).body.decode()
    async with app.lifespan():
        assert samples_of((await scrape(app)).body.decode())["shoal_batcher_up", CALL, "x"] == 1
    assert samples_of((await scrape(app)).body.decode())["shoal_batcher_up", CALL, "x"] == 0


async def test_how_requests_ended_is_told_apart():
    go = anyio.Event()

    async def held(items: list[int]) -> list[int]:
        await go.wait()
        if items == [0]:
            raise ValueError
        return items

    app = shoal.App()
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
        samples = samples_of((await scrape(app)).body.decode())
        assert samples["shoal_queued_requests", CALL, "x"] == 1
        assert samples["shoal_running_requests", CALL, "x"] == 1
        go.set()
        await late.returned.wait()
        samples = samples_of((await scrape(app)).body.decode())
    ended = {
        outcome: samples["shoal_requests_total", CALL, outcome, "x"]
        for outcome in ("cancelled", "expired", "failed", "finished", "rejected")
    }
    assert ended == {"cancelled": 1, "expired": 0, "failed": 1, "finished": 1, "rejected": 1}
    counted = {"failed": 1, "left": 1, "ok": 1, "unavailable": 1}
    for outcome, count in counted.items():
        key = sorted(("json", outcome, "x"))
        assert samples["shoal_request_seconds_count", *key] == count


async def test_what_callers_send_makes_no_new_series(app):
    async with app.lifespan():
        await ask(app, "/x", 1)
        await ask(app, "/nowhere", 1)
        await ask(app, "/x", 1, method="PUT")
        await ask(app, "/x", 1, headers=[("x-serve-call-method", "none")])
        before = set(samples_of((await scrape(app)).body.decode()))
        for number in range(50):
            name = f"n{number}"
            await ask(app, f"/{name}", 1, method=name, headers=[("x-request-id", name)])
            headers = [("x-request-id", name), ("x-serve-shard-key", name), (name, name)]
            await ask(app, "/x", number, headers=headers)
            await ask(app, "/x", number, headers=[*headers, ("x-serve-call-method", name)])
        after = set(samples_of((await scrape(app)).body.decode()))
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
async def test_liveness_ignores_that_ray_was_lost_where_nothing_needs_it(config):
    stage, is_back = Stage(), False

    async def start(_):
        if not is_back or stage.alive:
            raise ReplicaNotStarted("no Ray", needs_restart=True)

    async def alive():
        return (await ask(app, "/-/healthz", method="GET")).status

    app = shoal.App()
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
