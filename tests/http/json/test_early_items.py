"""Items that a front end has decoded, for a backend that needs another decoder."""

from shoal.asgi.extensions import DECODED
from shoal.testing.asgi import Call


async def one(items: list[int]) -> list[str]:
    return [f"one {item}" for item in items]


async def two(items: list[int]) -> list[str]:
    return [f"two {item}" for item in items]


async def test_the_traffic_may_move_while_the_body_is_fetched(app):
    app.backend("one", one)
    app.route("m", backend="one", path="/m")

    class Fetching(Call):
        async def _receive(self):
            controller = app.controller
            if "two" not in controller.backends:
                await controller.create_backend("two", two)
                await controller.set_traffic("m", {"two": 1.0})
                await controller.delete_backend("one")
            return await super()._receive()

    async with app.lifespan():
        call = Fetching(app, "/m", item=1)
        decoders = []
        call.scope["extensions"] = {
            DECODED: {
                "receive": call._receive,
                "send": call._send,
                "decoded": (999, 2),
                "teach": lambda number, description: decoders.append(number),
            }
        }
        await call.run()
        assert (call.status, call.answer.json()) == (200, "two 1")
        assert decoders[0] == 0  # the old one is removed
        assert app.controller.endpoints["m"].requests == 1
