"""A client of a server, through its admin API; extra ``shoal[client]``.

Verbs, errors and results are those of a client in the server's own process, except for values that
JSON can't carry: code is named by import paths, and arguments and results are JSON values.
"""

from __future__ import annotations

import json
import math
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self, cast

import anyio
import anyio.lowlevel

from shoal.batching.current import trace_headers
from shoal.core.options.option import checked_token, seconds
from shoal.errors import DeadlineExceeded, ItemTooLarge, NotAllowed
from shoal.http_client.bodies import JSON, JSON_LINES, PROBLEM
from shoal.http_client.connection import SILENCE_S, Connection, StreamingAnswer, server_of
from shoal.http_client.stream import HttpStream
from shoal.replicas.code.endpoint_call import HandleOptions
from shoal.replicas.portal import PortalThread
from shoal.serving.clients.handles import BridgedHandle, Handle
from shoal.serving.clients.protocol import VERBS, BlockingClient, Client
from shoal.serving.clients.verbs import ENDPOINT, Verb
from shoal.serving.clients.wire import WireError, error_from_wire, from_json, written
from shoal.serving.names import checked_tag

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    import httpx


class RemoteClient(Client):
    """Operates a server's controller; `shoal.connect` makes it.

    Every verb also raises:
        ConnectionError: The server can't be reached, or the connection broke; in the second case
            the request may have been carried out.
        TimeoutError: The server took longer than ``timeout_s``.
        NotAllowed: The token is wrong.
        ShutDown: This client was shut down or closed.

    Cancellation: closes the connection, and the server cancels the verb.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float | None = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._made_with = {"token": token, "timeout_s": timeout_s}
        self._connection = AdminConnection(url, token, timeout_s, transport)
        self._sync: BlockingRemoteClient | None = None
        # The client of the same server in the other event loop, which ends with this one's verb.
        self._other: RemoteClient | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._connection.url

    @property
    def sync(self) -> BlockingRemoteClient:
        """A client with blocking verbs, for threads; it has its own connections and event loop."""
        if self._sync is None:
            self._other = RemoteClient(self.url, **cast("Any", self._made_with))
            self._other._other = self
            self._sync = BlockingRemoteClient(self._other)
        return self._sync

    async def __aenter__(self) -> Self:
        try:
            await self._connection.ask("GET", "status")
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __enter__(self) -> BlockingRemoteClient:
        return self.sync.connected()

    def __exit__(self, *exc_info: object) -> None:
        self.sync.close()
        self.close_to(_CLOSED)

    async def aclose(self) -> None:
        """Closes the connections; the server keeps running. Idempotent."""
        if self._sync is not None:
            await self._sync.aclose()
        await self._connection.pool.aclose()

    async def _send(self, verb: Verb, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        path, body = verb.request(args, kwargs)
        return from_json(verb.result, await self._connection.ask(verb.method, path, body))

    @asynccontextmanager
    async def recording(
        self,
        duration_s: float,
        *,
        backend: str | None = None,
        most_requests: int | None = None,
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Records the arrivals of requests at the server, for a simulation.

        Yields the lines of a trace, each a JSON object, as they are recorded. Leaving the block
        ends the recording.

        Args:
            duration_s: For how long, in seconds.
            backend: The backend that is recorded; None for all.
            most_requests: How many requests are recorded; None for a million.

        Raises:
            NoSuchName: There is no such backend.
            ValueError: A number is out of its range.
        """
        given = {"backend": backend, "most_requests": most_requests}
        body = {name: one for name, one in given.items() if one is not None}
        answer = await self._connection.open_stream("trace", {"seconds": duration_s, **body})
        try:
            yield answer.lines
        finally:
            await answer.aclose()

    async def get_handle(self, endpoint: str, missing_ok: bool = False) -> RemoteHandle:
        if missing_ok:
            checked_tag("an endpoint's name", endpoint)
        else:
            await self._connection.ask("GET", f"endpoints/{ENDPOINT.sent(endpoint)}")
        return self.handle(endpoint, HandleOptions())

    async def shutdown(self) -> None:
        if self._connection.pool.is_closed:
            return
        await super().shutdown()
        self.close_to(_SHUT_DOWN)
        if self._other is not None:
            self._other.close_to(_SHUT_DOWN)

    def close_to(self, reason: str) -> None:
        self._connection.pool.close_to(reason)

    def handle(self, endpoint: str, handle_options: HandleOptions) -> RemoteHandle:
        """Does not check that the endpoint exists."""
        return RemoteHandle(endpoint, self, self._connection, handle_options=handle_options)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a client can't be pickled, it holds connections; connect where it is used:\n"
            f"    shoal.connect({self.url!r})"
        )


class BlockingRemoteClient:
    """A remote client for threads and notebooks, with an event loop in its own thread.

    The thread starts with the first verb, and does not keep the program from ending.
    """

    def __init__(self, client: RemoteClient) -> None:
        self._thread = PortalThread("shoal-client")
        self._verbs = BlockingClient(client, self._thread)
        self._remote = client

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb == "_verbs":  # not set yet in an object that is being copied
            raise AttributeError(verb)
        found: Callable[..., Any] = getattr(self._verbs, verb)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *VERBS})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def connected(self) -> Self:
        """Checks that the server responds."""
        try:
            self._thread.run(self._remote.status, "async with shoal.connect(...) as client:")
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Closes the connections and ends the thread; the server keeps running."""
        self._remote.close_to(_CLOSED)
        self._thread.close(self._remote.aclose)

    async def aclose(self) -> None:
        """Like `close`, without blocking the event loop."""
        self._remote.close_to(_CLOSED)
        await self._thread.aclose(self._remote.aclose)

    def handle(self, endpoint: str, handle_options: HandleOptions) -> BridgedHandle:
        return BridgedHandle(self._remote.handle(endpoint, handle_options), self._thread)


_SHUT_DOWN = "this client was shut down"
_CLOSED = "this client is closed"


_LEAST_S = 0.001


@dataclass(frozen=True, eq=False, repr=False)
class RemoteHandle(Handle):
    _WINDOW = 64

    client: RemoteClient
    connection: AdminConnection

    @property
    def sync(self) -> BridgedHandle:
        return self.client.sync.handle(self.endpoint, self.handle_options)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        async with self._calling(args, kwargs) as (body, timeout_s):
            patience_s = None if timeout_s is None else timeout_s + _MARGIN_S
            return await self.connection.ask_within(patience_s, "POST", self._path, body)

    def stream(self, *args: Any, **kwargs: Any) -> HttpStream:
        async def open_() -> tuple[StreamingAnswer, float]:
            async with self._calling(args, kwargs) as (body, _):
                return await self.connection.open_stream(self._path, body), math.inf

        return HttpStream(
            open_, lambda _, status, problem: self.connection.error_of(status, problem)
        )

    def __repr__(self) -> str:
        return f"<Handle of the endpoint {self.endpoint!r} at {self.connection.url}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a handle can't be pickled, it holds connections; make one where it is used:\n"
            f"    await shoal.connect(url).get_handle({self.endpoint!r})"
        )

    @property
    def _path(self) -> str:
        return f"endpoints/{self.endpoint}/call"

    @asynccontextmanager
    async def _calling(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> AsyncGenerator[tuple[dict[str, Any], float | None]]:
        """Yields the body of a request for a call, and the call's time limit."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        given_s, deadline = self.handle_options.timeout_s, anyio.current_effective_deadline()
        left_s = max(deadline - anyio.current_time(), _LEAST_S)
        is_of_scope = left_s < (math.inf if given_s is None else given_s)
        limit_s = left_s if is_of_scope else given_s
        timeout_s = None if limit_s == math.inf else limit_s
        options = replace(self.handle_options, timeout_s=timeout_s).changed()
        if "http_headers" in options:
            options["http_headers"] = dict(options["http_headers"])
        try:
            yield {"args": args, "kwargs": kwargs, "options": options}, timeout_s
        except DeadlineExceeded:
            if is_of_scope:
                await anyio.sleep_until(deadline)  # the server's clock may be ahead
            raise


API: Final = "/-/api"

# How much longer than its time limit the client waits for a call, since the server reports it.
_MARGIN_S: Final = 10.0

# Refusals by the admin API itself, for which `KINDS` has no class.
_REFUSALS: Final[Mapping[str, type[Exception]]] = {
    "wrong-token": NotAllowed,
    "cross-origin": NotAllowed,
    "misdirected": NotAllowed,
    "body-too-large": ItemTooLarge,
    "invalid-json": ValueError,
}


class AdminConnection:
    """The HTTP of a client; requests are never retried: an operator should see a refusal."""

    def __init__(
        self,
        url: str,
        token: str | None,
        timeout_s: float | None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout_s = None if timeout_s is None else seconds("timeout_s", timeout_s)
        headers = {"accept": JSON}
        if token is not None:
            headers["authorization"] = f"Bearer {checked_token(token)}"
        self.url = url
        self._server = server_of(url)
        self.pool = Connection([url], headers, transport=transport)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        return await self.ask_within(self._timeout_s, method, path, body)

    async def open_stream(self, path: str, body: Any) -> StreamingAnswer:
        """Makes a call that returns a stream; the caller must close the answer."""
        answer = await self._open("POST", path, body, SILENCE_S, {"accept": JSON_LINES})
        if answer.is_success:
            return answer
        raise self.error_of(answer.status, _parsed(answer, await answer.read()))

    def error_of(self, status: int, body: Any) -> Exception:
        problem = cast("Mapping[str, Any]", body if isinstance(body, dict) else {})
        kind = str(problem.get("type", "")).removeprefix(PROBLEM)
        text = str(problem.get("detail") or problem.get("title") or f"status {status}")
        if kind in _REFUSALS:
            return _REFUSALS[kind](text)
        error = error_from_wire(WireError(kind, text, problem))
        if error is not None:
            return error
        if status == 404:
            return ConnectionError(
                f"there is no admin API at {self.url}: start the server with --admin-socket or "
                "--token-file, or check that this is a Shoal server"
            )
        return RuntimeError(f"{self.url} answered {status}: {text}")

    async def ask_within(
        self, patience_s: float | None, method: str, path: str, body: Any = None
    ) -> Any:
        # httpx limits only the time in which nothing comes.
        with anyio.move_on_after(patience_s):
            answer = await self._open(method, path, body, patience_s, {})
            parsed = _parsed(answer, await answer.read())
            if answer.is_success:
                return parsed
            raise self.error_of(answer.status, parsed)
        raise TimeoutError(f"{self.url} took too long; the request may still be carried out")

    async def _open(
        self,
        method: str,
        path: str,
        body: Any,
        patience_s: float | None,
        headers: Mapping[str, str],
    ) -> StreamingAnswer:
        content = None
        headers = {**trace_headers(), **headers}
        if body is not None:
            content = written(body)
            headers = {**headers, "content-type": JSON}
        path = f"{API}/{path}"
        return await self.pool.open(self._server, method, path, headers, content, patience_s)


def _parsed(answer: StreamingAnswer, body: bytes) -> Any:
    """Returns an empty mapping for an error response without JSON."""
    try:
        parsed: Any = json.loads(body)
    except (ValueError, RecursionError):
        if answer.is_success:
            raise ConnectionError(
                f"{answer.url} did not answer with JSON: it is not Shoal's admin API"
            ) from None
        return dict[str, Any]()
    return parsed
