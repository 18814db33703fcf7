"""The endpoints of a controller, by name and by route; their handles, and the streams of these."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel

from shoal.batching.current import running_batch, time_left
from shoal.core.forming.call_options import CallOptions
from shoal.core.histogram import LEFT, RequestTimes, status_of
from shoal.errors import NameTaken, NoSuchName, ShutDown
from shoal.serving.clients.handles import BridgedHandle, Handle
from shoal.serving.names import check_free, found
from shoal.serving.query import item_without_data, takes_query

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from inspect import Signature

    from shoal.batching.calls.entry import Entry
    from shoal.batching.calls.stream import ResultStream
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.controller.lifetime import Lifetime
    from shoal.serving.endpoint import Endpoint
    from shoal.serving.shadow import PrimaryAnswer
    from shoal.serving.state_records import EndpointRecord


class Endpoints:
    def __init__(self) -> None:
        self.by_name: dict[str, Endpoint] = {}
        self.times = RequestTimes()
        self.version = 0  # changes whenever an endpoint is added or removed
        # names of endpoints to come once a program's backends have started
        self.coming: Sequence[str] = ()

    def find(self, name: str) -> Endpoint:
        try:
            return found("endpoint", name, self.by_name)
        except NoSuchName:
            if name not in self.coming:
                raise
        raise NoSuchName(
            f"the endpoint {name!r} is not there yet: endpoints are created once all backends have "
            "started; keep the handle in the constructor, and call it in the methods"
        )

    def users_of(self, tag: str) -> list[str]:
        """Returns the names of the endpoints that have traffic or shadows to a backend."""
        return [name for name, endpoint in self.by_name.items() if endpoint.uses(tag)]

    def check_free(self, endpoint: EndpointRecord) -> None:
        there = self.by_name.get(endpoint.name)
        if there is not None:
            same = (there.route, set(there.methods)) == (endpoint.route, set(endpoint.methods))
            raise NameTaken(
                f"there is an endpoint {endpoint.name!r} already, with route={there.route!r} and "
                f"methods={list(there.methods)!r}"
                + ("; set its traffic to send it to another backend" if same else "")
            )
        others = [(one.name, one.route, one.methods) for one in self.by_name.values()]
        check_free(endpoint.route, endpoint.methods, others)

    def add(self, endpoint: Endpoint) -> None:
        self.version += 1
        self.by_name[endpoint.name] = endpoint

    def remove(self, endpoint: Endpoint) -> None:
        """Removes an endpoint, and fails the requests that wait for its traffic."""
        self.version += 1
        del self.by_name[endpoint.name]
        endpoint.close(NoSuchName(f"the endpoint {endpoint.name!r} was deleted"))

    def close_unrouted(self) -> None:
        """Fails the requests that wait for traffic, and refuses further ones."""
        for endpoint in self.by_name.values():
            if endpoint.traffic is None:
                endpoint.close(ShutDown("the controller is being shut down"))


@dataclass(frozen=True, eq=False, repr=False)
class EndpointHandle(Handle):
    _lifetime: Lifetime  # decides whether calls are accepted
    _endpoints: Endpoints
    _is_inside: bool = False  # whether code in a replica of the controller uses it
    _metadata: Mapping[str, Any] = field(init=False)  # of each request

    def __post_init__(self) -> None:
        metadata: dict[str, Any] = {"context": "python", "endpoint": self.endpoint}
        options = self.handle_options.changed()
        metadata |= {
            name: options[name] for name in ("method_name", "shard_key", "model") if name in options
        }
        method, headers = self.handle_options.http_method, self.handle_options.http_headers
        if method is not None or headers is not None:
            metadata |= {"method": method or "", "headers": headers or {}}
        object.__setattr__(self, "_metadata", metadata)

    @property
    def sync(self) -> BridgedHandle:
        return BridgedHandle(self, self._lifetime.threads)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        began_at = perf_counter()
        endpoint = self._found()
        endpoint.requests += 1
        answer: PrimaryAnswer | None = None
        status = LEFT
        try:
            method_batcher, entry, item, call_options = await self._routed(
                endpoint, args, kwargs, False
            )
            if endpoint.shadows:
                answer = endpoint.copied(method_batcher, item, self._metadata)
            result = await entry.call(item, call_options)
            if answer is not None:
                answer.value = result
            status = 200
            return result
        except Exception as error:
            endpoint.errors += 1
            status = status_of(error)
            raise
        finally:
            self._endpoints.times.count(endpoint.name, "python", status, perf_counter() - began_at)
            if answer is not None:
                answer.ended.set()

    def stream(self, *args: Any, **kwargs: Any) -> EndpointStream:
        endpoint = self._found()
        begin = partial(self._begin_stream, endpoint, args, kwargs)
        return EndpointStream(endpoint, begin, self._endpoints.times)

    async def _begin_stream(
        self, endpoint: Endpoint, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ResultStream[Any]:
        method_batcher, entry, item, call_options = await self._routed(endpoint, args, kwargs, True)
        stream = entry.begin_stream_of(item, call_options)
        if endpoint.shadows:  # streams are not compared
            endpoint.copied(method_batcher, item, self._metadata).ended.set()
        return stream

    def _found(self) -> Endpoint:
        # After the controller was shut down, only code of running batches may make calls.
        if not self._is_inside and running_batch.get(None) is None:
            self._lifetime.check_open()
        return self._endpoints.find(self.endpoint)

    async def _routed(
        self, endpoint: Endpoint, args: tuple[Any, ...], kwargs: dict[str, Any], stream: bool
    ) -> tuple[MethodBatcher, Entry, Any, CallOptions]:
        chosen, spent_s = self.handle_options, 0.0
        backend = endpoint.backend_for(chosen.shard_key)
        method_batcher = (
            None if backend is None else backend.method_batchers.get(chosen.method_name)
        )
        if method_batcher is None:
            started = anyio.current_time()
            method_batcher = await endpoint.routed(
                chosen.method_name, chosen.shard_key, chosen.timeout_s
            )
            spent_s = anyio.current_time() - started
        batcher = method_batcher.batcher
        if method_batcher.streams is not stream:
            advice = (
                "gives one result; write result = await handle.call(item)"
                if stream
                else "answers by a stream; write\n    async with handle.stream(item) as stream: ..."
            )
            raise TypeError(f"{batcher.name} {advice}")
        entry, item = method_batcher.batcher.find(), None
        if not args:
            item = item_without_data(
                batcher.signature, chosen.http_method, chosen.http_headers, kwargs
            )
        if item is None:
            item = self._item(entry, batcher.signature, args, kwargs)
        if method_batcher.check_arrays is not None:
            item = method_batcher.check_arrays(item)
        return method_batcher, entry, item, self._call_options(spent_s)

    def _item(
        self, entry: Entry, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return entry.item(args, kwargs)
        except TypeError as error:
            if not kwargs or not takes_query(signature):
                raise
            raise TypeError(
                f"{error}; a call has an item, or keyword arguments as query parameters: "
                "put both into one item"
            ) from error

    def _call_options(self, spent_s: float) -> CallOptions:
        timeout_s, priority = time_left(anyio.current_time), self.handle_options.priority
        if self.handle_options.timeout_s is not None:
            own_s = max(0.0, self.handle_options.timeout_s - spent_s)
            timeout_s = own_s if timeout_s is None else min(own_s, timeout_s)
        return CallOptions(timeout_s, self._metadata, priority)


class EndpointStream:
    """The results of one call; it is routed and made on entry, or with the first item."""

    # Exceptions and cancellation are those of `ResultStream`.

    def __init__(
        self,
        endpoint: Endpoint,
        begin: Callable[[], Awaitable[ResultStream[Any]]],
        times: RequestTimes,
    ) -> None:
        self._endpoint = endpoint
        self._begin = begin
        self._times = times
        self._began_at: float | None = None  # until it is counted
        self._stream: ResultStream[Any] | None = None
        self._is_entered = self._is_over = False

    async def __aenter__(self) -> Self:
        if not self._is_over:
            await self._step(enters=True)
            self._is_entered = True
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._is_over:
            raise StopAsyncIteration
        return await self._step()

    def ready(self) -> list[Any]:
        return [] if self._stream is None else self._stream.ready()

    async def aclose(self) -> None:
        self._leave()
        await anyio.lowlevel.checkpoint()

    async def _step(self, *, enters: bool = False) -> Any:
        try:
            if self._stream is None:
                self._endpoint.requests += 1
                self._began_at = perf_counter()
                self._stream = await self._begin()
            return await (self._stream.__aenter__() if enters else self._stream.__anext__())
        except StopAsyncIteration:
            self._end(200)
            raise
        except Exception as error:
            self._endpoint.errors += 1
            self._end(status_of(error))
            raise
        except BaseException:
            if not self._is_entered:  # `__aexit__` will not be called
                self._leave()
            raise

    def _leave(self) -> None:
        self._end(LEFT)
        if self._stream is not None:
            self._stream.leave()

    def _end(self, status: int) -> None:
        self._is_over = True
        if self._began_at is not None:
            took_s, self._began_at = perf_counter() - self._began_at, None
            self._times.count(self._endpoint.name, "python", status, took_s)
