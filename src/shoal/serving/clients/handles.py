"""The handles of endpoints, awaited and blocking: their base classes, and the one for threads.

Methods as Ray Serve spells them (``handle.method``, ``result()``) raise errors that show what to
write instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self

import anyio
import anyio.lowlevel

from shoal.batching.calls.groups import all_results
from shoal.replicas.code.endpoint_call import HandleOptions
from shoal.replicas.portal import BlockingStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
    from types import TracebackType
    from typing import Unpack

    from shoal.batching.calls.groups import Outcome
    from shoal.replicas.code.endpoint_call import HandleKeywords
    from shoal.replicas.portal import Bridge

running_controller: Final[ContextVar[Any]] = ContextVar("shoal.running_controller")
"""The controller to which the running code belongs."""


class CallCoroutine(Coroutine[Any, Any, Any]):
    """A call's coroutine; its ``result()`` and repr show users of Ray what to write instead."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], endpoint: str) -> None:
        self._coroutine = coroutine
        self._endpoint = endpoint

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
        /,
    ) -> Any:
        if value is None and traceback is None:
            return self._coroutine.throw(kind)
        return self._coroutine.throw(kind, value, traceback)

    def close(self) -> None:
        self._coroutine.close()

    def result(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._coroutine.close()
        raise TypeError(
            f"a call of the endpoint {self._endpoint!r} has no result() to wait for; write\n"
            f"    {_INSTEAD}"
        )

    def __getattr__(self, name: str) -> Any:
        # For attributes that event loops read, such as whether the coroutine runs.
        return getattr(self._coroutine, name)

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


@dataclass(frozen=True, eq=False, repr=False)
class AsyncHandle(_Hinting, ABC):
    _HOW = "await handle.options(method_name={name!r}).call(...)"
    _MAX_CONCURRENT: ClassVar[int | None] = None
    """The largest number of calls of a `map` at a time; None for no limit."""

    endpoint: str
    handle_options: HandleOptions = field(default=HandleOptions(), kw_only=True)

    def options(self, **options: Unpack[HandleKeywords]) -> Self:
        return replace(self, handle_options=self.handle_options.with_changes(options))

    @abstractmethod
    async def call(self, *args: Any, **kwargs: Any) -> Any: ...

    @abstractmethod
    def stream(self, *args: Any, **kwargs: Any) -> Any: ...

    async def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> list[Any]:
        return await _call_each(
            self.call,
            list(zip(*columns, strict=True)),
            max_concurrent=self._MAX_CONCURRENT,
            return_exceptions=return_exceptions,
        )

    def remote(self, *args: Any, **kwargs: Any) -> CallCoroutine:
        return CallCoroutine(self.call(*args, **kwargs), self.endpoint)

    def __repr__(self) -> str:
        return f"<Handle of the endpoint {self.endpoint!r}>"


@dataclass(frozen=True, eq=False, repr=False)
class BlockingHandle(_Hinting, ABC):
    _HOW = "handle.options(method_name={name!r}).call(...)"

    _handle: AsyncHandle

    @property
    def endpoint(self) -> str:
        return self._handle.endpoint

    @property
    def sync(self) -> Self:
        return self

    def options(self, **options: Unpack[HandleKeywords]) -> Self:
        return replace(self, _handle=self._handle.options(**options))

    @abstractmethod
    def call(self, *args: Any, **kwargs: Any) -> Any: ...

    @abstractmethod
    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> list[Any]: ...

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled in another process, it is a blocking handle of that process.
        return getattr, (self._handle, "sync")


@dataclass(frozen=True, eq=False, repr=False)
class BridgedHandle(BlockingHandle):
    _bridge: Bridge  # runs coroutines in the handle's event loop

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._bridge.run(
            lambda: self._handle.call(*args, **kwargs), "await handle.call(...)"
        )

    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> list[Any]:
        lists = [list(column) for column in columns]  # in this thread: they may block
        return self._bridge.run(
            lambda: self._handle.map(*lists, return_exceptions=return_exceptions),
            "await handle.map(...)",
        )

    def stream(self, *args: Any, **kwargs: Any) -> BlockingStream:
        return BlockingStream(lambda: self._handle.stream(*args, **kwargs), self._bridge, "handle")


async def _call_each(
    call: Callable[..., Awaitable[Any]],
    arguments: Sequence[tuple[Any, ...]],
    *,
    max_concurrent: int | None = None,
    return_exceptions: bool,
) -> list[Any]:
    """Returns the results in the order of the arguments; raises the first error in that order."""
    waiting = iter(enumerate(arguments))
    outcomes: list[Outcome] = [(None, None)] * len(arguments)

    async def make_calls() -> None:
        for number, args in waiting:
            try:
                outcomes[number] = await call(*args), None
            except Exception as error:
                outcomes[number] = None, error

    await anyio.lowlevel.checkpoint()
    async with anyio.create_task_group() as tasks:
        for _ in arguments[:max_concurrent]:
            tasks.start_soon(make_calls)
    return all_results(outcomes, return_exceptions=return_exceptions)
