"""The handle of an endpoint in this process: `Handle` of the client's protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from shoal.batching.current import running_batch
from shoal.core.request import shared_options
from shoal.serving.clients.child_handle import handle_again
from shoal.serving.clients.handle_options import HandleOptions, Optioned, routed
from shoal.serving.clients.sync import SyncHandleFace
from shoal.serving.controller.endpoint_stream import EndpointStream

if TYPE_CHECKING:
    from shoal.serving.controller.endpoints import Endpoints
    from shoal.serving.controller.lifetime import Lifetime
    from shoal.serving.endpoints.endpoint import Endpoint
    from shoal.serving.endpoints.shadow import PrimaryAnswer


class EndpointHandle(Optioned):
    """Calls one endpoint of a controller in this process.

    Args:
        lifetime: The controller's lifetime, which decides whether calls are accepted.
        endpoints: The controller's endpoints.
        endpoint: The name of the endpoint to call.
        handle_options: The options of the calls.
        is_inside: Whether it is used by code in a replica of the controller.
    """

    def __init__(
        self,
        lifetime: Lifetime,
        endpoints: Endpoints,
        endpoint: str,
        handle_options: HandleOptions | None = None,
        *,
        is_inside: bool = False,
    ) -> None:
        self._lifetime = lifetime
        self._endpoints = endpoints
        self._endpoint = endpoint
        self._handle_options = handle_options or HandleOptions()
        self._metadata = self._handle_options.metadata(endpoint)
        self._shared = shared_options(self._metadata)
        self._is_inside = is_inside

    @property
    def endpoint(self) -> str:
        """The endpoint's name."""
        return self._endpoint

    @property
    def sync(self) -> SyncHandleFace:
        """A handle with blocking calls, for threads."""
        return SyncHandleFace(self, self._lifetime.threads)

    def _optioned(self, given: dict[str, Any]) -> Self:
        handle_options = self._handle_options.with_changes(given)
        return type(self)(
            self._lifetime,
            self._endpoints,
            self._endpoint,
            handle_options,
            is_inside=self._is_inside,
        )

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.call`."""
        endpoint = self._found()
        endpoint.requests += 1
        answer: PrimaryAnswer | None = None
        try:
            method_batcher, spent_s = await routed(endpoint, self._handle_options)
            if method_batcher.streams:
                raise TypeError(
                    f"{method_batcher.batcher.name} answers by a stream; write\n"
                    "    async with handle.stream(item) as stream: ..."
                )
            entry = method_batcher.entry()
            if args or kwargs:
                item = entry.item(args, kwargs)
            else:
                item = self._handle_options.item_without_data(method_batcher, entry)
            call_options = self._handle_options.call_options(self._metadata, spent_s)
            if call_options is None:
                call = entry.begin_shared(item, self._shared)
            else:
                call = entry.begin_item(item, call_options)
            if endpoint.shadows:
                answer = endpoint.copied(method_batcher, item, self._metadata)
            result = await call
            if answer is not None:
                answer.set(result)
            return result
        except Exception:
            endpoint.errors += 1
            raise
        finally:
            if answer is not None:
                answer.end()

    def stream(self, *args: Any, **kwargs: Any) -> EndpointStream:
        """See `Handle.stream`."""
        endpoint = self._found()
        return EndpointStream(endpoint, self._handle_options, args, kwargs)

    def _found(self) -> Endpoint:
        """Returns the endpoint.

        After the controller was shut down, only code of batches that still run may make calls.
        """
        if not self._is_inside and running_batch.get(None) is None:
            self._lifetime.check_open()
        return self._endpoints.find(self._endpoint)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled in a replica's process, it makes its calls through this process.
        return handle_again, (self._endpoint, vars(self._handle_options))

    def __repr__(self) -> str:
        return f"<Handle of the endpoint {self._endpoint!r}>"
