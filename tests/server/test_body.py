"""A body is bounded in bytes and in pieces, while it is read."""

import pytest

import shoal
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling


def measuring(**settings):
    app = shoal.App(**settings)

    @app.endpoint("/length")
    async def length(bodies: list[bytes]) -> list[int]:
        return [len(body) for body in bodies]

    return app


@pytest.fixture
def app():
    return measuring(max_body_bytes=10_000)


async def test_a_body_of_just_the_limit_is_read(app):
    async with app.lifespan():
        assert (await ask(app, "/length", body=b"x" * 10_000)).json() == 10_000


async def test_pieces_are_joined(app):
    call = Call(app, "/length", whole=False, body=b"12")
    call.give(b"", more=True)
    call.give(b"345", more=True)
    call.give(b"", more=False)
    async with app.lifespan():
        await call.run()
    assert call.answer.json() == 5


async def test_a_large_content_length_is_refused_before_anything_is_read(app):
    call = Call(app, "/length", whole=False, headers=[("content-length", "10001")])
    async with app.lifespan():
        await call.run()
    assert call.answer.status == 413
    assert not call.is_listening


@pytest.mark.parametrize("length", ["-1", "rubbish", "²", "9" * 5000])
async def test_a_strange_content_length_does_no_harm(app, length):
    async with app.lifespan():
        answer = await ask(app, "/length", body=b"12", headers=[("content-length", length)])
    assert answer.status in (200, 413)


async def test_a_body_that_grows_too_large_is_refused_while_it_is_read(app):
    call = Call(app, "/length", whole=False, body=b"x" * 10_000)
    async with app.lifespan(), calling(call):
        await settle()
        assert call.sent == []
        call.give(b"x", more=True)
        await call.returned.wait()
    assert call.answer.status == 413
    assert call.answer.json()["type"] == "urn:shoal:problem:body-too-large"


async def test_a_body_byte_by_byte_is_refused(app):
    call = Call(app, "/length", whole=False)
    for _ in range(1100):
        call.give(b"x", more=True)
    async with app.lifespan():
        await call.run()
    assert call.answer.status == 413
    assert call.answer.json()["type"] == "urn:shoal:problem:body-too-fragmented"


async def test_a_large_body_in_packets_is_read():
    app = measuring()
    call = Call(app, "/length", whole=False)
    for _ in range(4000):
        call.give(b"x" * 1400, more=True)
    call.give(b"", more=False)
    async with app.lifespan():
        await call.run()
    assert call.answer.json() == 4000 * 1400


@pytest.fixture
def narrow():
    return measuring(max_body_bytes=100, max_incomplete_bytes=200)


def incomplete(app, client, size=80):
    call = Call(app, "/length", whole=False, body=b"x" * size)
    call.scope["client"] = client
    return call


async def test_incomplete_bodies_are_bounded_for_all_clients_together(narrow):
    held = [incomplete(narrow, ("10.0.0.1", port)) for port in (1, 2)]
    late = incomplete(narrow, ("10.0.0.1", 3))
    async with narrow.lifespan(), calling(*held):
        await settle()
        await late.run()
        for call in held:
            call.give(b"y", more=False)
            await call.returned.wait()
    assert late.answer.status == 503
    assert late.answer.json()["type"] == "urn:shoal:problem:too-many-incomplete-bodies"
    assert dict(late.answer.headers)["retry-after"] == "1"
    assert [call.answer.json() for call in held] == [81, 81]


async def test_incomplete_bodies_are_bounded_for_one_connection(narrow):
    held = incomplete(narrow, ("10.0.0.1", 1))
    late, other = incomplete(narrow, ("10.0.0.1", 1)), incomplete(narrow, ("10.0.0.1", 2))
    async with narrow.lifespan(), calling(held, other):
        await settle()
        await late.run()
        for call in (held, other):
            call.give(b"y", more=False)
            await call.returned.wait()
    assert [held.answer.json(), late.answer.status, other.answer.json()] == [81, 503, 81]


async def test_bodies_that_are_complete_or_dropped_do_not_count(narrow):
    async with narrow.lifespan():
        for _ in range(10):
            assert (await ask(narrow, "/length", body=b"x" * 80)).json() == 80
            too_large = incomplete(narrow, ("10.0.0.1", 1), size=101)
            await too_large.run()
            assert too_large.answer.status == 413
