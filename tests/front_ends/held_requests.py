"""Requests to a held handler, and their answers."""

import json
from contextlib import AsyncExitStack, asynccontextmanager

from live_server import read_until, request


def held_request(path="/held", body=b"7", headers=()):
    return request(path, method="POST", body=body, headers=headers)


@asynccontextmanager
async def asking(server, count, sent=None):
    """So many clients, each of which has sent a request."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await server.connect()) for _ in range(count)]
        for client in clients:
            await client.send_all(held_request() if sent is None else sent)
        yield clients


async def read_answer(client):
    received = await read_until(client, b"\r\n\r\n")
    head, _, body = received.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split()[0])
    while len(body) < size:
        body += await client.receive_some()
    return int(head.split()[1]), json.loads(body)
