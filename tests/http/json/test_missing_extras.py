"""What a server without the extra ``bodies`` says to its operator, and to clients that need it."""

import pytest

import shoal
from shoal.testing.asgi import ask

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

PAYLOAD = "shoal.http.json.payload"


async def sizes(items: list[bytes], names: list[str]) -> list[int]:
    return [len(item) for item in items]


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.setattr(f"{PAYLOAD}.has_msgpack", lambda: False)


@pytest.mark.parametrize(
    "headers",
    [
        [("content-type", "application/msgpack")],
        [("content-type", "application/x-msgpack")],
    ],
)
async def test_a_body_that_needs_the_extra_is_refused_by_its_name(bare, headers):
    app = shoal.App()
    app.endpoint("/sizes")(sizes)
    async with app.lifespan():
        answer = await ask(app, "/sizes", body=b"x", headers=headers)
        other = await ask(app, "/sizes", body=b"x", headers=[("content-type", "text/plain")])
        good = await ask(app, "/sizes", {"items": "ab", "names": "x"})
    assert answer.status == other.status == 415
    assert "pip install 'shoal[bodies]'" in answer.json()["detail"]
    assert "shoal[bodies]" not in other.json()["detail"]
    assert (good.status, good.json()) == (200, 2)
