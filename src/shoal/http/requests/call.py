"""Calls of endpoints for clients of a network protocol: the layer between a codec and the engine.

A call finds its backend by the endpoint's traffic, and waits for one if there is none yet. It has a
time limit and a priority, is copied to shadow backends, is cancelled when its client disconnects,
and is counted. None of this depends on the protocol.

The ``request.metadata`` of such a call has the keys ``endpoint``, ``context`` (``"http"``),
``request_id``, ``method``, ``path``, ``path_params`` (the values of the route's parameters) and
``headers`` (a Starlette `Headers`). ``user`` and ``auth`` come from authentication middleware, and
are None without it. ``method_name``, ``shard_key`` and ``model`` are there if the request
has ``X-Serve-Call-Method``, ``X-Serve-Shard-Key`` or ``X-Model``, and ``shadow`` in the copy for a
shadow.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import anyio
from starlette.datastructures import Headers

from shoal.batching.calls.leaving import run_unless_left
from shoal.core.forming.call_options import CallOptions
from shoal.errors import DeadlineExceeded, NoSuchName, Overloaded
from shoal.failures.hints import server_hint
from shoal.http.requests.problem import (
    NOT_FOUND,
    NOT_OPEN,
    Refused,
    is_failure,
    original_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Scope

    from shoal.asgi.http_options import HttpOptions
    from shoal.batching.calls.entry import Entry
    from shoal.batching.calls.leaving import WhenLeft
    from shoal.batching.calls.stream import ResultStream
    from shoal.core.options.options import BatchOptions
    from shoal.http.requests.problem import Problem
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.endpoint import Endpoint
    from shoal.serving.shadow import PrimaryAnswer


class Caller(Protocol):
    @property
    def request_id(self) -> str: ...

    @property
    def headers(self) -> Mapping[bytes, bytes]: ...

    @property
    def scope(self) -> Scope: ...

    @property
    def when_left(self) -> WhenLeft: ...


class HttpMetadata(Mapping[str, Any]):
    __slots__ = ("_endpoint", "_known", "caller")

    def __init__(self, endpoint: str, caller: Any) -> None:
        # The caller has a `scope` and a `request_id`.
        self._endpoint = endpoint
        self.caller = caller

    @property
    def _values(self) -> dict[str, Any]:
        if not hasattr(self, "_known"):
            scope = self.caller.scope
            self._known: dict[str, Any] = {
                "endpoint": self._endpoint,
                "context": "http",
                "request_id": self.caller.request_id,
                "method": scope["method"],
                "path": scope["path"],
                "path_params": scope.get("path_params", {}),
                "headers": Headers(scope=scope),
                "user": scope.get("user"),
                "auth": scope.get("auth"),
            }
            for name, value in scope["headers"]:
                if name in _OF_RAY:
                    self._known[_OF_RAY[name]] = value.decode("latin-1")
        return self._known

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def to_send(self) -> tuple[dict[str, Any], dict[str, Any], list[tuple[bytes, bytes]]]:
        """Returns values of plain types, other values, and headers, for another process."""
        plain = dict(self._values)
        del plain["headers"]
        others = {name: plain.pop(name) for name in ("user", "auth") if plain[name] is not None}
        if plain["path_params"]:
            others["path_params"] = plain.pop("path_params")
        return plain, others, list(self.caller.scope["headers"])

    @property
    def user_context(self) -> Hashable:
        """The part of a request that must be equal for calls to share a result."""
        # The caller, by credentials in headers and by middleware's findings, and what handlers are
        # likely to read.
        scope = self.caller.scope
        found_out = [scope.get("user"), scope.get("auth")]
        return (
            scope["method"],
            tuple(sorted(scope.get("path_params", {}).items())),
            tuple([pair for pair in scope["headers"] if pair[0] in _OF_USERS]),
            *(one if one is None or one.__hash__ is not None else object() for one in found_out),
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


_OF_USERS: Final = (b"authorization", b"cookie", b"proxy-authorization", b"x-api-key")
_OF_RAY: Final = {
    b"x-serve-call-method": "method_name",
    b"x-serve-shard-key": "shard_key",
    b"x-model": "model",
}


T = TypeVar("T")
_log: Final = logging.getLogger("shoal.http")


class CallHeaders(NamedTuple):
    """The parts of a request's headers that concern its call; None where they say nothing."""

    method: str = "__call__"
    # Calls with equal keys go to the same backend.
    shard_key: str | None = None
    priority: bytes | None = None
    cache_control: bytes | None = None
    timeout_s: float | None = None
    # A tag that the endpoint's traffic names, in place of the traffic's choice.
    backend: str | None = None


NO_CALL_HEADERS: Final = CallHeaders()
_SECONDS: Final = re.compile(rb"[0-9]{1,15}(\.[0-9]{1,15})?")
OF_CALLS: Final = frozenset(
    {
        *(b"x-serve-call-method", b"x-serve-shard-key", b"x-priority", b"cache-control"),
        b"x-request-timeout",
    }
)


def call_headers(headers: Mapping[bytes, bytes]) -> CallHeaders:
    if headers.keys().isdisjoint(OF_CALLS):
        return NO_CALL_HEADERS
    method = headers.get(b"x-serve-call-method")
    key = headers.get(b"x-serve-shard-key")
    timeout = headers.get(b"x-request-timeout")
    return CallHeaders(
        "__call__" if method is None else method.decode("latin-1"),
        None if key is None else key.decode("latin-1"),
        headers.get(b"x-priority"),
        headers.get(b"cache-control"),
        None if timeout is None else _timeout_s(timeout),
    )


def _timeout_s(given: bytes) -> float:
    if not _SECONDS.fullmatch(given):
        raise Refused.of(
            "invalid-timeout",
            "X-Request-Timeout must be a number of seconds, such as 2.5: digits, with at most one "
            "dot.",
        )
    return float(given)


class EndpointCalls:
    """The calls of one endpoint in one protocol; requests are counted under these names."""

    def __init__(self, endpoint: Endpoint, options: HttpOptions, protocol: str) -> None:
        self.endpoint = endpoint
        self.options = options
        self.name = endpoint.name
        self.protocol = protocol
        self._has_hinted = False

    async def call_for(
        self,
        caller: Caller,
        headers: CallHeaders | None = None,
        when_left: WhenLeft | None = None,
    ) -> EndpointCall:
        """Finds the batcher of a call; waits for traffic, or for a first replica."""
        endpoint = self.endpoint
        if headers is None:
            headers = call_headers(caller.headers)
        when_left = when_left or caller.when_left
        backend = endpoint.only
        if backend is None or headers.backend is not None:
            try:
                backend = endpoint.backend_for(headers.shard_key, headers.backend)
            except NoSuchName:  # it was deleted just now, or its traffic names no such tag
                raise Refused(NOT_FOUND) from None
        batcher = None if backend is None else backend.method_batchers.get(headers.method)
        spent_s = 0.0
        if batcher is None:
            started = anyio.current_time()
            batcher = await self._await_batcher(headers, when_left)
            spent_s = anyio.current_time() - started
        entry = batcher.entry  # as by `Batcher.find`, with two functions fewer a request
        if entry is None or entry.intake.home.thread != get_ident():
            raise Refused(NOT_OPEN)
        timeout_s = entry.options.request_timeout_s
        if timeout_s is None and not batcher.streams:
            timeout_s = self.options.answer_timeout_s
        options = CallOptions(timeout_s, HttpMetadata(self.name, caller))
        if headers is not NO_CALL_HEADERS or spent_s:
            # A client can only shorten the server's limit.
            timeout_s = _shorter(timeout_s, headers.timeout_s)
            priority, caching = headers.priority, headers.cache_control
            options = options._replace(
                timeout_s=None if timeout_s is None else max(0.0, timeout_s - spent_s),
                priority=None if priority is None else _priority(priority, entry.options),
                share=caching is None or _may_share(caching),
            )
        return EndpointCall(endpoint, batcher, entry, options, when_left)

    async def _await_batcher(self, headers: CallHeaders, when_left: WhenLeft) -> MethodBatcher:
        limit_s = _shorter(self.options.answer_timeout_s, headers.timeout_s)
        key, tag = headers.shard_key, headers.backend
        wait = partial(self.endpoint.routed, headers.method, key, limit_s, tag)
        try:
            return await run_unless_left(when_left, wait)
        except NoSuchName:
            # The endpoint itself may have been deleted since then.
            if self.endpoint.is_gone:
                raise Refused(NOT_FOUND) from None
            # Does not list the existing methods, since clients need not know them.
            raise Refused.of("no-such-method", "No method has the name in the header.") from None

    def count_failure(self, error: Exception, problem: Problem) -> bool:
        """Counts a failure (`is_failure`), and logs a hint about code for another event loop."""
        if not is_failure(error, problem):
            return False
        self.endpoint.errors += 1
        if not self._has_hinted:
            hint = server_hint("".join(traceback.format_exception_only(original_of(error))))
            if hint is not None:
                self._has_hinted = True
                _log.error("%s: %s", self.name, hint)
        return True


def unwatched(_callback: Callable[[], object] | None) -> None:
    """Watches nothing: the task that awaits the call is cancelled when the client disconnects."""


@dataclass(slots=True, eq=False, repr=False)
class EndpointCall:
    """One call: its `result`, `results` or `stream`."""

    endpoint: Endpoint
    batcher: MethodBatcher
    entry: Entry
    options: CallOptions
    when_left: WhenLeft

    async def prepared(self, item: Awaitable[T]) -> T:
        """Awaits the item of the call, which shortens the time limit of the rest."""
        limit_s, began_at = self.options.timeout_s, anyio.current_time()
        with anyio.move_on_after(limit_s):
            prepared = await run_unless_left(self.when_left, lambda: item)
            if limit_s is not None:
                left_s = max(0.0, limit_s - (anyio.current_time() - began_at))
                self.options = self.options._replace(timeout_s=left_s)
            return prepared
        raise DeadlineExceeded(f"the request was not decoded within {limit_s} s")

    def result(self, item: Any) -> Awaitable[Any]:
        """Makes a call when the result is awaited."""
        if self.endpoint.shadows:
            return self._compared(item)
        return self.entry.call(item, self.options, self.when_left)

    async def _compared(self, item: Any) -> Any:
        [result] = await self.results([item])
        return result

    async def results(self, items: list[Any], *, return_exceptions: bool = False) -> list[Any]:
        """Makes a call for each item. All or none are queued, in turns if there are too many."""
        # The first error of a call is raised after all calls have ended, or each is in its place.
        copies: list[PrimaryAnswer] = []
        if self.endpoint.shadows:
            copies = [self._copied(item) for item in items]
        elif len(items) == 1 and not return_exceptions:
            return [await self.result(items[0])]
        try:
            make = partial(self._in_turns, items, return_exceptions=return_exceptions)
            results = await run_unless_left(self.when_left, make)
            for copy, result in zip(copies, results, strict=False):
                if not isinstance(result, Exception):
                    copy.value = result
            return results
        finally:
            for copy in copies:
                copy.ended.set()

    def _copied(self, item: Any) -> PrimaryAnswer:
        return self.endpoint.copied(self.batcher, item, self.options.metadata)

    @property
    def most_at_once(self) -> int:
        """The most calls that fit into an empty queue."""
        options = self.entry.options
        most = options.max_queued_requests
        return sys.maxsize if most is None else max(most, options.max_batch_size)

    async def _in_turns(self, items: list[Any], *, return_exceptions: bool) -> list[Any]:
        options, most = self.options, self.most_at_once
        began_at, limit_s = anyio.current_time(), options.timeout_s
        results: list[Any] = []
        for at in range(0, len(items), most):
            if at:
                options = options._replace(waits_for_room=True)
                if limit_s is not None:
                    left_s = max(0.0, limit_s - (anyio.current_time() - began_at))
                    options = options._replace(timeout_s=left_s)
            turn = items[at : at + most] if len(items) > most else items
            made = await self.entry.call_all(turn, options, return_exceptions=return_exceptions)
            if not at and all(isinstance(one, Overloaded) for one in made):
                raise made[0]  # none was queued
            results += made
        return results

    def wait_for_room(self) -> None:
        """Makes the call wait for room in a full queue, where it would be refused."""
        self.options = self.options._replace(waits_for_room=True)

    def stream(self, item: Any) -> ResultStream[Any]:
        """Makes a call when the stream is entered."""
        stream = self.entry.begin_stream_of(item, self.options)
        if self.endpoint.shadows:
            self._copied(item).ended.set()  # streams are not compared
        return stream


def _shorter(limit_s: float | None, other_s: float | None) -> float | None:
    if limit_s is None or other_s is None:
        return other_s if limit_s is None else limit_s
    return min(limit_s, other_s)


def _priority(level: bytes, options: BatchOptions) -> int | None:
    """Returns None for the default level."""
    if options.priority_levels == 1:
        return None
    try:
        return options.checked_priority("X-Priority", int(level))
    except ValueError:
        levels = options.priority_levels
        detail = f"The priority must be a whole number from 1, the highest, to {levels}."
        raise Refused.of("no-such-priority", detail) from None


def _may_share(cache_control: bytes) -> bool:
    directives = {one.strip().lower() for one in cache_control.split(b",")}
    return directives.isdisjoint((b"no-store", b"no-cache"))
