"""The usual shapes of Ray Serve 2.x's batching: classes that batch by methods of their own."""

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

import shoal

FOUR: Any = {"max_batch_size": 4, "batch_wait_timeout_s": None}


class CallsBatched:
    """``__call__`` takes one, and awaits a batched method."""

    async def __call__(self, number: int) -> list[Any]:
        return await self.handle_batch(number)

    @shoal.batch(**FOUR)
    async def handle_batch(self, numbers: list[int]) -> list[list[Any]]:
        return [[2 * number, len(numbers)] for number in numbers]


class BatchedCall:
    """``__call__`` itself is batched."""

    @shoal.batch(**FOUR)
    async def __call__(self, numbers: list[int]) -> list[list[Any]]:
        return [[2 * number, len(numbers)] for number in numbers]


class Preprocessing:
    """Prepares one item before its batch, and finishes it after."""

    def __init__(self, scale: int = 1) -> None:
        self.scale = scale

    async def __call__(self, text: str) -> dict[str, Any]:
        number, size = await self.model(int(text.strip()))
        return {"text": text, "scaled": self.scale * number, "size": size}

    @shoal.batch(**FOUR)
    def model(self, numbers: list[int]) -> list[tuple[int, int]]:
        return [(2 * number, len(numbers)) for number in numbers]


class TakesRequest:
    """``__call__`` takes an HTTP request."""

    async def __call__(self, request: Request) -> list[Any]:
        number = int(request.query_params["number"])
        return [*await self.handle_batch(number), request.method, (await request.body()).decode()]

    @shoal.batch(**FOUR)
    async def handle_batch(self, numbers: list[int]) -> list[list[Any]]:
        return [[2 * number, len(numbers)] for number in numbers]


class TwoMethods:
    """Two batched methods, which ``__call__`` awaits one after the other."""

    @shoal.batch(**FOUR)
    async def embed(self, texts: list[str]) -> list[list[int]]:
        return [[len(text), len(texts)] for text in texts]

    @shoal.batch(**FOUR)
    async def classify(self, sizes: list[int]) -> list[list[Any]]:
        return [["long" if size > 2 else "short", len(sizes)] for size in sizes]

    async def __call__(self, request: Request) -> list[Any]:
        size, together = await self.embed((await request.body()).decode())
        return [together, *await self.classify(size)]


class Reconfigured:
    """Takes the options of its batches from the user config."""

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        self.handle_batch.set_max_batch_size(user_config["max_batch_size"])
        self.handle_batch.set_batch_wait_timeout_s(user_config["batch_wait_timeout_s"])

    @shoal.batch
    async def handle_batch(self, numbers: list[int]) -> list[list[int]]:
        return [[2 * number, len(numbers)] for number in numbers]

    async def __call__(self, number: int) -> list[int]:
        return await self.handle_batch(number)


class StreamingResponses:
    """Answers by a response that streams."""

    async def __call__(self, request: Request) -> StreamingResponse:
        return StreamingResponse(self.letters())

    async def letters(self) -> AsyncIterator[str]:
        yield "a"


class Streams:
    """Gives the steps of a batched generator on."""

    async def __call__(self, text: str) -> AsyncIterator[str]:
        async with self.spelled(text) as letters:
            async for letter in letters:
                yield letter

    @shoal.batch(**FOUR)
    async def spelled(self, texts: list[str]) -> AsyncIterator[list[Any]]:
        for place in range(max(map(len, texts))):
            yield [
                f"{text[place]}{len(texts)}" if place < len(text) else shoal.END for text in texts
            ]


class BatchedStream:
    """``__call__`` itself is a batched generator."""

    @shoal.batch(**FOUR)
    async def __call__(self, texts: list[str]) -> AsyncIterator[list[Any]]:
        for place in range(max(map(len, texts))):
            yield [
                f"{text[place]}{len(texts)}" if place < len(text) else shoal.END for text in texts
            ]


class CallsFunction:
    """Awaits a batched function of its module."""

    async def __call__(self, number: int) -> list[Any]:
        return await doubled(number)


@shoal.batch(**FOUR)
async def doubled(numbers: list[int]) -> list[list[Any]]:
    return [[2 * number, len(numbers)] for number in numbers]


class Tagged:
    """Says in which replica its batches run."""

    async def __call__(self, number: int) -> list[Any]:
        return await self.handle_batch(number)

    @shoal.batch(**FOUR)
    async def handle_batch(self, numbers: list[int]) -> list[list[Any]]:
        return [[shoal.current_replica_tag(), len(numbers)] for _ in numbers]


class Quick:
    """Waits for nobody."""

    async def __call__(self, number: int) -> int:
        return await self.handle_batch(number)

    @shoal.batch(max_batch_size=4)
    async def handle_batch(self, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]


async def read_request(request: Request) -> list[Any]:
    """Reads all that a request has."""
    assert request.client is not None
    return [
        request.method,
        request.url.path,
        request.query_params.getlist("a"),
        request.headers["x-kind"],
        await request.json(),
        request.client.host,
    ]


async def reach(request: Request) -> Any:
    """Asks a request for what does not cross, by the names that it is sent."""
    said = {}
    for name in await request.json():
        try:
            said[name] = repr(getattr(request, name))
        except RuntimeError as error:
            said[name] = str(error)
    return said
