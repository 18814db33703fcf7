"""Requests to an App that its server calls directly: however a client writes and sends them."""

from functools import partial

import pytest
from held_app import served
from server_in_memory import asked, serving

import shoal
from shoal.http.app.admin_mount import AppAdmin
from shoal.testing import settle

FLOOD = 500


def taking_all_paths(**options):
    app = shoal.App(**options)

    @app.endpoint("/{any:path}", name="any", methods=("GET", "POST"))
    async def take(items: list[bytes]) -> list[str]:
        return ["taken"] * len(items)

    return app


OF_ADMINS = [
    *("/-/api/status", "/-/api%2fstatus", "/%2d/api/status", "/-/%61pi/status", "/-%2Fapi/status"),
    *("/-/api/../api/status", "http://shoal.test/-/api/status"),
]
NOWHERE = ["/-/api", "/-/API/status", "/-/./api/status", "/-//api/status"]
OF_ENDPOINTS = ["//-/api/status", "/./-/api/status", "/a/../-/api/status"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_admin_api_wants_its_token_however_its_path_is_written(method):
    app = taking_all_paths()
    async with app.lifespan(), serving(AppAdmin(app, token="x" * 32, allowed_modules=())) as server:
        for status, targets in ((401, OF_ADMINS), (404, NOWHERE), (200, OF_ENDPOINTS)):
            for target in targets:
                client = await server.ask(target, method=method)
                assert (target, client.statuses) == (target, [status])


@pytest.mark.parametrize(
    ("request_of_flood", "status"),
    [
        (asked("/same", 1), 200),
        (asked("/same", "no number"), 422),
        (asked("/nowhere"), 404),
        (asked("/same", method="PUT"), 405),
        (asked("/same", method="OPTIONS"), 204),
        (asked("/cached", 1), 200),
    ],
    ids=["batched", "refused", "not found", "not allowed", "options", "cached"],
)
async def test_a_client_that_pipelines_is_answered_and_delays_nobody(request_of_flood, status):
    app = shoal.App()

    async def same(items: list[int]) -> list[int]:
        return items

    app.endpoint("/same", name="same")(same)
    app.endpoint("/cached", name="cached", cache=shoal.Cache(max_size=9, ttl_s=60))(same)
    async with served(app) as server:
        first, early, flood, late = (server.connect() for _ in range(4))
        first.ask("/cached", 1)
        await settle()
        answers_before = []

        def note(send, data):
            answers_before.append(flood.wire.sent.count(b"HTTP/1.1 "))
            return send(data)

        for other in (early, late):
            other.wire.send = partial(note, other.wire.send)
        early.ask("/cached", 1)
        flood.say(request_of_flood * FLOOD)
        late.ask("/cached", 1)
        while server.counts() != (FLOOD + 3, FLOOD + 3):
            await settle()
        assert [early.answers, late.answers] == [[(200, b"1")]] * 2
        assert max(answers_before) <= 1
        assert flood.wire.sent.count(b"HTTP/1.1 %d " % status) == FLOOD
