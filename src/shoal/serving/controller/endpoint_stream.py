"""The stream of results of a handle's call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import anyio.lowlevel

from shoal.core.forming.call_options import CallOptions
from shoal.serving.clients.handle_options import routed
from shoal.serving.endpoints.compared_stream import ComparedStream

if TYPE_CHECKING:
    from shoal.batching.calls.stream import ResultStream
    from shoal.serving.clients.handle_options import HandleOptions
    from shoal.serving.endpoints.endpoint import Endpoint


class EndpointStream:
    """The results of one call that is answered by a stream.

    The call is routed and made when the stream is entered, or with the first item. Exceptions and
    cancellation are those of `ResultStream`.

    Args:
        endpoint: The endpoint.
        handle_options: The options of the call.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        handle_options: HandleOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._endpoint = endpoint
        self._handle_options = handle_options
        self._args = args
        self._kwargs = kwargs
        self._stream: ResultStream[Any] | ComparedStream | None = None
        self._is_entered = self._is_over = False

    async def __aenter__(self) -> Self:
        if not self._is_over:
            stream = self._stream or await self._routed()
            self._is_entered = True
            try:
                await stream.__aenter__()
            except Exception:
                self._fail()
                raise
            except BaseException:
                self._leave()  # since __aexit__ will not be called
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
            return await stream.__anext__()
        except StopAsyncIteration:
            self._is_over = True
            raise
        except Exception:
            self._fail()
            raise
        except BaseException:
            if not self._is_entered:
                self._leave()
            raise

    async def aclose(self) -> None:
        """Leaves the stream. Idempotent; a checkpoint."""
        self._leave()
        await anyio.lowlevel.checkpoint()

    def _leave(self) -> None:
        self._is_over = True
        if self._stream is not None:
            self._stream.leave()

    def _fail(self) -> None:
        self._endpoint.errors += 1
        self._is_over = True

    async def _routed(self) -> ResultStream[Any] | ComparedStream:
        endpoint, handle_options = self._endpoint, self._handle_options
        endpoint.requests += 1
        try:
            method_batcher, spent_s = await routed(endpoint, handle_options)
            if not method_batcher.streams:
                raise TypeError(
                    f"{method_batcher.batcher.name} gives one result; "
                    "write result = await handle.call(item)"
                )
            entry = method_batcher.entry()
            if self._args or self._kwargs:
                item = entry.item(self._args, self._kwargs)
            else:
                item = handle_options.item_without_data(method_batcher, entry)
            metadata = handle_options.metadata(endpoint.name)
            call_options = handle_options.call_options(metadata, spent_s) or CallOptions(
                metadata=metadata
            )
            stream = entry.begin_stream_of(item, call_options)
            answer = endpoint.copied(method_batcher, item, metadata) if endpoint.shadows else None
            self._stream = stream if answer is None else ComparedStream(stream, answer)
            return self._stream
        except Exception:
            self._fail()
            raise
