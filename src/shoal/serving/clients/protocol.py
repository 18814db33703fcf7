"""The interfaces of clients, for a controller in this process or behind HTTP.

A `Client` has the verbs that operate a controller. Its `get_handle` returns a `Handle`, which calls
one endpoint.
"""

# mypy: disable-error-code="empty-body"
# `verb` makes the bodies of the methods of `Client`.

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, Protocol

from shoal.errors import ShutDown
from shoal.serving.backend_config import BackendConfig
from shoal.serving.clients import verbs
from shoal.serving.clients.handles import BridgedHandle, Handle
from shoal.serving.clients.verbs import Verb, verb
from shoal.serving.names import DEFAULT_METHODS
from shoal.status import Status

if TYPE_CHECKING:
    from shoal.replicas.portal import Bridge


class SyncClient(Protocol):
    """A client for threads and notebooks: the verbs of `Client` as plain functions that block.

    They have the same parameters and results.
    """

    def __getattr__(self, verb: str) -> Callable[..., Any]: ...


class Client:
    """Operates a controller.

    Each change is atomic, and has taken effect when its verb returns. A client that was shut down
    raises `ShutDown` from every verb but `shutdown`. A client can't be pickled.
    """

    @property
    def sync(self) -> SyncClient:
        """A client with blocking verbs, for threads."""
        ...

    @verb(
        "POST",
        "backends",
        definition=verbs.DEFINITION,
        init_args=verbs.INIT_ARGS,
        config=verbs.CONFIG,
        init_kwargs=verbs.INIT_KWARGS,
    )
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
            config: Its options.
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

    @verb("PATCH", "backends/{tag}", body="config", config=verbs.CHANGES)
    async def update_backend_config(
        self, tag: str, config: BackendConfig | Mapping[str, Any]
    ) -> None:
        """Changes the options that you pass, and keeps the others.

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

    @verb("GET", "backends/{tag}")
    async def get_backend_config(self, tag: str) -> BackendConfig:
        """Returns a backend's config.

        Raises:
            NoSuchName: There is no such backend.
        """
        ...

    @verb("GET", "backends")
    async def list_backends(self) -> Mapping[str, BackendConfig]:
        """Returns the config of each backend, by tag."""
        ...

    @verb("POST", "backends/{tag}/scale")
    async def scale_backend(self, tag: str, num_replicas: int) -> None:
        """Changes the number of replicas, and waits until that many are ready.

        Raises:
            NoSuchName: There is no such backend.
            ValueError: The number is less than 1.
            ReplicaNotStarted: A new replica could not be started; the number stays as before.

        Cancellation: as for `update_backend_config`.
        """

    @verb("POST", "backends/{tag}/restart")
    async def restart_backend(self, tag: str) -> None:
        """Replaces the replicas: the old ones drain when all new ones are ready.

        Raises:
            NoSuchName: There is no such backend.
            ReplicaNotStarted: A new replica could not be started; the old ones stay.

        Cancellation: as for `update_backend_config`.
        """

    @verb("DELETE", "backends/{tag}", query="force")
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

    @verb("POST", "endpoints", methods=verbs.METHODS)
    async def create_endpoint(
        self,
        name: str,
        *,
        backend: str | None,
        route: str | None = None,
        methods: Sequence[str] = DEFAULT_METHODS,
    ) -> None:
        """Creates an endpoint with all its traffic to one backend.

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

    @verb("GET", "endpoints")
    async def list_endpoints(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns ``{"route", "methods", "traffic", "shadows"}`` of each endpoint, by name."""
        ...

    @verb("DELETE", "endpoints/{name}")
    async def delete_endpoint(self, name: str) -> None:
        """Deletes an endpoint; its backends stay. Requests that it holds fail.

        Raises:
            NoSuchName: There is no such endpoint.
        """

    @verb("PUT", "endpoints/{endpoint}/traffic", body="weights", weights=verbs.WEIGHTS)
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

    @verb("PUT", "endpoints/{endpoint}/shadows/{backend}", compare=verbs.COMPARE)
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
        itself. Copies of other requests wait in its queue, and may delay its own requests.

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

    @verb("GET", "status")
    async def status(self) -> Status:
        """Returns the status of all backends and endpoints."""
        ...

    @verb("POST", "shutdown", goes_on=True)
    async def shutdown(self) -> None:
        """Shuts the controller down, once pending requests have been answered or have timed out.

        Idempotent; another call waits for the same shutdown.

        Cancellation: the call stops waiting, and the shutdown continues.
        """


VERBS: Final[Mapping[str, Verb | None]] = {
    name: getattr(method, "verb", None)
    for name, method in vars(Client).items()
    if iscoroutinefunction(method)
}
"""The verbs of a `Client`, by name; None for `get_handle`, which sends no request of its own."""


class BlockingClient:
    def __init__(self, client: Client, bridge: Bridge) -> None:
        self._client = client
        self._bridge = bridge

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb not in VERBS:
            raise AttributeError(f"a client has no verb {verb!r}; it has {', '.join(VERBS)}")
        method = getattr(self._client, verb)

        @functools.wraps(method)
        def block(*args: Any, **kwargs: Any) -> Any:
            result = self._bridge.run(lambda: method(*args, **kwargs), f"await client.{verb}(...)")
            if verb == "get_handle":
                return BridgedHandle(result, self._bridge)
            return result

        block.__doc__ = getattr(Client, verb).__doc__  # the controller's own methods inherit it
        return block

    def shutdown(self) -> None:
        """Does nothing if the client's event loop has ended."""
        with suppress(ShutDown):
            self._bridge.run(self._client.shutdown, "await client.shutdown()")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *VERBS})
