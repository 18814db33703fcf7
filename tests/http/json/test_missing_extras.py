"""What a server without the extra ``bodies`` says to its operator, and to clients that need it."""

import pytest

import shoal
from shoal.testing.asgi import ask

pytestmark = pytest.mark.one_loop


async def sizes(items: list[bytes], names: list[str]) -> list[int]:
    return [len(item) for item in items]


@pytest.mark.parametrize("kind", ["application/msgpack", "application/x-msgpack"])
async def test_a_body_that_needs_the_extra_is_refused_by_its_name(monkeypatch, kind):
    monkeypatch.setattr("shoal.http.json.payload.has_msgpack", lambda: False)
    app = shoal.App()
    app.endpoint("/sizes")(sizes)
    async with app.lifespan():
        answer = await ask(app, "/sizes", body=b"x", headers=[("content-type", kind)])
        other = await ask(app, "/sizes", body=b"x", headers=[("content-type", "text/plain")])
        good = await ask(app, "/sizes", {"items": "ab", "names": "x"})
    assert answer.status == other.status == 415
    assert "pip install 'shoal[bodies]'" in answer.json()["detail"]
    assert "shoal[bodies]" not in other.json()["detail"]
    assert (good.status, good.json()) == (200, 2)
