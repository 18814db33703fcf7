"""The route of an endpoint: makes a call of a backend from a request, and answers with its result.

The endpoint's traffic determines the backend. ``X-Serve-Call-Method`` names another method of the
backend's code than ``__call__``, and requests with equal ``X-Serve-Shard-Key`` go to the same
backend; both headers are Ray Serve's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.datastructures import Headers
from starlette.responses import Response

from shoal.core.forming.call_options import CallOptions
from shoal.errors import NoSuchName, NotOpen
from shoal.http.requests.disconnect import (
    call_of_parts,
    call_unless_client_leaves,
    run_unless_client_leaves,
)
from shoal.http.requests.exchange import JSON, ClientLeft, read_body
from shoal.http.requests.header_check import check_headers
from shoal.http.requests.payload import encoded
from shoal.http.requests.problem import (
    Refused,
    explained,
    no_such_method,
    no_such_priority,
    not_found,
    not_open,
)
from shoal.http.requests.streaming import answer_with_stream
from shoal.http.requests.wrong_loop import hint_for
from shoal.serving.endpoints.compared_stream import ComparedStream

if TYPE_CHECKING:
    from starlette.types import Scope

    from shoal.batching.calls.entry import Entry
    from shoal.core.options.options import BatchOptions
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem
    from shoal.http.requests.readers import Readers
    from shoal.http.requests.settings import HttpSettings
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.endpoints.endpoint import Endpoint

_log: Final = logging.getLogger("shoal.http")


class EndpointRoute:
    """Answers requests with calls of one endpoint.

    Attributes:
        name: The endpoint's name.
        endpoint: The endpoint.
    """

    def __init__(self, endpoint: Endpoint, readers: Readers, settings: HttpSettings) -> None:
        self.name = endpoint.name
        self.endpoint = endpoint
        self._readers = readers
        self._settings = settings
        self._has_hinted = False

    async def answer(self, exchange: Exchange) -> None:
        """Answers one request.

        Raises:
            ClientLeft: The client is gone, or did not read in time; the call was cancelled.
            Exception: The request failed before its answer had begun.
        """
        endpoint = self.endpoint
        endpoint.requests += 1
        try:
            await self._answer(exchange, endpoint)
        except (ClientLeft, Refused):  # mistakes of clients don't count as errors
            raise
        except Exception as error:
            self._count_failure(error)
            raise

    async def _answer(self, exchange: Exchange, endpoint: Endpoint) -> None:
        body = await read_body(
            exchange.receive,
            exchange.headers.get(b"content-length"),
            self._settings.max_body_bytes,
        )
        # After the body was read: meanwhile the traffic may have moved to another backend.
        method, key = _method_and_key(exchange)
        try:
            backend = endpoint.backend_for(key)
        except NoSuchName:  # the endpoint was deleted just now
            raise Refused(not_found()) from None
        method_batcher = None if backend is None else backend.method_batchers.get(method)
        spent_s = 0.0
        if method_batcher is None:
            started = anyio.current_time()
            method_batcher = await self._method_batcher(exchange, endpoint, method, key)
            spent_s = anyio.current_time() - started
        entry, batcher = self._entry(method_batcher), method_batcher.batcher
        item = self._readers.of(batcher).item(exchange, body)
        timeout_s = batcher.options.request_timeout_s
        if timeout_s is None and not method_batcher.streams:
            timeout_s = self._settings.answer_timeout_s
        if timeout_s is not None and spent_s:
            timeout_s = max(0.0, timeout_s - spent_s)
        metadata = CallMetadata(self.name, exchange.request_id, exchange.scope)
        call_options = CallOptions(timeout_s, metadata, _priority(exchange, batcher.options))
        answer = endpoint.copied(method_batcher, item, metadata) if endpoint.shadows else None
        try:
            if method_batcher.streams:
                stream = entry.begin_stream_of(item, call_options)
                await answer_with_stream(
                    exchange,
                    stream if answer is None else ComparedStream(stream, answer),
                    lambda error: self._explained(error, exchange),
                    self._settings.heartbeat_s,
                )
                return
            call = call_of_parts if batcher.options.split is not None else call_unless_client_leaves
            result = await call(exchange.receive, entry, item, call_options)
            if answer is not None:
                answer.set(result)
        finally:
            if answer is not None:
                answer.end()
        if isinstance(result, Response):
            await _answer_with_response(exchange, result)
        else:
            await exchange.answer(200, JSON, encoded(result))

    def _explained(self, error: Exception, exchange: Exchange) -> Problem:
        self._count_failure(error)
        return explained(error, self._settings, self.name, exchange.request_id)

    def _count_failure(self, error: Exception) -> None:
        self.endpoint.errors += 1
        if not self._has_hinted:
            original = error.__cause__ or error
            hint = hint_for(f"{type(original).__name__}: {original}")
            if hint is not None:
                self._has_hinted = True
                _log.error("%s: %s", self.name, hint)

    def _entry(self, method_batcher: MethodBatcher) -> Entry:
        """Returns the entry to the batcher's queue in this event loop.

        Raises:
            Refused: The application is not open in this event loop.
        """
        try:
            return method_batcher.entry()
        except NotOpen:
            raise Refused(not_open(self._settings)) from None

    async def _method_batcher(
        self, exchange: Exchange, endpoint: Endpoint, method: str, key: str | None
    ) -> MethodBatcher:
        """Waits until the endpoint has traffic, or a replica has reported its methods.

        Raises:
            Refused: The backend has no such method.
            ClientLeft: The client disconnected meanwhile.
        """
        found: MethodBatcher | None = None

        async def wait() -> None:
            nonlocal found
            found = await endpoint.routed(method, key, self._settings.answer_timeout_s)

        try:
            await run_unless_client_leaves(exchange.receive, wait)
        except NoSuchName:
            raise Refused(no_such_method()) from None
        assert found is not None
        return found


def _method_and_key(exchange: Exchange) -> tuple[str, str | None]:
    """Returns the method of the code and the shard key in a request's headers."""
    method = exchange.headers.get(b"x-serve-call-method", b"__call__").decode("latin-1")
    key = exchange.headers.get(b"x-serve-shard-key")
    return method, None if key is None else key.decode("latin-1")


def _priority(exchange: Exchange, options: BatchOptions) -> int | None:
    """Returns the level in a request's ``X-Priority``; None for the default level.

    Raises:
        Refused: There is no such level.
    """
    given = exchange.headers.get(b"x-priority")
    if given is None or options.priority_levels == 1:
        return None
    try:
        return options.checked_priority("X-Priority", int(given))
    except ValueError:
        raise Refused(no_such_priority(options.priority_levels)) from None


class CallMetadata(Mapping[str, Any]):
    """The ``request.metadata`` of a call over HTTP.

    Its keys are ``endpoint``, ``context`` (``"http"``), ``request_id``, ``method``, ``path`` and
    ``headers`` (a Starlette `Headers`).
    """

    __slots__ = ("_endpoint", "_request_id", "_scope")

    def __init__(self, endpoint: str, request_id: str, scope: Scope) -> None:
        self._endpoint = endpoint
        self._request_id = request_id
        self._scope = scope

    def __getitem__(self, key: str) -> Any:
        match key:
            case "endpoint":
                return self._endpoint
            case "context":
                return "http"
            case "request_id":
                return self._request_id
            case "method" | "path":
                return self._scope[key]
            case "headers":
                return Headers(scope=self._scope)
            case _:
                raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(_KEYS)

    def __len__(self) -> int:
        return len(_KEYS)


_KEYS: Final = ("endpoint", "context", "request_id", "method", "path", "headers")


async def _answer_with_response(exchange: Exchange, response: Response) -> None:
    """Sends a response that a handler has returned: its status, headers and body."""
    body: Any = getattr(response, "body", None)
    if body is None:
        raise TypeError(
            f"the result is a {type(response).__name__}, which has no body of its own; return a "
            "Response, or write the handler as a generator to stream"
        )
    media_type = response.headers.get("content-type", "").encode("latin-1")
    headers = [
        (n, v) for n, v in response.raw_headers if n not in (b"content-type", b"content-length")
    ]
    check_headers(response.raw_headers)
    await exchange.answer(response.status_code, media_type, bytes(body), headers)
    if response.background is not None:
        await response.background()
