"""The client: makes calls, again where that is right, and within their time limits."""

from __future__ import annotations

import math
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, get_args

import anyio
import anyio.lowlevel

from shoal.core.extras import need
from shoal.core.options.checks import one_of, seconds, whole
from shoal.errors import DeadlineExceeded
from shoal.http_client.address import checked_headers, checked_method, checked_path, checked_token
from shoal.http_client.bodies import ACCEPTED, JSON_LINES, ResultType, body_of, result_of
from shoal.http_client.connection import SILENCE_S, Connection
from shoal.http_client.json_lines import JsonLines
from shoal.http_client.limits import TimeLimit, request_of, trace_of
from shoal.http_client.problems import Failure, error_of, failure_of
from shoal.http_client.retries import Backoff, RetryOptions
from shoal.http_client.stream import HttpStream
from shoal.http_client.websocket.socket import HttpSocket
from shoal.replicas.many_calls import call_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from typing import Unpack

    import httpx

    from shoal.core.request import Request
    from shoal.http_client.answer import StreamingAnswer
    from shoal.http_client.keywords import CallKeywords

T = TypeVar("T")

NO_ITEM: Final[Any] = ...


def connect(
    url: str,
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = 60.0,
    retries: RetryOptions | None = None,
    max_answer_bytes: int = 2**28,
    max_connections: int | None = None,
    tls: ssl.SSLContext | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> HttpClient:
    """Returns a client of the endpoints of a server.

    ::

        async with shoal.http_client.connect("http://127.0.0.1:8000") as client:
            vector = await client.call("/embed", "some text")

    It connects with the first call. Without ``async with``, close it with `HttpClient.aclose`. A
    client belongs to the event loop where it is first used; `connect_sync` returns one for threads.

    Args:
        url: ``http://host:port``, ``https://...`` or ``unix:/path/to.sock``; may have a path, below
            which the endpoints are.
        token: A bearer token, for a server that asks for one.
        headers: Headers of all requests.
        timeout_s: How long a call with one result may take, with its retries, in seconds; None for
            no limit.
        retries: When a call that was refused is made again; `RetryOptions` by default.
        max_answer_bytes: The largest answer, and the largest message of a stream, in bytes.
        max_connections: The largest number of connections, and so of calls at a time; others wait.
            None for no limit.
        tls: Whom to trust, and who this client is; None to trust the usual authorities.
        transport: The httpx transport to use instead of sockets, such as one for tests. Of one that
            speaks HTTP/2 a server does not learn that a call was cancelled, since httpx does not
            reset its stream: the call ends when it is done, or when this client is closed.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range, or has invalid characters.
        ModuleNotFoundError: httpx is not installed.
    """
    return HttpClient(
        url,
        token=token,
        headers=headers,
        timeout_s=timeout_s,
        retries=retries,
        max_answer_bytes=max_answer_bytes,
        max_connections=max_connections,
        tls=tls,
        transport=transport,
    )


class HttpClient:
    """Calls the endpoints of a server; see `connect`.

    A call that the server refuses because it is overloaded, or that does not reach a server, is
    made again after a while. Nothing else is: a call whose connection broke, or whose time is over,
    may have run. So calls need not be idempotent, but for one case: a handler that raises the
    `Overloaded` of another endpoint, which it calls, has begun when it is called again. Use
    ``RetryOptions(attempts=1)`` for endpoints whose handlers must not.

    Every call may also raise what the server reports, by the classes that a call in its process
    raises, and:

    - `Overloaded`: the server refused the call as too many, and no try is left;
    - `DeadlineExceeded`: it was not answered in time;
    - `HttpProblem`: the server answered with an error that has no class;
    - `ConnectionRefusedError`: no server was reached, so the call has not run;
    - `ConnectionError`: the connection broke, and the call may have run;
    - `TimeoutError`: the server took less than 128 KiB of the item in 60 s; the call may have run;
    - `ShutDown`: this client is closed.

    Cancellation: closes the call's connection, and the server cancels the call.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        headers: Mapping[str, str] | None,
        timeout_s: float | None,
        retries: RetryOptions | None,
        max_answer_bytes: int,
        max_connections: int | None,
        tls: ssl.SSLContext | None,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        of_all = checked_headers(headers)
        if token is not None:
            of_all["authorization"] = f"Bearer {checked_token(token)}"
        self._timeout_s = math.inf if timeout_s is None else seconds("timeout_s", timeout_s)
        self._backoff = Backoff(
            _checked("retries", RetryOptions() if retries is None else retries, RetryOptions)
        )
        self._connection = Connection(
            url,
            of_all,
            max_answer_bytes=whole("max_answer_bytes", max_answer_bytes, least=1),
            max_connections=max_connections
            if max_connections is None
            else whole("max_connections", max_connections, least=1),
            tls=tls if tls is None else _checked("tls", tls, ssl.SSLContext),
            transport=transport,
        )

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._connection.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. Idempotent."""
        await self._connection.aclose()

    def close_to(self, reason: str) -> None:
        """Refuses all further calls, for this reason."""
        self._connection.close_to(reason)

    async def call(
        self,
        path: str,
        item: Any = NO_ITEM,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
        result: ResultType | None = None,
        request: Request | None = None,
    ) -> Any:
        """Makes a call with one result.

        Its time limit is sent along, so that the server drops the call when its caller has given
        up. The limit is `timeout_s`, or the deadline of the caller's cancel scope if that is
        earlier.

        Args:
            path: The path of the endpoint; may have a query.
            item: The item: bytes are sent as they are, a numpy array as a ``.npy`` file, and
                anything else as JSON. Nothing is sent by default.
            timeout_s: How long it may take, with its retries, in seconds; infinity for no limit,
                None for that of the client.
            headers: More headers, such as ``{"X-Priority": "1"}``.
            method: The HTTP method; None for POST if there is an item, and else GET.
            result: What the result is asked for as: ``"json"``, ``"npy"`` for a numpy array, or
                ``"bytes"``. None for JSON if the server can; then the answer's type counts.
            request: In a handler, the request that this call is made for: its ``traceparent`` and
                ``tracestate`` are passed on. None for the only request of the batch; if there are
                several, for none of them.

        Returns:
            The result: a JSON value, a numpy array, or bytes.

        Raises:
            TypeError: An argument or the answer has the wrong type, or the item can't be sent.
            ValueError: An argument can't be sent.
            Exception: See `HttpClient`.

        Cancellation: closes the connection, and the server cancels the call. Checkpoint: always.
        """
        given_s = self._timeout_s if timeout_s is None else timeout_s
        if result is not None:
            one_of("result", result, _RESULTS)
        make = self._prepared(path, item, headers, method, request, accept=ACCEPTED[result])

        async def attempt(limit: TimeLimit) -> Any:
            answer = await make(limit, None)
            if answer.media_type in _STREAMS and answer.is_success:
                await answer.aclose()
                raise TypeError(f"{answer.url} answers with a stream; use client.stream(...)")
            body = await answer.read()
            if answer.is_success:
                return result_of(body, answer.media_type, result, answer.url)
            return _failure(answer, body)

        return await self._made(attempt, given_s)

    def stream(
        self,
        path: str,
        item: Any = NO_ITEM,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
        request: Request | None = None,
    ) -> HttpStream:
        """Returns the stream of a call, which is made when the stream is entered.

        Args:
            path: As for `call`.
            item: As for `call`.
            timeout_s: How long the whole stream may take, in seconds; None for no limit of its own.
            headers: As for `call`.
            method: As for `call`.
            request: As for `call`.

        Raises:
            TypeError: An argument has the wrong type, or the item can't be sent.
            ValueError: An argument can't be sent.
        """
        given_s = math.inf if timeout_s is None else seconds("timeout_s", timeout_s)
        make = self._prepared(path, item, headers, method, request, accept=JSON_LINES)
        url = f"{self.url}{path}"

        async def attempt(limit: TimeLimit) -> tuple[JsonLines, float] | Failure:
            answer = await make(limit, SILENCE_S)
            if not answer.is_success:
                return _failure(answer, await answer.read())
            if answer.media_type != JSON_LINES:
                await answer.aclose()
                raise TypeError(f"{answer.url} does not answer with a stream; use client.call(...)")
            return JsonLines(self._connection, answer, partial(error_of, url)), limit.own

        return HttpStream(partial(self._made, attempt, given_s))

    def websocket(
        self,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        max_requests: int = 64,
        request: Request | None = None,
    ) -> HttpSocket:
        """Returns a WebSocket for many calls of one endpoint; it connects when it is entered.

        ::

            async with client.websocket("/embed") as socket:
                vector = await socket.call("some text")

        Its calls have the time limits, the retries and the errors of the client's calls.

        Args:
            path: The path of the endpoint.
            headers: More headers of the handshake, which count for all of its calls.
            max_requests: How many calls may run at once; others wait. A Shoal server allows 64.
            request: As for `call`; its trace is continued by all calls.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument can't be sent.
            ModuleNotFoundError: wsproto is not installed.
        """
        checked_path(path)
        whole("max_requests", max_requests, least=1)
        need("a client on a WebSocket", "wsproto", "client")
        of_request = {**trace_of(request_of(request)), **checked_headers(headers)}

        async def open_(of_handshake: Mapping[str, str]) -> StreamingAnswer:
            all_headers = {**of_request, **of_handshake}
            return await self._connection.open("GET", path, all_headers, None, SILENCE_S)

        return HttpSocket(
            open_, self._made, self._timeout_s, max_requests, self._connection.max_answer_bytes
        )

    async def map(
        self,
        path: str,
        items: Iterable[Any],
        *,
        max_concurrent: int = 64,
        return_exceptions: bool = False,
        **options: Unpack[CallKeywords],
    ) -> list[Any]:
        """Makes a call for each item, and waits for all of them.

        Args:
            path: The path of the endpoint.
            items: The items.
            max_concurrent: The largest number of calls at a time.
            return_exceptions: Whether errors are returned in the list instead of being raised.
            **options: The options of each `call`; `timeout_s` counts for each.

        Returns:
            The results, in the order of the items.

        Raises:
            Exception: As for a single call: the first in the order of the items, after all ended.

        Cancellation: all of the calls are cancelled. Checkpoint: always.
        """
        whole("max_concurrent", max_concurrent, least=1)
        return await call_each(
            partial(self.call, path, **options),
            [(item,) for item in items],
            max_concurrent=max_concurrent,
            return_exceptions=return_exceptions,
        )

    def __reduce__(self) -> Any:
        raise TypeError(
            "a client can't be pickled, it holds connections; connect where it is used:\n"
            f"    shoal.http_client.connect({self.url!r})"
        )

    def _prepared(
        self,
        path: str,
        item: Any,
        headers: Mapping[str, str] | None,
        method: str | None,
        request: Request | None,
        *,
        accept: str,
    ) -> Callable[[TimeLimit, float | None], Awaitable[StreamingAnswer]]:
        """Returns a function that sends the request of a call once."""
        checked_path(path)
        content, of_item = None, dict[str, str]()
        if item is not NO_ITEM:
            content, media_type = body_of(item)
            of_item["content-type"] = media_type
        of_request = {
            "accept": accept,
            **of_item,
            **trace_of(request_of(request)),
            **checked_headers(headers),
        }
        if method is None:
            method = "GET" if content is None else "POST"
        checked_method(method)

        async def send(limit: TimeLimit, silence_s: float | None) -> StreamingAnswer:
            of_attempt = {**limit.header(), **of_request}
            return await self._connection.open(method, path, of_attempt, content, silence_s)

        return send

    async def _made(
        self, attempt: Callable[[TimeLimit], Awaitable[T | Failure]], timeout_s: float
    ) -> T:
        """Makes a call, and makes it again while it is refused.

        Args:
            attempt: Makes the call once. Returns its result, or why it failed.
            timeout_s: How long it may take, in seconds; infinity for no limit.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        limit = TimeLimit(timeout_s)
        made: T | Failure | None = None
        with anyio.CancelScope(deadline=limit.own) as scope:
            attempts = 0
            while True:
                try:
                    made = await attempt(limit)
                except ConnectionRefusedError as error:
                    made = Failure(error, was_refused=True)
                attempts += 1
                if not isinstance(made, Failure):
                    return made
                delay_s = self._delay_s(made, attempts)
                if delay_s is None or delay_s >= limit.left_s:
                    break
                await anyio.sleep(delay_s)
        if scope.cancelled_caught:
            raise DeadlineExceeded(f"{self.url} did not answer the call in time")
        assert isinstance(made, Failure)
        if isinstance(made.error, DeadlineExceeded):
            await limit.let_scope_end()
        try:
            raise made.error
        finally:
            del made  # the traceback of its error holds this frame

    def _delay_s(self, failure: Failure, attempts: int) -> float | None:
        if not failure.was_refused:
            return None
        return self._backoff.delay_s(attempts, failure.retry_after_s)


_RESULTS: Final[tuple[str, ...]] = get_args(ResultType)
_STREAMS: Final = (JSON_LINES, "text/event-stream")


def _checked(name: str, value: T, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be of type {kind.__name__}, not {value!r}")
    return value


def _failure(answer: StreamingAnswer, body: bytes) -> Failure:
    return failure_of(answer.url, answer.status, answer.header("retry-after"), body)
