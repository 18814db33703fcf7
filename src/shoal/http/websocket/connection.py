"""A WebSocket on which an endpoint is called: many requests at once, answered as they end.

One task reads the client's messages, another one sends, and each request has its own. A plain item
of a stream goes to the sending task from the handler's task at once.

What one client can hold is bounded: its running requests, and the messages that wait to be sent.
When these have 64 KiB, all streams of the connection wait, so a client that does not read holds
them back through its transport: they fail by `slow_reader_timeout_s`, as over HTTP. When they have
256 KiB, the client's messages are read no faster than messages are sent. The deadline of a send
disconnects a client that reads nothing.
"""

from __future__ import annotations

import itertools
from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import anyio.lowlevel
import orjson

from shoal.asgi.extensions import DISCONNECT
from shoal.batching.calls.leaving import CallerLeft
from shoal.batching.calls.stream import ResultStream
from shoal.errors import ShutDown
from shoal.failures.held import holding
from shoal.http.json.arrays import NPY
from shoal.http.json.endpoint import JsonCodec
from shoal.http.requests.call import CallHeaders, EndpointCalls, call_headers
from shoal.http.requests.exchange import JSON, Exchange
from shoal.http.requests.plain import encoded
from shoal.http.requests.problem import Problem, Refused, explained
from shoal.http.requests.streaming import PLAIN, ItemStream
from shoal.http.websocket.messages import (
    RESTART,
    VIOLATION,
    NewRequest,
    Violation,
    check_text,
    read,
)
from shoal.loops.event_loop import holds_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from shoal.http.requests.shared_parts import SharedParts

# How many bytes may wait to be sent before streams wait, and before messages are read slowly.
_MOST_OF_STREAMS: Final = 2**16
_MOST_UNSENT: Final = 2**18
_SENT_AT_ONCE: Final = 2**16
_IN_A_TURN: Final = 32  # messages, before other tasks run
_HOLDING: Final = holding()
# What the headers of a handshake say of its own body, and not of a request's.
_OF_HANDSHAKE: Final = frozenset({b"content-encoding", b"content-length"})
# The kinds of input whose reader parses the text as JSON.
_PARSED: Final = frozenset({"json", "array"})
_ONLY_HTTP: Final = Problem.of(
    "unsupported-media-type",
    "The endpoint decodes each HTTP request itself; a WebSocket message is not an HTTP request.",
)
_TAKES_JSON: Final = Problem.of(
    "unsupported-media-type",
    'The endpoint takes JSON. Send the item in a text message: {"id": ..., "item": ...}.',
)
_TAKES_BYTES: Final = Problem.of(
    "unsupported-media-type",
    "The endpoint takes bytes. Send the item in a binary message: "
    '{"id": ...}, a line feed, and the bytes.',
)
_CANCELLED: Final = Problem(499, "cancelled", "The client has cancelled the request")


class SocketRequest:
    """One request: what its call and its codec use of an HTTP request, and its task."""

    __slots__ = (
        *("began_at", "has_ended", "headers", "id", "request_id", "scope", "scope_of_task"),
        "options",
    )

    method: Final = "POST"

    def __init__(self, connection: SocketConnection, new: NewRequest) -> None:
        self.began_at = perf_counter()
        self.id = new.id
        self.request_id = f"{connection.id}:{new.id.decode().strip(chr(34))}"
        self.scope, self.options = connection.http_scope, connection.options
        self.headers = connection.binary_headers if new.is_binary else connection.text_headers
        self.has_ended = False  # its last message was made
        self.scope_of_task = anyio.CancelScope()

    def when_left(self, callback: Callable[[], object] | None) -> None:
        """Does nothing: the task that waits for the call is cancelled when the client leaves."""


class SocketConnection:
    # It raises `Refused` if a header of the handshake can't be read.

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, calls: EndpointCalls, shared: SharedParts
    ) -> None:
        self._receive = receive
        self._asgi_send = send
        self._calls = calls
        self._shared = shared
        self._call_headers = call_headers(dict(scope["headers"]))
        self.http_scope: Scope = {**scope, "type": "http", "method": "GET"}
        given = {name: v for name, v in scope["headers"] if name not in _OF_HANDSHAKE}
        self.text_headers: Mapping[bytes, bytes] = {**given, b"content-type": JSON}
        self.binary_headers: Mapping[bytes, bytes] = {**given, b"content-type": NPY}
        self.id = shared.new_id().decode("ascii")
        self.options = shared.options
        # What the server of this package offers; None on another one.
        self._offered: Mapping[str, Any] | None = scope.get("extensions", {}).get(DISCONNECT)
        self._requests: dict[bytes, SocketRequest] = {}
        # The requests whose tasks have not begun: those may begin in any order.
        self._new: deque[tuple[SocketRequest, NewRequest]] = deque()
        self._to_send: deque[bytes] = deque()
        self._unsent = 0  # bytes of them
        self._has_work = anyio.Event()  # for the sending task
        self._has_sent = anyio.Event()
        self._is_draining = False
        # Once set, nothing more is read; the connection ends when all before it is sent.
        self._close_with: tuple[int, str] | None = None

    @holds_ctrl_c
    async def run(self, subprotocol: str) -> None:
        """Answers requests until the client leaves, breaks the protocol, or the server ends."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                if self._offered is not None:
                    self._offered["when_left"](self._left)
                    self._offered["when_draining"](self._drain)
                await self._send({"type": "websocket.accept", "subprotocol": subprotocol})
                tasks.start_soon(self._write)
                await self._read()
        finally:
            if self._offered is not None:
                self._offered["when_left"](None)
                self._offered["when_draining"](None)
            self._end_all(CallerLeft("the client has left"))

    # The reading task.

    async def _read(self) -> None:
        for count in itertools.count(1):
            if self._close_with is not None:
                return
            if count % _IN_A_TURN == 0:  # a message that is there is received at once
                await anyio.lowlevel.checkpoint()
            if self._unsent >= _MOST_UNSENT:
                await self._has_sent.wait()
            message = await self._receive()
            if message["type"] != "websocket.receive":
                self._tasks.cancel_scope.cancel()
                return
            try:
                self._handle(message.get("text"), message.get("bytes"))
            except Violation as violation:
                self._break_off(violation)

    def _handle(self, text: str | None, data: bytes | None) -> None:
        options = self.options
        message = read(text, data, options.max_body_bytes, options.max_json_elements)
        if isinstance(message, NewRequest):
            self._start(message)
        elif message.id in self._requests:  # else it has ended
            self._requests[message.id].scope_of_task.cancel()

    def _start(self, new: NewRequest) -> None:
        if new.id in self._requests:
            raise Violation(VIOLATION, "the id of a request that has not ended was used again")
        request = SocketRequest(self, new)
        self._calls.endpoint.requests += 1
        refused: Exception | None = new.refused
        if self._is_draining:
            refused = ShutDown("the server ends")
        elif len(self._requests) >= self.options.max_websocket_requests:
            refused = Refused(_too_many(self.options.max_websocket_requests))
        if refused is not None:
            self._fail(request, refused)
            return
        self._requests[new.id] = request
        self._new.append((request, new))
        self._tasks.start_soon(self._handle_next)

    # The tasks of requests.

    @holds_ctrl_c
    async def _handle_next(self) -> None:
        request, new = self._new.popleft()
        try:
            with request.scope_of_task, _HOLDING:
                call = await self._calls.call_for(request, self._headers_of(new))
                if call.batcher.decodes:
                    raise Refused(_ONLY_HTTP)
                item = self._item_of(call.batcher.codec_of(JsonCodec), request, new)
                if call.batcher.streams:
                    await self._relay(request, call.stream(item))
                    self._end(request, b"end", b"true")
                else:
                    self._end(request, b"result", encoded(await call.result(item)))
        except Exception as error:
            self._fail(request, error)
        else:
            if request.scope_of_task.cancelled_caught:
                self._fail(request, CallerLeft("the client has cancelled the request"))

    def _headers_of(self, new: NewRequest) -> CallHeaders:
        if new.priority is None and new.timeout_s is None:
            return self._call_headers
        headers = self._call_headers
        priority = headers.priority if new.priority is None else b"%d" % new.priority
        return headers._replace(priority=priority, timeout_s=new.timeout_s)

    def _item_of(self, codec: JsonCodec, request: SocketRequest, new: NewRequest) -> Any:
        exchange = cast("Exchange", request)  # it has all that a reader of items uses
        if new.is_binary and codec.takes == "json":
            raise Refused(_TAKES_JSON)
        if not new.is_binary and codec.takes == "bytes":
            raise Refused(_TAKES_BYTES)
        if not new.is_binary and codec.takes not in _PARSED:
            check_text(new.body, self.options.max_json_elements)
        return codec.item(exchange, new.body)

    async def _relay(self, request: SocketRequest, stream: ItemStream) -> None:
        tick = self._shared.streams[self._calls.name].clock(self._shared.now)
        async with stream:
            if isinstance(stream, ResultStream):
                take = partial(self._send_at_once, request, tick)
                stream.pass_on(take)  # pyright: ignore[reportUnknownMemberType] (items of any type)
            async for item in stream:  # pyright: ignore[reportUnknownVariableType] (of any type)
                text = encoded(item)
                tick()
                while self._unsent >= _MOST_OF_STREAMS:
                    await self._has_sent.wait()
                self._put(request, b"next", text)

    def _send_at_once(self, request: SocketRequest, tick: Callable[[], object], item: Any) -> bool:
        """Sends a plain item from the handler's task, without a switch to the request's."""
        if type(item) not in PLAIN or self._unsent >= _MOST_OF_STREAMS:
            return False
        try:
            text = encoded(item)
        except Exception:
            return False  # the request's task raises it
        tick()
        self._put(request, b"next", text)
        return True

    # The end of requests.

    def _end(self, request: SocketRequest, kind: bytes, text: bytes, status: int = 200) -> None:
        if request.has_ended:
            return
        took_s = perf_counter() - request.began_at
        self._shared.times.count(self._calls.name, "websocket", status, took_s)
        if self._requests.get(request.id) is request:
            del self._requests[request.id]
        self._put(request, kind, text)
        request.has_ended = True

    def _fail(self, request: SocketRequest, error: Exception) -> None:
        try:
            if isinstance(error, CallerLeft):
                problem = _CANCELLED
            else:
                problem = explained(error, self.options, self._calls.name, request.request_id)
                self._calls.count_failure(error, problem)
            text = orjson.dumps(problem.in_a_message(request.request_id))
            self._end(request, b"error", text, problem.status)
        finally:
            del error  # its traceback holds this frame

    def _end_all(self, error: Exception) -> None:
        for request in tuple(self._requests.values()):
            request.scope_of_task.cancel()
            self._fail(request, error)

    # The sending task.

    def _put(self, request: SocketRequest, kind: bytes, text: bytes) -> None:
        if request.has_ended:
            return  # it was cut off, and its handler goes on for a moment
        text = b'{"id":%b,"%b":%b}' % (request.id, kind, text)
        self._to_send.append(text)
        self._unsent += len(text)
        self._has_work.set()

    @holds_ctrl_c
    async def _write(self) -> None:
        while True:
            if self._to_send:
                await self._send_some()
            elif self._close_with is not None:
                code, reason = self._close_with
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
                self._tasks.cancel_scope.cancel()
                return
            elif self._is_draining and not self._requests:
                self._close_with = RESTART, "the server ends"
            else:
                self._has_work = anyio.Event()
                await self._has_work.wait()

    async def _send_some(self) -> None:
        """Sends several messages, at once where the server offers that."""
        texts: list[bytes] = []
        size = 0
        while self._to_send and size < _SENT_AT_ONCE:
            texts.append(self._to_send.popleft())
            size += len(texts[-1])
        if self._offered is not None:
            await self._offered["send_texts"](texts)
        else:
            for text in texts:
                await self._send({"type": "websocket.send", "text": text.decode()})
        self._unsent -= size
        self._has_sent.set()
        self._has_sent = anyio.Event()

    async def _send(self, message: dict[str, Any]) -> None:
        """Sends a message of ASGI; the connection ends if the client is gone or does not read."""
        limit_s = None if self._offered is not None else self.options.send_timeout_s
        try:
            with anyio.fail_after(limit_s):  # the server of this package has its own limit
                await self._asgi_send(message)
        except (OSError, TimeoutError):
            self._tasks.cancel_scope.cancel()

    # The end of the connection.

    def _break_off(self, violation: Violation) -> None:
        """Ends a connection whose client breaks the protocol."""
        if self._close_with is None:
            self._close_with = violation.code, violation.reason
            self._end_all(CallerLeft("the client has broken the protocol"))
            self._has_work.set()

    def _drain(self) -> None:
        """Handles that the server ends: no request begins, and those that run may finish."""
        self._is_draining = True
        self._has_work.set()

    def _left(self) -> None:
        """Handles that the client has left, or that the server cuts off what still runs."""
        assert self._offered is not None
        if not self._offered["is_cut_off"]():
            self._tasks.cancel_scope.cancel()
            return
        self._end_all(ShutDown("the server ends"))
        self._close_with = RESTART, "the server ends"
        self._has_work.set()


def _too_many(most: int) -> Problem:
    return Problem(
        429,
        "too-many-requests",
        "Too many requests run on the connection",
        f"A connection may have {most} at once; send further ones when others have ended.",
    )
