"""What drives a controller: one protocol, whether it is in this process or behind HTTP.

`Client` has the verbs; the `Handle` that it gives calls one endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

from shoal.serving.names import DEFAULT_METHODS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from shoal.serving.config.config import BackendConfig
    from shoal.serving.status import Status


class SyncClient(Protocol):
    """A client for threads and notebooks: the same verbs as plain functions, which block.

    ``create_backend``, ``list_backends`` and so on take and return what `Client`'s do.
    """

    def __getattr__(self, verb: str) -> Callable[..., Any]: ...


class Client(Protocol):
    """Drives a controller.

    Each change is accepted whole or refused whole, and has taken effect when its verb returns. A
    client that was shut down raises `ShutDown` from every verb but `shutdown`. It can't be pickled.
    """

    @property
    def sync(self) -> SyncClient:
        """The same for threads."""
        ...

    async def create_backend(
        self,
        tag: str,
        definition: Any,
        *init_args: Any,
        config: BackendConfig | Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates a backend, and waits until a replica of it is ready.

        Args:
            tag: What to call it: 1 to 64 of ``A-Z a-z 0-9 _ . : -``.
            definition: A function, a class, or an import path ``"package.module:Name"``.
            *init_args: What a class is instantiated with.
            config: How it runs; see `BackendConfig`.
            init_kwargs: The same by name.

        Raises:
            NameTaken: There is a backend of that tag.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of its range, or no import path.
            NotAllowed: The operator did not allow the import path's module.
            NotDurable: State is kept, and the definition or an argument can't be.
            ReplicaNotStarted: No replica could be started, for instance since the import path names
                nothing; then there is no backend.
        """
        ...

    async def update_backend_config(
        self, tag: str, config: BackendConfig | Mapping[str, Any]
    ) -> None:
        """Changes the options that are named, and no others.

        Batching, bounds and the number of replicas change at once. A new ``user_config`` is given
        to each replica's ``reconfigure``. What only a new replica can take in replaces them: new
        ones are started one by one, and the old ones drain when all of those are ready.

        Raises:
            NoSuchName: There is no such backend.
            TypeError: An option is unknown or has the wrong type; nothing is changed.
            ValueError: An option is out of its range; nothing is changed.
            ReplicaNotStarted: A new replica could not be started, or died before all were there;
                the old ones stay, nothing is changed.
            ReplicaDied: A replica died of the new user config, or was ill after it; one with the
                old config has taken its place, nothing is changed.
            Exception: What ``reconfigure`` raised; the old config is given back to the replicas.

        Cancellation: what was changed so far is undone; once all is changed it stays, and nobody
        waits for the old replicas to end.
        """
        ...

    async def get_backend_config(self, tag: str) -> BackendConfig:
        """Returns a backend's config.

        Raises:
            NoSuchName: There is no such backend.
        """
        ...

    async def list_backends(self) -> Mapping[str, BackendConfig]:
        """Returns the config of each backend, by tag."""
        ...

    async def scale_backend(self, tag: str, num_replicas: int) -> None:
        """Changes the number of replicas, and waits until there are so many.

        Raises:
            NoSuchName: There is no such backend.
            ValueError: The number is less than 1.
            ReplicaNotStarted: A new replica could not be started; then the number is as before.

        Cancellation: as for `update_backend_config`.
        """
        ...

    async def restart_backend(self, tag: str) -> None:
        """Replaces the replicas: the old ones drain when all new ones are ready.

        Raises:
            NoSuchName: There is no such backend.
            ReplicaNotStarted: A new replica could not be started; the old ones stay.

        Cancellation: as for `update_backend_config`.
        """
        ...

    async def delete_backend(self, tag: str, *, force: bool = False) -> None:
        """Deletes a backend, once what is in its line has been answered.

        Args:
            tag: Which.
            force: Fail what is in its line instead of waiting for it.

        Raises:
            NoSuchName: There is no such backend.
            InUse: An endpoint sends it traffic, or shadow traffic.

        Cancellation: once it is deleted, what is in its line is answered all the same. Another call
        waits for that too, and one with `force` ends it.
        """
        ...

    async def create_endpoint(
        self,
        name: str,
        *,
        backend: str | None,
        route: str | None = None,
        methods: Sequence[str] = DEFAULT_METHODS,
    ) -> None:
        """Creates an endpoint all of whose traffic goes to one backend.

        Args:
            name: What to call it: 1 to 64 of ``A-Z a-z 0-9 _ . : -``.
            backend: The backend; None to hold its requests until traffic is set.
            route: Its path, which starts with "/"; None for handles alone.
            methods: The HTTP methods that it answers. What code gets of a request without a body,
                such as a GET, is its query.

        Raises:
            NameTaken: There is an endpoint of that name, or one with that route and method.
            NoSuchName: There is no such backend.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of its range.
        """
        ...

    async def list_endpoints(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns ``{"route", "methods", "traffic", "shadows"}`` of each endpoint, by name."""
        ...

    async def delete_endpoint(self, name: str) -> None:
        """Deletes an endpoint; its backends stay. Requests that it holds fail.

        Raises:
            NoSuchName: There is no such endpoint.
        """
        ...

    async def set_traffic(self, endpoint: str, weights: Mapping[str, float]) -> None:
        """Divides an endpoint's requests among backends.

        Args:
            endpoint: The endpoint.
            weights: The share of each backend; together 1, to within a millionth.

        Raises:
            NoSuchName: There is no such endpoint or backend.
            TypeError: A weight is no number.
            ValueError: A weight is negative, or they don't sum to 1.
        """
        ...

    async def shadow_traffic(
        self,
        endpoint: str,
        backend: str,
        proportion: float,
        *,
        compare: Callable[[Any, Any], bool] | str | None = None,
    ) -> None:
        """Copies a share of an endpoint's requests to a backend, whose answers are dropped.

        A backend that has traffic of the endpoint as well gets no copy of what it answers itself;
        copies of the rest wait in the line of its own requests, which they may delay.

        Args:
            endpoint: The endpoint.
            backend: The backend that gets the copies.
            proportion: The share, from 0 to 1; 0 stops it.
            compare: A function of the endpoint's answer and the copy's that says whether they are
                alike, or an import path of one; what it says is counted.

        Raises:
            NoSuchName: There is no such endpoint or backend.
            TypeError: The proportion is no number, or `compare` no function.
            ValueError: The proportion is not from 0 to 1.
        """
        ...

    async def get_handle(self, endpoint: str, missing_ok: bool = False) -> Handle:
        """Returns what calls an endpoint.

        Args:
            endpoint: The endpoint.
            missing_ok: Whether the endpoint may be yet to come: calls raise `NoSuchName` until it
                is there.

        Raises:
            NoSuchName: There is no such endpoint.
            TypeError: The name is no text, with `missing_ok`.
            ValueError: No endpoint can have that name, with `missing_ok`.
        """
        ...

    async def status(self) -> Status:
        """Returns what there is, and how it is."""
        ...

    async def shutdown(self) -> None:
        """Ends the controller, once what is under way has been answered, within its time limits.

        Idempotent; another call waits for the same end.

        Cancellation: nobody waits for the end any more, which comes all the same.
        """
        ...


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
