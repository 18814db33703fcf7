"""What calls an endpoint from Python, wherever the controller is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from types import TracebackType


class ResultIterator(Protocol):
    """The results of a stream: ``async with handle.stream(x) as stream: async for r in stream``."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Any: ...
    async def aclose(self) -> None:
        """Leaves the stream. Idempotent."""
        ...


class SyncHandle(Protocol):
    """A handle for threads and notebooks."""

    @property
    def endpoint(self) -> str:
        """The endpoint's name."""
        ...

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call, and blocks until it is answered."""
        ...

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Does what `call` does; Ray Serve's spelling."""
        ...

    def options(self, **options: Any) -> SyncHandle:
        """Returns the same handle with options of its own; see `Handle.options`."""
        ...

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call that is answered by a stream: ``with ... as stream: for r in stream``."""
        ...


class Handle(Protocol):
    """Calls an endpoint from Python."""

    @property
    def endpoint(self) -> str:
        """The endpoint's name."""
        ...

    @property
    def sync(self) -> SyncHandle:
        """The same for threads."""
        ...

    def call(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Makes a call; await its result.

        Raises:
            NoSuchName: The endpoint, or its method, is not there any more.
            TypeError: The method is answered by a stream, or the arguments don't fit.
            Exception: As for any batched call.
        """
        ...

    def remote(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Does what `call` does; Ray Serve's spelling."""
        ...

    def stream(self, *args: Any, **kwargs: Any) -> ResultIterator:
        """Makes a call that is answered by a stream, when the stream is entered."""
        ...

    def options(
        self,
        *,
        method_name: str | None = None,
        shard_key: str | None = None,
        http_method: str | None = None,
        http_headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        priority: int | None = None,
    ) -> Handle:
        """Returns the same handle with options of its own; what is not named stays as it is.

        Args:
            method_name: Which method of the backend's code to call.
            shard_key: Calls with equal keys go to the same backend, under the same traffic.
            http_method: What the code finds in the request's metadata as ``"method"``.
            http_headers: What it finds there as ``"headers"``.
            timeout_s: How long a call may take from when it is made, in seconds.
            priority: Its level, from 1, the highest.
        """
        ...
