"""Requests on one WebSocket, and a stream that is cancelled, with the package `httpx-ws`.

It runs on trio and asyncio. Start a server with ``shoal serve examples.browser.app:app``, then run
``python examples/websocket/with_httpx_ws.py http://127.0.0.1:8000``.
"""

import sys

import anyio
import httpx
from httpx_ws import AsyncWebSocketSession, aconnect_ws


async def main(url: str) -> None:
    socket: AsyncWebSocketSession
    async with httpx.AsyncClient(base_url=url) as client:
        async with aconnect_ws("/square", client, subprotocols=["shoal.v1"]) as socket:
            await socket.send_json({"id": 1, "item": 3})
            await socket.send_json({"id": 2, "item": "three"})
            for _ in range(2):
                message = await socket.receive_json()
                failed = message.get("error")
                print(message["id"], failed["title"] if failed else message["result"])
        async with aconnect_ws("/count", client, subprotocols=["shoal.v1"]) as socket:
            await socket.send_json({"id": 1, "item": 1_000_000})
            while "next" in (message := await socket.receive_json()):
                if message["next"] == 3:
                    await socket.send_json({"id": 1, "cancel": True})
            print(message["error"]["title"])


anyio.run(main, sys.argv[1], backend="trio")
