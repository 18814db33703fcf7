"""Many requests on one WebSocket, and a stream, with the package `websockets`.

Start a server with ``shoal serve examples.browser.app:app``, then run
``python examples/websocket/with_websockets.py ws://127.0.0.1:8000``.
"""

import asyncio
import json
import sys

from websockets import Subprotocol
from websockets.asyncio.client import connect

SHOAL = Subprotocol("shoal.v1")


async def squares(url: str, numbers: list[int]) -> dict[int, int]:
    """Squares numbers at once; the results come in the order in which they end."""
    async with connect(f"{url}/square", subprotocols=[SHOAL]) as socket:
        for number in numbers:
            await socket.send(json.dumps({"id": number, "item": number}))
        found: dict[int, int] = {}
        for _ in numbers:
            message = json.loads(await socket.recv())
            if "error" in message:
                raise RuntimeError(message["error"]["title"])
            found[message["id"]] = message["result"]
        return found


async def count(url: str, number: int) -> None:
    """Prints a stream, which the server ends with a message of its own."""
    async with connect(f"{url}/count", subprotocols=[SHOAL]) as socket:
        await socket.send(json.dumps({"id": "count", "item": number}))
        while "next" in (message := json.loads(await socket.recv())):
            print(message["next"])
        if "error" in message:
            raise RuntimeError(message["error"]["title"])


async def main(url: str) -> None:
    print(sorted((await squares(url, [3, 4, 5])).items()))
    await count(url, 3)


asyncio.run(main(sys.argv[1]))
