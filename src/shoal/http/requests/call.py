"""Calls of endpoints for clients of a network protocol: what stands between a codec and the engine.

A call finds its backend by the endpoint's traffic, waits for one if there is none yet, has a time
limit and a priority, is copied to shadow backends, is cancelled when its client leaves, and is
counted. None of this depends on the protocol.
"""

from __future__ import annotations

import logging
import sys
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import anyio

from shoal.batching.calls.leaving import CallerLeft, run_unless_left
from shoal.batching.failures.exceptions import is_cancellation
from shoal.batching.failures.hints import server_hint
from shoal.batching.loops.this_loop import parking_of_this_loop
from shoal.core.forming.call_options import CallOptions
from shoal.errors import NoSuchName, NotOpen
from shoal.http.requests.problem import (
    Refused,
    explained,
    is_failure,
    no_such_method,
    no_such_priority,
    not_found,
    not_open,
)
from shoal.serving.endpoints.compared_stream import ComparedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Scope

    from shoal.batching.batcher import Batcher
    from shoal.batching.calls.leaving import Departure, PendingCall
    from shoal.batching.calls.stream import ResultStream
    from shoal.batching.loops.event_loop import EventLoop
    from shoal.core.options.options import BatchOptions
    from shoal.http.requests.problem import Problem
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.endpoints.endpoint import Endpoint
    from shoal.serving.endpoints.shadow import PrimaryAnswer
    from shoal.serving.http_options import HttpOptions

_log: Final = logging.getLogger("shoal.http")


class Resumable(Protocol):
    """What goes on once a call has ended for which no task waits."""

    @property
    def loop(self) -> EventLoop:
        """The event loop that it runs in."""
        ...

    def resume(self) -> None:
        """Goes on, soon."""
        ...

    def when_left(self, callback: Callable[[], object] | None) -> bool:
        """Sets what is called once when the client leaves; returns whether it was called now."""
        ...


class Caller(Protocol):
    """What a call needs of the request that it is made for."""

    @property
    def request_id(self) -> str:
        """The id of the request, for the log."""
        ...

    @property
    def departure(self) -> Departure:
        """How to learn that the client has left."""
        ...

    @property
    def direct(self) -> Resumable | None:
        """What is resumed if no task waits for the end of the endpoint's call; None if one must."""
        ...

    @property
    def scope(self) -> Scope:
        """The ASGI scope."""
        ...


class CallHeaders(NamedTuple):
    """What the headers of a request say about its call.

    Attributes:
        method: The method of the backend's code.
        shard_key: Calls with equal keys go to the same backend; None for no key.
        priority: The priority level, as text; None for the default.
        cache_control: The client's directives about shared results; None for none.
        timeout_s: How long the client waits for the call, in seconds; None for as long as it takes.
        backend: The tag of the backend, which the endpoint's traffic must name; None for the one
            that the traffic chooses.
    """

    method: str = "__call__"
    shard_key: str | None = None
    priority: bytes | None = None
    cache_control: bytes | None = None
    timeout_s: float | None = None
    backend: str | None = None


NO_CALL_HEADERS: Final = CallHeaders()


class EndpointCalls:
    """Makes the calls of one endpoint.

    Attributes:
        endpoint: The endpoint.
        options: The options of the server.
        usual: The options of a call without such headers, as the last one had them.
    """

    def __init__(self, endpoint: Endpoint, options: HttpOptions) -> None:
        self.endpoint = endpoint
        self.options = options
        self.usual = CallOptions(options.answer_timeout_s)
        self._has_hinted = False

    def failed(self, error: BaseException) -> None:
        """Counts a call that failed, and logs a hint if its code was written for another loop.

        Does nothing for an error that only refuses the request; see `is_failure`.
        """
        if not is_failure(error):
            return
        self.endpoint.errors += 1
        if not self._has_hinted:
            original = error.__cause__ or error
            hint = server_hint("".join(traceback.format_exception_only(original)))
            if hint is not None:
                self._has_hinted = True
                _log.error("%s: %s", self.endpoint.name, hint)


class EndpointCall:
    """One call: first `find`, then `result`, `results` or `stream`, inside of its ``with`` block.

    An exception that leaves the block is counted as a failed call if it `is_failure`. A
    call that `is_suspended` leaves the block, enters it again when its caller is resumed, and ends
    with `pending_result`.

    Args:
        calls: The calls of the endpoint.
        caller: The client's request.

    Attributes:
        streams: Whether it is answered by a stream; known after `find`.
        now: The time, on the loop's clock, if it is known, and nothing was waited for since.
    """

    # What most calls do not need.
    _copies: PrimaryAnswer | None = None
    _pending: PendingCall | None = None
    _spent_s = 0.0
    now: float | None = None
    streams = False

    def __init__(self, calls: EndpointCalls, caller: Caller) -> None:
        self._calls = calls
        self._endpoint = calls.endpoint
        self._caller = caller
        calls.endpoint.requests += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._pending is not None:
            return
        if self._copies is not None:
            self._copies.end()
        if error is None or isinstance(error, CallerLeft):
            return
        # Code may also raise a cancellation that it has kept, which is a failure of that code.
        if is_cancellation(error) and parking_of_this_loop().is_cancelled():
            return
        self._calls.failed(error)

    def found(self, given: CallHeaders) -> Batcher[Any] | None:
        """Finds the batcher of the call; see `find`.

        Returns:
            The batcher; None if it must be waited for.
        """
        try:
            backend = self._endpoint.backend_for(given.shard_key, given.backend)
        except NoSuchName:  # the endpoint was deleted just now, or its traffic names no such tag
            raise Refused(not_found()) from None
        found = None if backend is None else backend.method_batchers.get(given.method)
        return None if found is None else self._use(found, given)

    async def find(self, given: CallHeaders) -> Batcher[Any]:
        """Finds the batcher of the call; waits for traffic, or for a first replica.

        Returns:
            The batcher, which determines the codec.

        Raises:
            Refused: The backend has no such method, there is no such priority, or the application
                is not open in this event loop.
            CallerLeft: The client left meanwhile.
            Exception: The endpoint has no backend in time, or its batcher broke.
        """
        batcher = self.found(given)
        if batcher is not None:
            return batcher
        self.now = None
        started = anyio.current_time()
        found = await self._awaited(given)
        self._spent_s = anyio.current_time() - started
        return self._use(found, given)

    def _use(self, found: MethodBatcher, given: CallHeaders) -> Batcher[Any]:
        try:
            self._entry = found.entry()
        except NotOpen:
            raise Refused(not_open(self._calls.options)) from None
        self._method_batcher = found
        batcher = found.batcher
        options = batcher.options
        timeout_s = options.request_timeout_s
        if found.streams:
            self.streams = True
        elif timeout_s is None:
            timeout_s = self._calls.options.answer_timeout_s
        usual = self._calls.usual
        if given is NO_CALL_HEADERS and timeout_s == usual.timeout_s and not self._spent_s:
            self._call_options = usual
        else:
            self._call_options = self._options_by(given, options, timeout_s)
        return batcher

    def _options_by(
        self, given: CallHeaders, options: BatchOptions, timeout_s: float | None
    ) -> CallOptions:
        """Returns the options of the call, without its metadata."""
        # A client can only shorten the server's limit.
        timeout_s = _shorter(timeout_s, given.timeout_s)
        if timeout_s is not None:
            timeout_s = max(0.0, timeout_s - self._spent_s)
        priority, caching = given.priority, given.cache_control
        made = CallOptions(
            timeout_s,
            priority=None if priority is None else _priority(priority, options),
            share=caching is None or _may_share(caching),
        )
        if given is NO_CALL_HEADERS and not self._spent_s:
            self._calls.usual = made
        return made

    async def result(self, item: Any, metadata: Mapping[str, Any]) -> Any:
        """Makes a call with one result.

        Args:
            item: The item.
            metadata: What the code may read as the request's metadata.

        Raises:
            CallerLeft: The client left; the call was cancelled.
            Exception: As for any call.
        """
        options = self._begin_copies(item, metadata)
        result = await self._entry.begin_unless_left(item, options, self._caller.departure)
        if self._copies is not None:
            self._copies.set(result)
        return result

    async def results(self, items: list[Any], metadata: Mapping[str, Any]) -> list[Any]:
        """Makes a call for each item, as `UnaryCall.map` does.

        All are queued, or none is. More than the queue may hold are made in turns: each as many as
        it has room for, once the last ones have ended.

        Args:
            items: The items; at least one.
            metadata: As for `result`, of each call.

        Returns:
            The results, in order.

        Raises:
            CallerLeft: The client left; all calls were cancelled.
            Exception: As for any call. The first error of a call is raised after all have ended.
        """
        copies: list[PrimaryAnswer | None] = []
        if self._endpoint.shadows:
            copies = [self._endpoint.copied(self._method_batcher, i, metadata) for i in items]
        try:
            results = await run_unless_left(
                self._caller.departure, partial(self._in_turns, items, metadata)
            )
            for copy, result in zip(copies, results, strict=False):
                if copy is not None:
                    copy.set(result)
            return results
        finally:
            for copy in copies:
                if copy is not None:
                    copy.end()

    @property
    def most_at_once(self) -> int:
        """How many calls can be made at the same time, if there are no others."""
        options = self._method_batcher.batcher.options
        most = options.max_queued_requests
        return sys.maxsize if most is None else max(most, options.max_batch_size)

    async def _in_turns(self, items: list[Any], metadata: Mapping[str, Any]) -> list[Any]:
        options, most = self._call_options._replace(metadata=metadata), self.most_at_once
        began_at, limit_s = anyio.current_time(), options.timeout_s
        results: list[Any] = []
        for at in range(0, len(items), most):
            if at:
                options = options._replace(waits_for_room=True)
                if limit_s is not None:
                    left_s = max(0.0, limit_s - (anyio.current_time() - began_at))
                    options = options._replace(timeout_s=left_s)
            turn = items[at : at + most] if len(items) > most else items
            results += await self._entry.begin_all(turn, options, return_exceptions=False)
        return results

    def wait_for_room(self) -> None:
        """Has the call wait for a place in a full queue, instead of being refused."""
        self._call_options = self._call_options._replace(waits_for_room=True)

    def is_suspended(self, item: Any, metadata: Mapping[str, Any]) -> bool:
        """Makes a call with one result for which no task waits, if the server allows that.

        Args:
            item: The item.
            metadata: As for `result`.

        Returns:
            Whether it was made, and the caller is resumed at its end. It may also have been made,
            and have ended already; see `has_ended`.

        Raises:
            CallerLeft: The client has left already.
            Exception: As for any call that is refused.
        """
        direct, entry = self._caller.direct, self._entry
        if direct is None or self._endpoint.shadows:
            return False
        now = entry.now() if self.now is None else self.now
        self._pending = pending = entry.begin_pending(
            item, self._call_options, metadata, direct.resume, direct.loop, now
        )
        if pending is None:
            return False
        if pending.ended_at_once:
            return False
        if direct.when_left(pending.leave):
            self.pending_result()  # raises that it has left; nothing would resume the caller
        return True

    @property
    def has_ended(self) -> bool:
        """Whether `is_suspended` has made a call that had ended at once."""
        return self._pending is not None and self._pending.ended_at_once

    def pending_result(self) -> Any:
        """Returns the result of a call made by `is_suspended`; called once, after it has ended.

        Raises:
            CallerLeft: The client left; the call was cancelled.
            Exception: As for any call.
        """
        pending, self._pending = self._pending, None
        assert pending is not None
        return pending.result()

    def stream(self, item: Any, metadata: Mapping[str, Any]) -> ResultStream[Any] | ComparedStream:
        """Returns the stream of a call, which is made when the stream is entered."""
        stream = self._entry.begin_stream_of(item, self._begin_copies(item, metadata))
        return stream if self._copies is None else ComparedStream(stream, self._copies)

    def explained(self, error: Exception) -> Problem:
        """Returns the problem for an error after the answer has begun; counts and logs it."""
        self._calls.failed(error)
        return explained(error, self._calls.options, self._endpoint.name, self._caller.request_id)

    def _begin_copies(self, item: Any, metadata: Mapping[str, Any]) -> CallOptions:
        """Begins the shadow copies of the call; returns all of its options."""
        if self._endpoint.shadows:
            self._copies = self._endpoint.copied(self._method_batcher, item, metadata)
        return self._call_options._replace(metadata=metadata)

    async def _awaited(self, given: CallHeaders) -> MethodBatcher:
        """Waits until the endpoint has traffic, or a replica has reported its methods."""
        limit_s = _shorter(self._calls.options.answer_timeout_s, given.timeout_s)
        key, tag = given.shard_key, given.backend
        wait = partial(self._endpoint.routed, given.method, key, limit_s, tag)
        try:
            return await run_unless_left(self._caller.departure, wait)
        except NoSuchName:
            # The endpoint itself may have been deleted meanwhile.
            problem = not_found() if self._endpoint.is_gone else no_such_method()
            raise Refused(problem) from None


def _shorter(limit_s: float | None, other_s: float | None) -> float | None:
    """Returns the shorter of two time limits, where None is no limit."""
    if limit_s is None or other_s is None:
        return other_s if limit_s is None else limit_s
    return min(limit_s, other_s)


def _priority(given: bytes, options: BatchOptions) -> int | None:
    """Returns the chosen priority level; None for the default level.

    Raises:
        Refused: There is no such level.
    """
    if options.priority_levels == 1:
        return None
    try:
        return options.checked_priority("X-Priority", int(given))
    except ValueError:
        raise Refused(no_such_priority(options.priority_levels)) from None


def _may_share(cache_control: bytes) -> bool:
    """Returns whether the client accepts a result that was made for another request."""
    directives = {one.strip().lower() for one in cache_control.split(b",")}
    return directives.isdisjoint((b"no-store", b"no-cache"))
