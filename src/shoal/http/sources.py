"""Where an endpoint's batcher comes from: a handler, a class that makes one, or a batched function.

A source knows, when it is declared, all that can be said without running user code, so that
mistakes show at the line that makes them. It opens one batcher each time the application is
opened.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio.lowlevel
import anyio.to_thread
from typing_extensions import override

from shoal.batching.batcher import Batcher
from shoal.batching.calls import StreamCall
from shoal.batching.decorated import Decorated
from shoal.batching.signature import unreadable_annotations
from shoal.core.options import BatchOptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from inspect import Signature

# A served line is bounded unless its owner says otherwise: its callers cost this process nothing
# to have, so nothing else would stop them.
SERVED_DEFAULTS: Final[Mapping[str, Any]] = {"max_queued_requests": 1024, "overload": "reject"}


class Source(ABC):
    """What makes the batcher of an endpoint.

    Attributes:
        name: What to call it by itself.
        signature: That of the call of one item.
        streams: Whether its calls are answered by streams.
    """

    name: str
    signature: Signature
    streams: bool

    async def load(self) -> None:
        """Does what must be done once before the batcher is opened, and may take long."""
        await anyio.lowlevel.checkpoint()

    def is_for(self, target: object) -> bool:
        """Says whether `target` can have no other source than this one."""
        return False

    @abstractmethod
    def opened(self, name: str) -> AbstractAsyncContextManager[Batcher[Any]]:
        """Keeps a batcher open.

        Args:
            name: What to call the batcher in messages and metrics.
        """


class HandlerSource(Source):
    """A function of a list, or anything else that `Batcher` takes."""

    def __init__(self, handler: Callable[..., Any], options: Mapping[str, Any]) -> None:
        _check_annotations(handler)
        self._handler = handler
        self._options = {**SERVED_DEFAULTS, **options}
        declared: Batcher[Any] = Batcher(handler, **self._options)
        self.name = _last_part(declared.name)
        self.signature = declared.signature
        self.streams = declared.streams

    @override
    def opened(self, name: str) -> AbstractAsyncContextManager[Batcher[Any]]:
        return _opened(Batcher(self._handler, name=name, **self._options))


class ClassSource(Source):
    """A class: one instance is made when the application opens; its ``__call__`` is the handler."""

    def __init__(self, cls: type, options: Mapping[str, Any]) -> None:
        if isinstance(inspect.getattr_static(cls, "__call__", None), Decorated):
            raise TypeError(
                f"{cls.__qualname__}.__call__ is decorated with @shoal.batch, and the endpoint "
                "would batch it again; take the decorator off"
            )
        if "__call__" not in dir(cls):
            raise TypeError(
                f"the class {cls.__qualname__} has no __call__, which would be the handler; write\n"
                f"    class {cls.__name__}:\n"
                "        def __call__(self, items: list[T]) -> list[R]: ..."
            )
        try:
            inspect.signature(cls).bind()
        except TypeError as error:
            raise TypeError(
                f"the class {cls.__qualname__} is instantiated without arguments: {error}; pass a "
                "function that was made from an instance, or give the parameters defaults"
            ) from None
        self._class = cls
        self._options = {**SERVED_DEFAULTS, **options}
        handler: Any = inspect.getattr_static(cls, "__call__")
        _check_annotations(handler)
        # Stands in for an instance: only its parameters are looked at.
        declared: Batcher[Any] = Batcher(cast("Any", partial(handler, None)), **self._options)
        self.name = cls.__name__
        self.signature = declared.signature
        self.streams = declared.streams
        self._instance: Any = None

    @override
    async def load(self) -> None:
        self._instance = await anyio.to_thread.run_sync(self._class)

    @override
    def opened(self, name: str) -> AbstractAsyncContextManager[Batcher[Any]]:
        instance, self._instance = self._instance, None
        return _opened(Batcher(instance, name=name, **self._options))


class DecoratedSource(Source):
    """A function that is batched already, which the program goes on calling as well.

    Its own options hold, under those that the endpoint gives.
    """

    def __init__(self, face: Decorated, options: Mapping[str, Any]) -> None:
        if "fill" in options:
            raise TypeError(
                f"fill and streams belong to the handler: write them where {face!r} is decorated"
            )
        BatchOptions.of(options)
        _check_annotations(getattr(face, "__wrapped__", None))
        self._face = face
        self._options = options
        self.name = _last_part(getattr(face, "__qualname__", "batched"))
        self.signature = face.__signature__
        self.streams = isinstance(face, StreamCall)

    @override
    def is_for(self, target: object) -> bool:
        return target is self._face

    @override
    @asynccontextmanager
    async def opened(self, name: str) -> AsyncGenerator[Batcher[Any]]:
        async with self._face.opened():
            batcher = self._face.batcher
            changes = dict(self._options)
            if batcher.options.max_queued_requests is None:
                changes = {**SERVED_DEFAULTS, **changes}
            batcher.configure(**changes)
            yield batcher


def source_of(target: Any, options: Mapping[str, Any]) -> Source:
    """Chooses the source for what an endpoint was declared on.

    Raises:
        TypeError: It is nothing that can be batched, or an option is unknown or of a wrong type.
        ValueError: An option is out of its range.
    """
    if isinstance(target, Decorated):
        return DecoratedSource(target, options)
    if inspect.isclass(target):
        return ClassSource(target, options)
    return HandlerSource(target, options)


@asynccontextmanager
async def _opened(batcher: Batcher[Any]) -> AsyncGenerator[Batcher[Any]]:
    async with batcher:
        yield batcher


def _check_annotations(handler: Any) -> None:
    """Checks that the annotations can be read, since bodies are checked against them.

    Raises:
        TypeError: One names something that is not there at run time; the engine would do without
            it, and any body would pass.
    """
    for name, error in unreadable_annotations(handler).items():
        raise TypeError(
            f"the annotation of {name!r} of {handler!r} can't be read, so bodies could not be "
            f"checked: {error}; import what it names outside `if TYPE_CHECKING`, and define it "
            "outside of functions"
        ) from error


def _last_part(qualified_name: str) -> str:
    return qualified_name.rpartition(".")[2]
