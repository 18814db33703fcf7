"""The client: makes calls within their time limits, and again where that is right.

Only a call that the server refused as too many, or that did not reach it, is made again, so a call
whose handler may have run is never repeated. The waits grow, so that many clients leave a server
the time to recover, and are drawn at random, so that they do not come back at once.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypedDict, TypeVar, cast

import anyio
import anyio.lowlevel

from shoal.batching.current import current_batch
from shoal.batching.trace import trace_headers
from shoal.core.options.checks import more_than_0, one_of, seconds, whole
from shoal.errors import DeadlineExceeded
from shoal.http_client.bodies import (
    ACCEPTED,
    JSON_LINES,
    RESULT_TYPES,
    ResultType,
    body_of,
    result_of,
)
from shoal.http_client.connection import SILENCE_S, Connection, checked_token
from shoal.http_client.problems import Failure, error_of, failure_of
from shoal.http_client.stream import HttpStream
from shoal.replicas.many_calls import call_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from typing import Unpack

    import httpx

    from shoal.core.request import Request
    from shoal.http_client.connection import StreamingAnswer

T = TypeVar("T")

NO_ITEM: Final[Any] = ...
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
# How far the clock of a server may be ahead, in seconds.
_SKEW_S: Final = 0.1


@dataclass(frozen=True)
class RetryOptions:
    """When a call that was refused is made again.

    The wait before the second try is half to all of `first_delay_s`, drawn at random; before each
    further try it is twice as long. If the server says ``Retry-After``, that is added.

    Attributes:
        attempts: The largest number of tries; 1 for no retries.
        first_delay_s: The longest first wait, in seconds.
        max_delay_s: The longest wait, in seconds. A server that asks for a longer one is not tried
            again.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of its range.
    """

    attempts: int = 4
    first_delay_s: float = 0.1
    max_delay_s: float = 10.0

    def __post_init__(self) -> None:
        whole("attempts", self.attempts, least=1)
        more_than_0("first_delay_s", self.first_delay_s)
        more_than_0("max_delay_s", self.max_delay_s)

    def delay_s(self, attempt: int, failure: Failure) -> float | None:
        """Returns how long to wait after this attempt; None if it is the last one."""
        asked_s = failure.retry_after_s or 0.0
        if not failure.was_refused or attempt >= self.attempts or asked_s > self.max_delay_s:
            return None
        # Not 2.0 ** attempt, which overflows for a thousand attempts.
        longest_s = min(self.max_delay_s, self.first_delay_s * 2.0 ** min(attempt - 1, 60))
        return min(self.max_delay_s, asked_s + longest_s * random.uniform(0.5, 1.0))  # noqa: S311


class ClientOptions(TypedDict, total=False):
    """The options of `HttpClient`."""

    token: str | None
    headers: Mapping[str, str] | None
    timeout_s: float | None
    retries: RetryOptions | None
    client: httpx.AsyncClient | None


class StreamOptions(TypedDict, total=False):
    """The options of `HttpClient.stream`."""

    timeout_s: float | None
    headers: Mapping[str, str] | None
    method: str | None
    request: Request | None


class CallOptions(StreamOptions, total=False):
    """The options of `HttpClient.call`."""

    result: ResultType | None


class HttpClient:
    """Calls the endpoints of a server.

    ::

        async with shoal.http_client.HttpClient("http://127.0.0.1:8000") as client:
            vector = await client.call("/embed", "some text")

    It connects with the first call. Without ``async with``, close it with `aclose`. It belongs to
    the event loop where it is first used; `SyncHttpClient` is for threads.

    A call that the server refuses because it is overloaded, or that does not reach a server, is
    made again after a while. Nothing else is: a call whose connection broke, or whose time is over,
    may have run. So calls need not be idempotent, but for one case: a handler that raises the
    `Overloaded` of another endpoint, which it calls, has begun when it is called again. Use
    ``RetryOptions(attempts=1)`` for endpoints whose handlers must not.

    Every call may raise what the server reports, by the classes that a call in its process raises,
    and:

    - `Overloaded`: the server refused the call as too many, and no try is left;
    - `DeadlineExceeded`: it was not answered in time;
    - `HttpProblem`: the server answered with an error that has no class;
    - `ConnectionRefusedError`: no server was reached, so the call has not run;
    - `ConnectionError`: the connection broke, and the call may have run;
    - `TimeoutError`: the server took less than 128 KiB of the item in 60 s; the call may have run;
    - `ShutDown`: this client is closed.

    Cancellation: closes the call's connection, and the server cancels the call.

    Args:
        url: ``http://host:port``, ``https://...`` or ``unix:/path/to.sock``; may have a path, below
            which the endpoints are.
        token: A bearer token, for a server that asks for one.
        headers: Headers of all requests.
        timeout_s: How long a call with one result may take, with its retries, in seconds; None for
            no limit.
        retries: When a call that was refused is made again; `RetryOptions` by default.
        client: The client of httpx to send requests with, for TLS, proxies, limits or transports of
            your own; it is closed with this one. Over HTTP/2 a server does not learn that a call
            was cancelled, since httpx does not reset its stream.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range, or has invalid characters.
        ModuleNotFoundError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = 60.0,
        retries: RetryOptions | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        of_all = dict(headers or {})
        if token is not None:
            of_all["authorization"] = f"Bearer {checked_token(token)}"
        self.url = url
        self._timeout_s = math.inf if timeout_s is None else seconds("timeout_s", timeout_s)
        self._retries = retries or RetryOptions()
        self._connection = Connection(url, of_all, client=client)

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
                ``"bytes"``. None for JSON if the server can; then the answer's type decides.
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
        if result is not None:
            one_of("result", result, RESULT_TYPES)
        prepared = _prepare(path, item, headers, method, request, ACCEPTED[result])
        limit_s = self._timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)

        async def read(answer: StreamingAnswer) -> Any:
            if answer.media_type in (JSON_LINES, "text/event-stream"):
                await answer.aclose()
                raise TypeError(f"{answer.url} answers with a stream; use client.stream(...)")
            return result_of(await answer.read(), answer.media_type, result, answer.url)

        return await self._made(prepared, anyio.current_time() + limit_s, None, read)

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

        The arguments are those of `call`, and raise the same errors. Only `timeout_s` differs: how
        long the whole stream may take, in seconds; None for no limit of its own.
        """
        prepared = _prepare(path, item, headers, method, request, JSON_LINES)
        limit_s = math.inf if timeout_s is None else seconds("timeout_s", timeout_s)

        async def check(answer: StreamingAnswer) -> StreamingAnswer:
            if answer.media_type != JSON_LINES:
                await answer.aclose()
                raise TypeError(f"{answer.url} does not answer with a stream; use client.call(...)")
            return answer

        async def open_() -> tuple[StreamingAnswer, float]:
            deadline = anyio.current_time() + limit_s
            return await self._made(prepared, deadline, SILENCE_S, check), deadline

        return HttpStream(open_, partial(error_of, f"{self.url}{path}"))

    async def map(
        self,
        path: str,
        items: Iterable[Any],
        *,
        max_concurrent: int = 64,
        return_exceptions: bool = False,
        **options: Unpack[CallOptions],
    ) -> list[Any]:
        """Makes a call for each item, and waits for all of them.

        Args:
            path: The path of the endpoint.
            items: The items.
            max_concurrent: The largest number of calls at a time.
            return_exceptions: Whether errors are returned in the list instead of being raised.
            **options: The options of each `call`, such as its `timeout_s`.

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

    async def _made(
        self,
        prepared: _Prepared,
        deadline: float,
        silence_s: float | None,
        read: Callable[[StreamingAnswer], Awaitable[T]],
    ) -> T:
        """Makes a call, again while it is refused, and reads its successful response."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        outer = anyio.current_effective_deadline()
        until = min(deadline, outer)
        failure: Failure | None = None
        with anyio.CancelScope(deadline=deadline):
            for attempt in itertools.count(1):
                left_s = max(0.0, until - anyio.current_time())
                method, path, headers, content = prepared
                if left_s < 1e9:
                    # Rounded up: where the limit is the scope's, the scope should tell of it.
                    limit = f"{math.ceil(left_s * 1000) / 1000:.3f}"
                    headers = {"x-request-timeout": limit, **headers}
                try:
                    answer = await self._connection.open(method, path, headers, content, silence_s)
                    if answer.is_success:
                        return await read(answer)
                    body = await answer.read()
                    failure = failure_of(answer.url, answer.status, answer.retry_after, body)
                except ConnectionRefusedError as error:
                    failure = Failure(error, was_refused=True)
                delay_s = self._retries.delay_s(attempt, failure)
                if delay_s is None or anyio.current_time() + delay_s >= until:
                    break
                await anyio.sleep(delay_s)
                failure = None
        if failure is None:
            raise DeadlineExceeded(f"{self.url} did not answer the call in time")
        scope_ends = outer < deadline and outer - anyio.current_time() < _SKEW_S
        if scope_ends and isinstance(failure.error, DeadlineExceeded):
            # The server was told of the scope's deadline, and its clock may be a little ahead.
            await anyio.sleep_until(outer)
        try:
            raise failure.error
        finally:
            del failure  # the traceback of its error holds this frame


class _Prepared(NamedTuple):
    """The request of a call, without its time limit."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes | None


def _prepare(
    path: str,
    item: Any,
    headers: Mapping[str, str] | None,
    method: str | None,
    request: Request | None,
    accept: str,
) -> _Prepared:
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"the path of an endpoint must be text, such as '/embed', not {path!r}")
    if not re.match("/(?!/)", path) or not path.isprintable() or "#" in path:
        raise ValueError(
            "the path of an endpoint has one slash at its start, as '/embed', and printable "
            f"characters without '#'; quote others, as '/embed?text=a%0Ab': {path[:100]!r}"
        )
    own = {"accept": accept}
    content = None
    if item is not NO_ITEM:
        content, own["content-type"] = body_of(item)
    all_headers = {**own, **_trace_of(request)}
    all_headers.update((name.lower(), value) for name, value in (headers or {}).items())
    method = method or ("GET" if content is None else "POST")
    return _Prepared(method, path, all_headers, content)


def _trace_of(request: Request | None) -> dict[str, str]:
    """Returns the headers that continue the current trace, or that of a request.

    The current trace is that of a program that uses OpenTelemetry. Without one, it is that of the
    given request, or of the only request of the calling handler's batch.
    """
    current = trace_headers()
    if "traceparent" in current:
        return current
    if request is None:
        try:
            (request,) = current_batch().requests
        except (RuntimeError, ValueError):
            return current
    headers = cast("Mapping[str, str]", request.metadata.get("headers") or {})
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    if not _TRACEPARENT.fullmatch(parent):  # of another client
        return {}
    return {"traceparent": parent, **({"tracestate": state} if 0 < len(state) <= 512 else {})}
