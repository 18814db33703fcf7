"""The results of a call that a handle makes and that is answered by a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import anyio.lowlevel

from shoal.serving.asking import routed

if TYPE_CHECKING:
    from shoal.batching.stream import ResultStream
    from shoal.serving.asking import Asked
    from shoal.serving.endpoint import Endpoint
    from shoal.serving.shadow import Answer


class EndpointStream:
    """The results of one call that is answered by a stream.

    The call is routed and made when it is entered, or with the first item. Its raises, and what
    cancelling it does, are those of `ResultStream`.

    Args:
        endpoint: The endpoint.
        asked: What the call asks for.
        args: Its positional arguments.
        kwargs: Those by name.
    """

    def __init__(
        self, endpoint: Endpoint, asked: Asked, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._endpoint = endpoint
        self._asked = asked
        self._args = args
        self._kwargs = kwargs
        self._stream: ResultStream[Any] | None = None
        self._answer: Answer | None = None
        self._items: list[Any] = []
        self._is_over = False

    async def __aenter__(self) -> Self:
        if not self._is_over:
            stream = self._stream or await self._routed()
            try:
                await stream.__aenter__()
            except Exception:
                self._fail()
                raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._is_over:
            raise StopAsyncIteration
        stream = self._stream or await self._routed()
        try:
            item = await stream.__anext__()
        except StopAsyncIteration:
            if self._answer is not None:
                self._answer.set(self._items)
            self._is_over = True
            raise
        except Exception:
            self._fail()
            raise
        if self._answer is not None:
            self._items.append(item)
        return item

    async def aclose(self) -> None:
        """Leaves the stream. Idempotent; a checkpoint."""
        self._leave()
        await anyio.lowlevel.checkpoint()

    def _leave(self) -> None:
        self._is_over = True
        if self._stream is not None:
            self._stream.leave()
        if self._answer is not None:
            self._answer.end()

    def _fail(self) -> None:
        self._endpoint.errors += 1
        self._is_over = True
        if self._answer is not None:
            self._answer.end()

    async def _routed(self) -> ResultStream[Any]:
        endpoint, asked = self._endpoint, self._asked
        endpoint.requests += 1
        try:
            line, spent_s = await routed(endpoint, asked)
            if not line.streams:
                raise TypeError(
                    f"{line.batcher.name} gives one result; write result = await handle.call(item)"
                )
            entry = line.entry()
            item = entry.item(self._args, self._kwargs)
            if endpoint.shadows:
                self._answer = endpoint.copied(line, item)
            self._stream = entry.begin_stream_of(item, asked.wishes(spent_s))
            return self._stream
        except Exception:
            self._fail()
            raise
