"""The clients: make calls within their time limits, and again if they certainly did not run.

The client for threads runs the async one in a thread: httpx's blocking client can't be cancelled,
as a handler's thread is with its request.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar, Unpack, cast

import anyio
import anyio.lowlevel

from shoal.batching.calls.mapping import Items, MapCall, MapKeywords, map_blocking
from shoal.batching.calls.window import MapPlan
from shoal.batching.current import trace_headers
from shoal.core.options.option import checked_token, one_of, seconds, whole
from shoal.errors import DeadlineExceeded, ShutDown
from shoal.failures.exceptions import own_copy
from shoal.http_client.bodies import (
    ACCEPTED,
    JSON,
    JSON_LINES,
    RESULT_TYPES,
    FailedResponse,
    ResultType,
    body_of,
    error_of,
    failure_of,
    outcomes_of,
    result_of,
)
from shoal.http_client.connection import SILENCE_S, Connection, NotSent, Server, StreamingAnswer
from shoal.http_client.servers import tries_of, urls_of
from shoal.http_client.stream import HttpStream
from shoal.replicas.portal import PortalThread, blocking_stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    import httpx

    from shoal.batching.calls.threads import ThreadStream

T = TypeVar("T")

NO_ITEM: Final[Any] = ...
_MOST_LINES: Final = 256
_SKEW_S: Final = 0.1  # how far the clock of a server may be ahead


class ClientOptions(TypedDict, total=False):
    token: str | None
    headers: Mapping[str, str] | None
    timeout_s: float | None
    max_attempts: int
    client: httpx.AsyncClient | None


class HttpCallOptions(TypedDict, total=False):
    timeout_s: float | None
    headers: Mapping[str, str] | None
    method: str | None
    result: ResultType | None


class HttpClient:
    """Calls the endpoints of a server.

    ::

        async with shoal.http_client.HttpClient("http://127.0.0.1:8000") as client:
            vector = await client.call("/embed", "some text")

    It connects with the first call, and belongs to the event loop where that is made;
    `SyncHttpClient` is for threads. Without ``async with``, close it with `aclose`.

    A call that the server refuses because it is overloaded, or that does not reach a server, is
    made again after a while. Nothing else is, so calls need not be idempotent. One exception is a
    handler that lets the `Overloaded` of a further call pass: ``max_attempts=1`` is for that.

    With several servers, each call goes to the one with the fewest running calls of this client. A
    call that certainly did not run goes to another server at once: to each at most once if none is
    reached, and to one more if one refuses it. A server that failed, or refused a call, gets no
    further calls for a while, unless all did.

    Every call may raise the classes of errors that a call in the server's process raises, and:

    - `Overloaded`: the server refused the call as too many, and no try is left;
    - `DeadlineExceeded`: it was not answered in time;
    - `HttpProblem`: the server answered with another error;
    - `ConnectionRefusedError`: no server was reached, so the call has not run; also if a name has
      no addresses;
    - `ConnectionError`: the connection broke, and the call may have run;
    - `TimeoutError`: the server took less than 128 KiB of the item in 60 s; the call may have run;
    - `ShutDown`: this client is closed.

    Cancellation: closes the call's connection, and the server cancels the call.

    Args:
        url: ``http://host:port``, ``https://...`` or ``unix:/path/to.sock``; may have a path, below
            which the endpoints are. ``dns:http://host:port`` makes each address of the host name a
            server; the name is looked up again every 5 s, and when a server is not reached. A list
            of such URLs, without ``unix:``, for several servers.
        token: A bearer token, for a server that asks for one.
        headers: Headers of all requests.
        timeout_s: How long a call with one result may take, with its retries, in seconds; None for
            no limit.
        max_attempts: The largest number of tries of a call that is refused; 1 for no retries. The
            wait before the second try is 0.05 to 0.1 s, and twice as long before each further one,
            plus what ``Retry-After`` asks for. A call that must wait for more than 10 s fails. With
            several servers, there is one retry at most, without a wait.
        client: The client of httpx to send requests with, for TLS, proxies, limits or transports of
            your own; it is closed with this one. Over HTTP/2 a server does not learn that a call
            was cancelled, since httpx does not reset its stream.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = 60.0,
        max_attempts: int = 4,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        of_all = {name.lower(): value for name, value in (headers or {}).items()}
        if token is not None:
            of_all["authorization"] = f"Bearer {checked_token(token)}"
        self._timeout_s = math.inf if timeout_s is None else seconds("timeout_s", timeout_s)
        self._max_attempts = whole("max_attempts", max_attempts, least=1)
        urls = urls_of(url)
        self._tries_of = tries_of(urls, self._max_attempts)
        self.url = ", ".join(urls)
        self._connection = Connection(urls, of_all, client=client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections; calls that wait fail with `ShutDown`. Idempotent."""
        await self._connection.aclose()

    async def call(
        self,
        path: str,
        item: Any = NO_ITEM,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
        result: ResultType | None = None,
    ) -> Any:
        """Makes a call with one result.

        The time that is left, by `timeout_s` or the caller's cancel scope, is sent along, so that
        the server drops the call when its caller has given up. So is the trace of OpenTelemetry.

        Args:
            path: The path of the endpoint; may have a query.
            item: The item: bytes are sent as they are, a numpy array as a ``.npy`` file, and
                anything else as JSON. Nothing is sent by default.
            timeout_s: How long it may take, with its retries, in seconds; infinity for no limit,
                None for that of the client.
            headers: More headers, such as ``{"X-Priority": "1"}``.
            method: The HTTP method; None for POST if there is an item, and else GET.
            result: What the result is asked for as: ``"json"``, ``"npy"`` for a numpy array, or
                ``"bytes"``. None for JSON if the server can; then the answer's type decides.

        Returns:
            The result: a JSON value, a numpy array, or bytes.

        Raises:
            TypeError: The item or the answer has the wrong type.
            ValueError: An argument can't be sent.
            Exception: See `HttpClient`.

        Cancellation: closes the connection, and the server cancels the call. Checkpoint: always.
        """
        if result is not None:
            one_of("result", result, RESULT_TYPES)
        request = _request(path, item, headers, method, ACCEPTED[result])
        limit_s = self._timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)

        async def read(answer: StreamingAnswer) -> Any:
            if answer.media_type in (JSON_LINES, "text/event-stream"):
                await answer.aclose()
                raise TypeError(f"{answer.url} answers with a stream; use client.stream(...)")
            return result_of(await answer.read(), answer.media_type, result, answer.url)

        return await self._made(request, anyio.current_time() + limit_s, None, read)

    def stream(
        self,
        path: str,
        item: Any = NO_ITEM,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
    ) -> HttpStream:
        """Returns the stream of a call, which is made when the stream is entered.

        The arguments are those of `call`, and raise the same errors. Only `timeout_s` differs: how
        long the whole stream may take, in seconds; None for no limit of its own.
        """
        request = _request(path, item, headers, method, JSON_LINES)
        limit_s = math.inf if timeout_s is None else seconds("timeout_s", timeout_s)

        async def check(answer: StreamingAnswer) -> StreamingAnswer:
            if answer.media_type != JSON_LINES:
                await answer.aclose()
                raise TypeError(f"{answer.url} does not answer with a stream; use client.call(...)")
            return answer

        async def open_() -> tuple[StreamingAnswer, float]:
            deadline = anyio.current_time() + limit_s
            return await self._made(request, deadline, SILENCE_S, check), deadline

        return HttpStream(open_, error_of)

    def map(
        self,
        path: str,
        items: Items[Any],
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Unpack[MapKeywords],
    ) -> MapCall[Any]:
        """Calls an endpoint for each item: ``await client.map("/embed", texts)``, all results.

        ``async for result in client.map("/embed", texts): ...`` gives one after the other, and
        takes items as there is room for them. Up to 256 items are sent in one request, as JSON
        lines; bytes and arrays in requests of their own.

        Args:
            path: The path of the endpoint; may have a query.
            items: The items, an iterable or async iterable; each as for `call`.
            timeout_s: How long each request may take, as for `call`.
            headers: More headers of each request.
            **options: As for `UnaryCall.map`; by default `window` is 1,024.

        Raises:
            ValueError: An argument can't be sent.
            Exception: The error of an item, as for `call`; see `UnaryCall.map`.

        Cancellation: closes the connections, and the server cancels the calls.
        """
        method, path, sent, _ = _request(path, NO_ITEM, headers, "POST", JSON_LINES)
        sent.setdefault("content-type", JSON_LINES)
        limit_s = self._timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)

        async def read(answer: StreamingAnswer) -> list[Any]:
            return outcomes_of(await answer.read(), answer.media_type, answer.url)

        async def call_one(chunk: list[Any]) -> list[Any]:
            try:
                return [await self.call(path, chunk[0], timeout_s=timeout_s, headers=headers)]
            except Exception as error:
                return [error]

        async def call_all(chunk: list[Any]) -> list[Any]:
            outcomes = list[Any]()
            try:
                bodies = [body_of(item) for item in chunk]
                if any(media_type != JSON for _, media_type in bodies):
                    return await MapCall[Any]((chunk,), {"return_exceptions": True}, lambda _: each)
                content = b"\n".join(body for body, _ in bodies)
                until = anyio.current_time() + limit_s
                outcomes = await self._made((method, path, sent, content), until, None, read)
                if len(outcomes) != len(chunk):
                    raise ConnectionError(f"{self.url}{path} left results out")
            except Exception as error:
                return [own_copy(error) for _ in chunk]
            return outcomes

        each = MapPlan(path, call_one, chunk=1, window=_MOST_LINES, once=_MOST_LINES)
        plan = MapPlan(path, call_all, chunk=_MOST_LINES, window=4 * _MOST_LINES)
        return MapCall((items,), options, lambda _: plan)

    async def _made(
        self,
        request: tuple[str, str, dict[str, str], bytes | None],
        deadline: float,
        silence_s: float | None,
        read: Callable[[StreamingAnswer], Awaitable[T]],
    ) -> T:
        """Makes a call, again while it is refused, and reads its successful response."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        outer = anyio.current_effective_deadline()
        until = min(deadline, outer)
        method, path, given, content = request
        failure: FailedResponse | None = None
        server: Server | None = None
        failures_before = 0
        tries = self._tries_of(until)
        with anyio.CancelScope(deadline=deadline):
            server = await tries.first()
            while server is not None:
                failure = None  # if the time is over during this try, it says so
                failures_before = server.failures
                headers, left_s = given, max(0.0, until - anyio.current_time())
                if left_s < 1e9:
                    # Rounded up: where the limit is the scope's, the scope should tell of it.
                    limit = f"{math.ceil(left_s * 1000) / 1000:.3f}"
                    headers = {"x-request-timeout": limit, **given}
                try:
                    answer = await self._connection.open(
                        server, method, path, headers, content, silence_s
                    )
                    if answer.is_success:
                        return await read(answer)
                    body = await answer.read()
                    failure = failure_of(answer.url, answer.status, answer.retry_after, body)
                except (ConnectionRefusedError, NotSent) as error:
                    was_refused = isinstance(error, ConnectionRefusedError)
                    # Its traceback holds this frame.
                    failure = FailedResponse(error.with_traceback(None), was_refused)
                try:
                    server = await tries.after(failure)
                except BaseException:
                    failure = None  # asyncio may keep this frame for a while
                    raise
        if failure is None:
            if server is not None:
                server.failed(failures_before)
            raise DeadlineExceeded(f"{self.url} did not answer the call in time")
        scope_ends = outer < deadline and outer - anyio.current_time() < _SKEW_S
        if scope_ends and isinstance(failure.error, DeadlineExceeded):
            # The server knows the scope's deadline, and its clock may be a little ahead.
            await anyio.sleep_until(outer)
        try:
            raise failure.error
        finally:
            del failure  # the traceback of its error holds this frame


class SyncHttpClient:
    """Calls the endpoints of a server, and blocks until they are answered; for several threads.

    ::

        with shoal.http_client.SyncHttpClient("http://127.0.0.1:8000") as client:
            vector = client.call("/embed", "some text")

    The arguments are those of `HttpClient`. Its event loop runs in a daemon thread, which starts
    with the first call. Without ``with``, close it with `close`. In a thread that runs an event
    loop, which would be blocked, every call raises a RuntimeError.

    Cancellation: an exception in a thread that waits, such as `KeyboardInterrupt`, cancels its
    call; so does the end of the request that the thread works for.
    """

    def __init__(self, url: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        self._client = HttpClient(url, **options)
        self.url = self._client.url
        self._thread = PortalThread("shoal-http-client")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and ends the thread. Idempotent."""
        self._thread.close(self._client.aclose)

    def call(self, path: str, item: Any = NO_ITEM, **options: Unpack[HttpCallOptions]) -> Any:
        """Makes a call with one result; see `HttpClient.call`."""
        call = partial(self._client.call, path, item, **options)
        return self._thread.run(call, "await client.call(...)")

    def map(self, path: str, items: Iterable[Any], **options: Any) -> Any:
        """Calls an endpoint for each item; see `HttpClient.map`.

        Returns:
            All results, as a list. With a `window`, an iterator of them, which reads items in this
            thread as there is room for them.
        """
        mine = {name: options.pop(name) for name in ("timeout_s", "headers") if name in options}

        def run(function: Callable[[], Awaitable[T]]) -> T:
            return self._thread.run(function, "await client.map(...)")

        def leave(call: MapCall[Any]) -> None:
            with suppress(ShutDown):  # then the calls have ended
                run(call.aclose)

        make = partial(self._client.map, path, **mine)
        return map_blocking(make, (items,), cast("Any", options), run, leave, path)

    def stream(self, path: str, item: Any = NO_ITEM, **options: Any) -> ThreadStream[Any]:
        """Returns the stream of a call: ``with ... as stream``; see `HttpClient.stream`."""
        stream = self._client.stream(path, item, **options)
        return blocking_stream(lambda: stream, self._thread, "client")


def _request(
    path: str, item: Any, headers: Mapping[str, str] | None, method: str | None, accept: str
) -> tuple[str, str, dict[str, str], bytes | None]:
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"the path of an endpoint must be text, such as '/embed', not {path!r}")
    if not re.match("/(?!/)", path) or not path.isprintable() or "#" in path:
        raise ValueError(
            "the path of an endpoint has one slash at its start, as '/embed', and printable "
            f"characters without '#'; quote others, as '/embed?text=a%0Ab': {path[:100]!r}"
        )
    all_headers = {"accept": accept, **trace_headers()}
    content = None
    if item is not NO_ITEM:
        content, all_headers["content-type"] = body_of(item)
    all_headers.update((name.lower(), value) for name, value in (headers or {}).items())
    return method or ("GET" if content is None else "POST"), path, all_headers, content
