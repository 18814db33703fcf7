"""Equal requests over HTTP that share one call of the code, and cached results."""

import itertools

from held_app import counted, served
from sharing_app import CACHE, Slow, asked_together

import shoal
from shoal.testing import settle
from shoal.testing.asgi import ask


async def test_a_cached_result_is_answered_though_the_key_function_changes_its_mind():
    asked = itertools.count(1)
    items: list[int] = []
    app = shoal.App()

    def every_second(_item: int) -> object:
        nth = next(asked)
        return "kept" if nth % 2 == 0 else nth

    @app.endpoint("/same", dedupe=every_second, cache=CACHE)
    async def same(given: list[int]) -> list[int]:
        items.extend(given)
        return given

    async with served(app) as server:
        client = server.connect()
        for _ in range(4):
            client.ask("/same", 1)
            await settle()
        assert client.statuses == [200] * 4
        assert server.counts() == (4, 4)
    assert len(items) == 3


async def test_a_cached_result_that_can_not_be_written_fails_once_and_its_client_may_leave():
    app = shoal.App()

    @app.endpoint("/fail", name="fail", cache=CACHE)
    async def fail(items: list[int]) -> list[object]:
        return [object() for _ in items]

    async with served(app) as server:
        client, gone = server.connect(), server.connect()
        for _ in range(2):
            client.ask("/fail", 1)
            await settle()
        gone.ask("/fail", 1)
        gone.leave()  # before its call has begun
        await settle()
        assert client.statuses == [500, 500]
        assert gone.releases == 1
        assert server.counts() == (2, 2)
        assert counted(app, "fail") == (2, 2)


async def test_path_parameters_are_part_of_a_request():
    slow = Slow(dedupe=True)
    async with slow.app.lifespan():
        await asked_together(slow.app, ("/of/a", 1, {}), ("/of/b", 1, {}), ("/of/a", 1, {}))
    assert slow.items == [1, 1]


async def test_hits_are_counted():
    slow = Slow(cache=CACHE)
    async with slow.app.lifespan():
        request = ("/unary", {"value": 3}, {})
        await asked_together(slow.app, request, request)
        await asked_together(slow.app, request)
        metrics = (await ask(slow.app, "/-/metrics", method="GET")).body.decode()
    assert 'shoal_shared_requests_total{backend="unary",method="__call__"} 1.0' in metrics
    assert 'shoal_cache_hits_total{backend="unary",method="__call__"} 1.0' in metrics
    assert (
        'shoal_requests_total{backend="unary",method="__call__",outcome="finished"} 3.0' in metrics
    )
