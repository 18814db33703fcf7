"""A stream that collects its items, to compare them with a shadow's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from shoal.batching.calls.stream import ResultStream
    from shoal.serving.endpoints.shadow import PrimaryAnswer


class ComparedStream:
    def __init__(self, stream: ResultStream[Any], answer: PrimaryAnswer) -> None:
        self._stream = stream
        self._answer = answer  # ended without a value if the stream does not complete
        self._items: list[Any] = []

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            item = await self._stream.__anext__()
        except StopAsyncIteration:
            self._answer.set(self._items)
            raise
        except Exception:
            self._answer.end()
            raise
        self._items.append(item)
        return item

    def ready(self) -> list[Any]:
        items = self._stream.ready()
        self._items += items
        return items

    async def aclose(self) -> None:
        self.leave()
        await self._stream.aclose()

    def leave(self) -> None:
        """Leaves the stream without a checkpoint, for code that can't wait."""
        self._stream.leave()
        self._answer.end()
