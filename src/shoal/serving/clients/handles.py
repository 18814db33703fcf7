"""The handles of endpoints, awaited and blocking.

In a replica's process a handle sends its calls to the controller's process. A handle that is passed
to a replica, as an init arg or in an item, is unpickled as one of these.

A handle for a parameter that is annotated with `Handle` is made before the endpoint exists, and
before it is known where the code runs. So each call looks up the controller's own handle.

Methods as Ray Serve spells them (``handle.method``, ``result()``) raise errors that show what to
write instead.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self, TypeVar, Unpack

from shoal.batching.calls.groups import Outcome, all_results
from shoal.batching.calls.mapping import (
    DelegatingCoroutine,
    Items,
    MapCall,
    MapKeywords,
    map_blocking,
)
from shoal.batching.calls.progress import checked_progress, reporter
from shoal.batching.calls.window import MapPlan
from shoal.batching.current import time_left
from shoal.errors import ShutDown
from shoal.replicas.code.definition import makes_handles
from shoal.replicas.code.endpoint_call import CallOut, HandleKeywords, HandleOptions, parent_channel
from shoal.replicas.portal import Bridge, blocking_stream

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Coroutine,
        Generator,
        Iterable,
        Sequence,
    )

    from shoal.batching.calls.stream import ResultIterator
    from shoal.batching.calls.threads import ThreadStream
    from shoal.replicas.process.child.endpoints import ParentChannel

T = TypeVar("T")

_MOST_ONCE: Final = 1024

running_controller: Final[ContextVar[Any]] = ContextVar("shoal.running_controller")
"""The controller to which the running code belongs."""


class CallCoroutine(DelegatingCoroutine[Any]):
    """A call's coroutine; its ``result()`` and repr show users of Ray what to write instead."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], endpoint: str) -> None:
        self._called = coroutine
        self._endpoint = endpoint

    @property
    def _coroutine(self) -> Coroutine[Any, Any, Any]:
        return self._called

    def result(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._coroutine.close()
        raise TypeError(
            f"a call of the endpoint {self._endpoint!r} has no result() to wait for; write\n"
            f"    {_INSTEAD}"
        )

    def __repr__(self) -> str:
        return f"<a call of the endpoint {self._endpoint!r}, to be awaited: {_INSTEAD}>"


_INSTEAD: Final = (
    "result = await handle.remote(...), or in code without await handle.sync.call(...)"
)


class _Hinting:
    """Its missing attributes raise the error for ``handle.method``, as Ray Serve calls methods."""

    _HOW: ClassVar[str]
    """How this kind of handle calls a method, for the message."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(f"a handle has no attribute {name!r}")
            raise AttributeError(
                f"a handle has no attribute {name!r}; to call the method of that name write\n"
                f"    {self._HOW.format(name=name)}",
                name=name,
            )


def _handle_for_parameter(endpoint: str) -> Handle:
    return DeferredHandle(endpoint)


@makes_handles(_handle_for_parameter)
@dataclass(frozen=True, eq=False, repr=False)
class Handle(_Hinting, ABC):
    """Calls an endpoint from Python.

    A parameter of a backend's code, or of its constructor, with this annotation gets the handle
    of the endpoint with the parameter's name, or of another: ``Annotated[Handle, "embed-v2"]``.

    Attributes:
        endpoint: The endpoint's name.
        handle_options: The options of its calls.
    """

    _HOW = "await handle.options(method_name={name!r}).call(...)"
    _WINDOW: ClassVar[int] = 1024
    """How many calls of a `map` are made at a time by default."""

    endpoint: str
    handle_options: HandleOptions = field(default=HandleOptions(), kw_only=True)

    @property
    @abstractmethod
    def sync(self) -> SyncHandle:
        """A handle with blocking calls, for threads."""

    @abstractmethod
    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call; await its result.

        Raises:
            NoSuchName: There is no such endpoint or method.
            TypeError: The method is answered by a stream, or the arguments don't fit.
            Exception: As for any batched call.
        """

    def map(self, *columns: Items[Any], **options: Unpack[MapKeywords]) -> MapCall[Any]:
        """Makes a call for each item: ``await handle.map(items)`` returns all results.

        ``async for result in handle.map(items): ...`` gives one after the other, and takes items as
        there is room for them. Each call has the options of the handle, and is routed by itself:
        its traffic is split. In a list of up to 1,024 items that is awaited without options, an
        item that is refused as `Overloaded` is not called again.

        Args:
            *columns: The items; for a method with several parameters one iterable for each.
            **options: As for `UnaryCall.map`; by default `window` is 1,024, and 64 over HTTP.

        Raises:
            ValueError: The columns have different lengths.
            Exception: As for `UnaryCall.map`.

        Cancellation: all of the calls are cancelled.
        """

        async def outcome_of(*one_of_each: Sequence[Any]) -> list[Any]:
            try:
                return [await self.call(*(column[0] for column in one_of_each))]
            except Exception as error:
                return [error]

        plan = MapPlan(self.endpoint, outcome_of, 1, self._WINDOW, once=_MOST_ONCE)
        return MapCall(columns, options, lambda _: plan)

    def remote(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Does the same as `call`; Ray Serve's name for it."""
        return CallCoroutine(self.call(*args, **kwargs), self.endpoint)

    @abstractmethod
    def stream(self, *args: Any, **kwargs: Any) -> ResultIterator:
        """Returns the stream of a call, which is made when the stream is entered."""

    def options(self, **options: Unpack[HandleKeywords]) -> Self:
        """Returns a copy of the handle with other options; options that you omit stay the same.

        Args:
            **options: The fields of `shoal.replicas.code.endpoint_call.HandleOptions`.

        Raises:
            TypeError: An option is unknown, or has the wrong type.
            ValueError: An option is out of its range.
        """
        return replace(self, handle_options=self.handle_options.with_changes(options))

    def __repr__(self) -> str:
        return f"<Handle of the endpoint {self.endpoint!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled in a replica's process, it makes its calls through this process.
        return unpickled_handle, (self.endpoint, self.handle_options)


@dataclass(frozen=True, eq=False, repr=False)
class SyncHandle(_Hinting, ABC):
    """A handle for threads and notebooks."""

    _HOW = "handle.options(method_name={name!r}).call(...)"

    _handle: Handle

    @property
    def endpoint(self) -> str:
        """The endpoint's name."""
        return self._handle.endpoint

    @property
    def sync(self) -> Self:
        """The handle itself."""
        return self

    @abstractmethod
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call, and blocks until it is answered."""

    @abstractmethod
    def map(self, *columns: Iterable[Any], **options: Unpack[MapKeywords]) -> Any:
        """Makes a call for each item; returns a list, or with a `window` an iterator of results."""

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Does the same as `call`; Ray Serve's name for it."""
        return self.call(*args, **kwargs)

    @abstractmethod
    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call that is answered by a stream: ``with ... as stream: for r in stream``."""

    def options(self, **options: Unpack[HandleKeywords]) -> Self:
        """Returns a copy of the handle with other options."""
        return replace(self, _handle=self._handle.options(**options))

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled in another process, it is a blocking handle of that process.
        return getattr, (self._handle, "sync")


@dataclass(frozen=True, eq=False, repr=False)
class BridgedHandle(SyncHandle):
    _bridge: Bridge  # runs coroutines in the handle's event loop

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._bridge.run(
            lambda: self._handle.call(*args, **kwargs), "await handle.call(...)"
        )

    def map(self, *columns: Iterable[Any], **options: Unpack[MapKeywords]) -> Any:
        def run(function: Callable[[], Awaitable[T]]) -> T:
            return self._bridge.run(function, "await handle.map(...)")

        def leave(call: MapCall[Any]) -> None:
            with suppress(ShutDown):  # then the calls have ended
                run(call.aclose)

        return map_blocking(self._handle.map, columns, options, run, leave, self.endpoint)

    def stream(self, *args: Any, **kwargs: Any) -> ThreadStream[Any]:
        return blocking_stream(lambda: self._handle.stream(*args, **kwargs), self._bridge, "handle")


# In the code of a backend.


def unpickled_handle(endpoint: str, handle_options: HandleOptions) -> Any:
    # Ray unpickles the arguments of an actor's method before the actor knows where it runs. Then
    # the handle looks up its controller when it is used.
    is_known = parent_channel.get(None) or running_controller.get(None)
    return (current_handle if is_known else DeferredHandle)(endpoint, handle_options=handle_options)


def current_handle(endpoint: str, handle_options: HandleOptions) -> Any:
    """Raises `RuntimeError` outside of a replica's process and of a controller."""
    channel: ParentChannel | None = parent_channel.get(None)
    if channel is None:
        owner = running_controller.get(None)
        if owner is not None:
            return owner.handle(endpoint, handle_options)
        raise RuntimeError(
            f"a handle of the endpoint {endpoint!r} was used outside of a replica's process; "
            "a separate program connects with shoal.connect(url)"
        )
    return ChildHandle(endpoint, channel, handle_options=handle_options)


@dataclass(frozen=True, eq=False, repr=False)
class ChildHandle(Handle):
    channel: ParentChannel

    @property
    def sync(self) -> ChildSyncHandle:
        return ChildSyncHandle(self)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        return await self.channel.call_async(self.call_out(args, kwargs, stream=False))

    def stream(self, *args: Any, **kwargs: Any) -> ChildStream:
        return ChildStream(self.channel.stream_async(self.call_out(args, kwargs, stream=True)))

    def call_out(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, stream: bool) -> CallOut:
        options = self.handle_options
        left_s = time_left(lambda: time.monotonic() + self.channel.clock_offset)
        if left_s is not None and (options.timeout_s is None or options.timeout_s > left_s):
            options = replace(options, timeout_s=left_s)
        return CallOut(self.endpoint, args, kwargs, stream, options)


@dataclass(frozen=True, eq=False, repr=False)
class ChildSyncHandle(SyncHandle):
    _handle: ChildHandle

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._handle.channel.call(self._handle.call_out(args, kwargs, stream=False))

    def map(self, *columns: Iterable[Any], **options: Unpack[MapKeywords]) -> Any:
        calls = (
            self._handle.call_out(args, {}, stream=False) for args in zip(*columns, strict=True)
        )
        window, returns = options.get("window"), options.get("return_exceptions", False)
        outcomes = self._handle.channel.call_each(calls, window or math.inf)
        if window is None:
            return all_results(list(outcomes), return_exceptions=returns)
        return self._in_turns(outcomes, options)

    def _in_turns(self, outcomes: Iterable[Outcome], options: MapKeywords) -> Generator[Any]:
        """Yields results in the order of the items, which is also one to complete them in."""
        report = reporter(checked_progress(options.get("progress", False)), None, self.endpoint)
        number = 0
        for number, (result, error) in enumerate(outcomes, 1):
            if error is not None and not options.get("return_exceptions"):
                raise error
            outcome = result if error is None else error
            yield (number - 1, outcome) if options.get("as_completed") else outcome
            report(number, False)
        report(number, True)

    def stream(self, *args: Any, **kwargs: Any) -> closing[Generator[Any]]:
        call = self._handle.call_out(args, kwargs, stream=True)
        return closing(self._handle.channel.stream(call))


class ChildStream:
    def __init__(self, results: AsyncGenerator[Any, None]) -> None:
        self._results = results

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._results)

    async def aclose(self) -> None:
        await self._results.aclose()


@dataclass(frozen=True, eq=False, repr=False)
class DeferredHandle(Handle):
    """A handle that looks up its controller at each use."""

    @property
    def sync(self) -> DeferredSyncHandle:
        return DeferredSyncHandle(self)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        return await self.now().call(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        return self.now().stream(*args, **kwargs)

    def now(self) -> Any:
        return current_handle(self.endpoint, self.handle_options)


@dataclass(frozen=True, eq=False, repr=False)
class DeferredSyncHandle(SyncHandle):
    _handle: DeferredHandle

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._handle.now().sync.call(*args, **kwargs)

    def map(self, *columns: Iterable[Any], **options: Unpack[MapKeywords]) -> Any:
        return self._handle.now().sync.map(*columns, **options)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._handle.now().sync.stream(*args, **kwargs)
