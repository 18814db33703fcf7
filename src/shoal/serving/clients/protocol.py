"""The protocols of clients and handles, for a controller in this process or behind HTTP.

A `Client` has the verbs that operate a controller. Its `get_handle` returns a `Handle`, which calls
one endpoint.
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
    """A client for threads and notebooks: the verbs of `Client` as plain functions that block.

    They have the same parameters and results.
    """

    def __getattr__(self, verb: str) -> Callable[..., Any]: ...


class Client(Protocol):
    """Operates a controller.

    Each change is atomic, and has taken effect when its verb returns. A client that was shut down
    raises `ShutDown` from every verb but `shutdown`. A client can't be pickled.
    """

    @property
    def sync(self) -> SyncClient:
        """A client with blocking verbs, for threads."""
        ...

    async def create_backend(
        self,
        tag: str,
        definition: Any,
        *init_args: Any,
        config: BackendConfig | Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates a backend, and waits until one of its replicas is ready.

        Args:
            tag: Its name: 1 to 64 of the characters ``A-Z a-z 0-9 _ . : -``.
            definition: A function, a class, or an import path ``"package.module:Name"``.
            *init_args: The positional arguments of the class.
            config: Its options; see `BackendConfig`.
            init_kwargs: The keyword arguments of the class.

        Raises:
            NameTaken: There is a backend of that tag.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of its range, or not an import path.
            NotAllowed: The operator did not allow the import path's module.
            NotDurable: State is kept, and the definition or an argument can't be written to it.
            ReplicaNotStarted: No replica could be started, for example since the import path leads
                to nothing; the backend is not created.
        """
        ...

    async def update_backend_config(
        self, tag: str, config: BackendConfig | Mapping[str, Any]
    ) -> None:
        """Changes the given options, and no others.

        Options of batching, limits and the number of replicas change at once. A new ``user_config``
        is given to each replica's ``reconfigure``. An option that only new replicas can apply
        replaces the replicas: new ones are started one by one, and the old ones drain when all new
        ones are ready.

        Raises:
            NoSuchName: There is no such backend.
            TypeError: An option is unknown or has the wrong type; nothing is changed.
            ValueError: An option is out of its range; nothing is changed.
            ReplicaNotStarted: A new replica could not be started, or died before all were ready;
                the old ones stay, nothing is changed.
            ReplicaDied: A replica died of the new user config, or was unhealthy after it; one with
                the old config has replaced it, nothing is changed.
            Exception: ``reconfigure`` raised this; the replicas are given the old config again.

        Cancellation: a change that is not complete is undone. A complete one stays, and the call
        does not wait for the old replicas to end.
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
        """Changes the number of replicas, and waits until that many are ready.

        Raises:
            NoSuchName: There is no such backend.
            ValueError: The number is less than 1.
            ReplicaNotStarted: A new replica could not be started; the number stays as before.

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
        """Deletes a backend, once its queued requests have been answered.

        Args:
            tag: The backend's tag.
            force: Fail the queued requests instead of waiting for them.

        Raises:
            NoSuchName: There is no such backend.
            InUse: An endpoint sends it traffic, or shadow traffic.

        Cancellation: once the deletion has begun, queued requests are still answered. Another call
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
            name: Its name: 1 to 64 of the characters ``A-Z a-z 0-9 _ . : -``.
            backend: The backend; None to hold requests until traffic is set.
            route: Its path, which starts with "/"; None if only handles call it.
            methods: The HTTP methods that it accepts. For a request without a body, such as a GET,
                the code gets the query.

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
            weights: The share of each backend; the sum must be 1, to within a millionth.

        Raises:
            NoSuchName: There is no such endpoint or backend.
            TypeError: A weight is not a number.
            ValueError: A weight is negative, or the weights don't sum to 1.
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
        """Copies a share of an endpoint's requests to a backend, and discards its answers.

        A backend that has traffic of the endpoint too gets no copies of requests that it answers
        itself. Copies of the others wait in the same queue as its own requests, and may delay them.

        Args:
            endpoint: The endpoint.
            backend: The backend that gets the copies.
            proportion: The share, from 0 to 1; 0 stops it.
            compare: A function that returns whether the endpoint's answer (the first argument) and
                the copy's (the second) agree, or its import path; its results are counted.

        Raises:
            NoSuchName: There is no such endpoint or backend.
            TypeError: The proportion is not a number, or `compare` is not a function.
            ValueError: The proportion is not from 0 to 1.
        """
        ...

    async def get_handle(self, endpoint: str, missing_ok: bool = False) -> Handle:
        """Returns a handle of an endpoint.

        Args:
            endpoint: The endpoint.
            missing_ok: Whether the endpoint need not exist yet; until it does, calls raise
                `NoSuchName`.

        Raises:
            NoSuchName: There is no such endpoint.
            TypeError: The name is not text, with `missing_ok`.
            ValueError: No endpoint can have that name, with `missing_ok`.
        """
        ...

    async def status(self) -> Status:
        """Returns the status of all backends and endpoints."""
        ...

    async def shutdown(self) -> None:
        """Ends the controller, once pending requests have been answered or have timed out.

        Idempotent; another call waits for the same end.

        Cancellation: the call stops waiting, and the controller ends nevertheless.
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
        """Does the same as `call`; Ray Serve's name for it."""
        ...

    def options(self, **options: Any) -> SyncHandle:
        """Returns a copy of the handle with other options; see `Handle.options`."""
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
        """A handle with blocking calls, for threads."""
        ...

    def call(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Makes a call; await its result.

        Raises:
            NoSuchName: There is no such endpoint or method.
            TypeError: The method is answered by a stream, or the arguments don't fit.
            Exception: As for any batched call.
        """
        ...

    def remote(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Does the same as `call`; Ray Serve's name for it."""
        ...

    def stream(self, *args: Any, **kwargs: Any) -> ResultIterator:
        """Returns the stream of a call, which is made when the stream is entered."""
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
        """Returns a copy of the handle with other options; those not given stay as they are.

        Args:
            method_name: The method of the backend's code to call.
            shard_key: Calls with equal keys go to the same backend, while the traffic is the same.
            http_method: The value of ``"method"`` in the request's metadata.
            http_headers: The value of ``"headers"`` there.
            timeout_s: How long a call may take from when it is made, in seconds.
            priority: The priority level of the request, from 1, the highest.
        """
        ...
