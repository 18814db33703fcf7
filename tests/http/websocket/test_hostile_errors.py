"""Errors of the user's code whose own code raises, over WebSocket."""

import pytest
from starlette.exceptions import HTTPException

from base_exceptions import Panic
from socket_in_memory import opened


def refusal(kind, name):
    def get(_):
        raise kind

    attribute = property(get, lambda *_: None)
    return type("Refusal", (HTTPException,), {name: attribute})(404)


@pytest.mark.parametrize("name", ["detail", "status_code", "headers"])
@pytest.mark.parametrize("kind", [Panic, SystemExit, ValueError])
async def test_an_error_that_can_not_be_described_fails_only_its_request(kind, name, app):
    async def handler(items: list[int]) -> list:
        return [refusal(kind, name) if item == 1 else item for item in items]

    app.endpoint("/m", name="m")(handler)
    async with app.lifespan(), opened(app, "/m") as socket:
        socket.say(id=1, item=1)
        answer = await socket.read()
        assert (answer["id"], answer["error"]["status"]) == (1, 500)
        socket.say(id=2, item=2)
        assert (await socket.read())["result"] == 2
