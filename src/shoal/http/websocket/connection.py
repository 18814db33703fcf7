"""A WebSocket on which an endpoint is called: many requests at once, answered as they end.

One task reads the client's messages, another one sends, and each request has its own. A plain item
of a stream goes to the sending task from the handler's task at once.

What one client can hold is bounded: its running requests, what waits to be sent of each stream (by
its credit, in messages, and in bytes for all of them), and what waits to be sent in total, beyond
which the client's messages are not read. A client that does not read is disconnected by the
deadline of a send, and so gives all of it back.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import anyio
import orjson

from shoal.asgi.extensions import TRACE
from shoal.batching.calls.leaving import CallerLeft
from shoal.batching.trace import in_this_context
from shoal.errors import ShutDown
from shoal.failures.held import holding
from shoal.http.requests.call import CallHeaders, EndpointCall
from shoal.http.requests.json_codec import JsonCodec
from shoal.http.requests.plain import encoded
from shoal.http.requests.problem import Problem, Refused, explained
from shoal.http.websocket.items import item_of
from shoal.http.websocket.messages import (
    RESTART,
    Cancel,
    Credit,
    NewRequest,
    Violation,
    quickly_read,
    read_binary,
    read_large,
    read_text,
    reused_id,
)
from shoal.http.websocket.outbox import Outbox
from shoal.http.websocket.problems import CANCELLED, only_http, too_many
from shoal.http.websocket.relay import relay
from shoal.http.websocket.request import ItemHeaders, SocketRequest
from shoal.http.websocket.signal import Signal
from shoal.http.websocket.subprotocol import SUBPROTOCOL
from shoal.loops.event_loop import holds_ctrl_c
from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Message, Receive, Scope, Send

    from shoal.http.requests.call import EndpointCalls
    from shoal.http.requests.dispatch import RouteDispatcher

_HOLDING: Final = holding()
_LONGEST_HEAD: Final = 1024


class SocketConnection:
    """Accepts one WebSocket, and answers its requests.

    Args:
        scope: The ASGI scope.
        receive: The ASGI callable.
        send: The ASGI callable.
        calls: Makes the calls of the endpoint.
        dispatcher: What all requests to the application share.
        headers: What the headers of the handshake say about the calls.

    Attributes:
        id: The id of the connection, for the log.
        http_scope: The handshake, as a request over HTTP.
        item_headers: The headers of its requests.
        parking: The event loop's way to wait.
        settings: The options of the server.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        calls: EndpointCalls,
        dispatcher: RouteDispatcher,
        headers: CallHeaders,
    ) -> None:
        self._receive = receive
        self._calls = calls
        self._times = dispatcher.times
        self._item_times = dispatcher.streams
        self._headers = headers
        self.http_scope: Scope = {**scope, "type": "http", "method": "GET"}
        self.item_headers = ItemHeaders.of(self.http_scope)
        self.id = dispatcher.new_id().decode("ascii")
        self.settings = dispatcher.settings
        self.parking = parking_of_this_loop()
        self._offered: Mapping[str, Any] | None = scope.get("extensions", {}).get(
            "shoal.disconnect"
        )
        self._requests: dict[bytes, SocketRequest] = {}
        # Those whose tasks have not begun, with the messages, and with their texts if only a part
        # of them was read.
        self._new: deque[tuple[SocketRequest, NewRequest, bytes | None]] = deque()
        self._to_write = Signal(self.parking)
        self._outbox = Outbox(
            send, self._offered, self.settings.send_timeout_s, self.parking, self._gave_up
        )
        self._is_draining = False
        self._queued = 0  # messages on the way to the reading task
        # Once set, nothing more is read; the connection ends when all before it is sent.
        self._close_with: tuple[int, str] | None = None

    @property
    def has_room(self) -> bool:
        """Whether streams may pass on more than one item each."""
        return self._outbox.has_room

    @holds_ctrl_c
    async def run(self) -> None:
        """Answers requests until the client leaves, breaks the protocol, or the server ends.

        Cancellation: all calls are cancelled.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                if self._offered is not None:
                    self._offered["when_left"](self._left)
                    self._offered["when_draining"](self._drain)
                    take = self._take_at_once
                    if TRACE in self.http_scope:  # the server reads in no trace
                        take = in_this_context(take)
                    self._offered["when_received"](take)
                await self._outbox.send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
                tasks.start_soon(self._write)
                await self._read()
        finally:
            if self._offered is not None:
                self._offered["when_left"](None)
                self._offered["when_draining"](None)
                self._offered["when_received"](None)
            self._leave_all()

    # The reading task.

    async def _read(self) -> None:
        while self._close_with is None:
            while self._outbox.is_full:
                await self._outbox.has_sent.wait()
            message = await self._receive()
            if message["type"] != "websocket.receive":
                self._tasks.cancel_scope.cancel()
                return
            if self._queued:  # by another server none is taken at once
                self._queued -= 1
            self._take(message)

    @holds_ctrl_c
    def _take_at_once(self, message: Message) -> bool:
        """Takes a message from the task of the server that reads, unless others come before it."""
        if self._queued or self._outbox.is_full:
            self._queued += 1
            return False
        if self._close_with is None:
            self._take(message)
        return True

    def _take(self, message: Message) -> None:
        """Handles a client's message."""
        try:
            self._parse(message.get("text"), message.get("bytes"))
        except Violation as violation:
            self._break_off(violation)

    def _parse(self, text: str | None, data: bytes | None) -> None:
        """Reads a message, and does what it says.

        Raises:
            Violation: It is none of the protocol.
        """
        given = (data or b"") if text is None else text.encode()
        if len(given) > self.settings.max_body_bytes + _LONGEST_HEAD:
            most = self.settings.max_body_bytes
            self._start(read_large(given, most, is_binary=text is None), None)
        elif text is None:
            self._start(read_binary(given), None)
        elif (quickly := quickly_read(given)) is not None:
            self._start(quickly, given)
        else:
            self._handle(read_text(given, self.settings.max_json_elements))

    def _handle(self, message: NewRequest | Cancel | Credit) -> None:
        if isinstance(message, NewRequest):
            self._start(message, None)
            return
        request = self._requests.get(message.id)
        if request is None:
            return  # it has ended meanwhile
        if isinstance(message, Credit):
            request.add_credit(message.items)
        elif not request.is_cancelled:
            request.is_cancelled = True
            request.leave()

    def _start(self, new: NewRequest, text: bytes | None) -> None:
        """Starts a request.

        Args:
            new: The request.
            text: The whole message, if only a part of it was read yet.
        """
        if new.id in self._requests:
            raise reused_id()
        request = SocketRequest(self, new)
        refused: Exception | None = new.refused
        if self._is_draining:
            refused = ShutDown("the server ends")
        elif len(self._requests) >= self.settings.max_websocket_requests:
            refused = Refused(too_many(self.settings.max_websocket_requests))
        if refused is not None:
            self._fail(request, refused)
            return
        self._requests[new.id] = request
        self._new.append((request, new, text))
        self._tasks.start_soon(self._answer_next)

    def _headers_of(self, new: NewRequest) -> CallHeaders:
        if new.priority is None and new.timeout_s is None:
            return self._headers
        priority = self._headers.priority if new.priority is None else b"%d" % new.priority
        return self._headers._replace(priority=priority, timeout_s=new.timeout_s)

    # The tasks of requests.

    @holds_ctrl_c
    async def _answer_next(self) -> None:
        """Makes the call of the next request, and answers with its result."""
        # The tasks of several requests may begin in any order.
        request, new, text = self._new.popleft()
        try:
            with request.scope_of_task, _HOLDING, EndpointCall(self._calls, request) as call:
                found = await call.find(self._headers_of(new))
                if found.decodes:
                    raise Refused(only_http())
                item = self._item_of(found.made_by(JsonCodec), request, new, text)
                if call.streams:
                    tick = self._item_times.of(self._calls.endpoint.name).clock(self.parking.now)
                    await relay(request, call.stream(item), partial(self._put, request), tick)
                    self._end(request, b"end", b"true")
                else:
                    self._end(request, b"result", encoded(await call.result(item)))
        except Exception as error:
            self._fail(request, error)
        else:
            if request.scope_of_task.cancelled_caught:
                self._fail(request, CallerLeft("the client has cancelled the request"))

    def _item_of(
        self, codec: JsonCodec, request: SocketRequest, new: NewRequest, text: bytes | None
    ) -> Any:
        try:
            return item_of(codec, request, new, text)
        except Violation as violation:
            self._break_off(violation)
            raise Refused(Problem(400, "invalid-message", violation.reason)) from None

    def _put(self, request: SocketRequest, text: bytes) -> None:
        if not request.has_ended:  # else it was cut off, and the handler does not know that yet
            self._outbox.put_item(request, text)
            self._to_write.set()

    # The end of requests.

    def _end(self, request: SocketRequest, kind: bytes, text: bytes, status: int = 200) -> None:
        """Ends a request by its last message."""
        if request.has_ended:
            return
        request.has_ended = True
        name = self._calls.endpoint.name
        took_s = perf_counter() - request.began_at
        self._times.count(name, "websocket", status, took_s, request.headers)
        if self._requests.get(request.id) is request:
            del self._requests[request.id]
        self._outbox.put_last(request, kind, text)
        self._to_write.set()

    def _fail(self, request: SocketRequest, error: Exception) -> None:
        """Ends a request by an error."""
        try:
            if isinstance(error, CallerLeft):
                problem = CANCELLED
            else:
                name = self._calls.endpoint.name
                problem = explained(error, self.settings, name, request.request_id)
            text = orjson.dumps(problem.in_a_message(request.request_id))
            self._end(request, b"error", text, problem.status)
        finally:
            del error  # its traceback holds this frame

    def _leave_all(self) -> None:
        """Cancels the calls that are left, of a client that is gone."""
        for request in tuple(self._requests.values()):
            request.leave()
        for request in tuple(self._requests.values()):  # their tasks were cancelled
            self._fail(request, CallerLeft("the client has left"))

    # The sending task.

    @holds_ctrl_c
    async def _write(self) -> None:
        while True:
            if self._outbox:
                await self._outbox.send_some()
            elif self._close_with is not None:
                code, reason = self._close_with
                await self._outbox.send({"type": "websocket.close", "code": code, "reason": reason})
                self._tasks.cancel_scope.cancel()
                return
            elif self._is_draining and not self._requests:
                self._close_with = RESTART, "the server ends"
            else:
                await self._to_write.wait()

    # The end of the connection.

    def _break_off(self, violation: Violation) -> None:
        """Ends a connection whose client does not keep to the protocol."""
        if self._close_with is None:
            self._close_with = violation.code, violation.reason
            for request in tuple(self._requests.values()):
                request.leave()
                self._fail(request, CallerLeft("the client has broken the protocol"))
            self._to_write.set()

    def _gave_up(self) -> None:
        """Handles that the client is gone, or does not read."""
        self._tasks.cancel_scope.cancel()

    def _drain(self) -> None:
        """Handles that the server ends: no request begins, and those that run may finish."""
        self._is_draining = True
        self._to_write.set()

    def _left(self) -> None:
        """Handles that the client has left, or that the server cuts off what still runs."""
        assert self._offered is not None
        if not self._offered["is_cut_off"]():
            self._tasks.cancel_scope.cancel()
            return
        for request in tuple(self._requests.values()):
            request.leave()
            self._fail(request, ShutDown("the server ends"))
        self._close_with = RESTART, "the server ends"
        self._to_write.set()
