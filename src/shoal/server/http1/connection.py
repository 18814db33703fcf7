"""A connection that speaks HTTP/1.1: one task, which answers one request after the other.

The task reads the head of a request, calls the application, and reads the next head. The server's
poller puts the received bytes into one buffer. The task takes heads from it, and the application
the body of its request. Pipelined requests stay in the buffer, and at most `_MOST_HELD` bytes of
them leave the kernel.

Every wait has a deadline: for a head, a body, the next request of an idle connection, the client's
reading of a response, and the client's end after the server has ended its side. The deadlines are
timers of the server (`timeouts`). Cancel scopes would cost more: each request would enter three.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shoal.asgi.extensions import DISCONNECT, SERVER
from shoal.asgi.headers import BadRequest
from shoal.loops.parking import Bell
from shoal.server.http1.call import Http1Call, error_answer
from shoal.server.http1.head import HeadParser, find_end, scope_of, scope_of_refused
from shoal.server.listeners import host_and_port
from shoal.server.served_call import TaskState
from shoal.server.timeouts import Timeout, time_to_send_s
from shoal.server.transport import Receiver

if TYPE_CHECKING:
    from shoal.server.shared import Shared
    from shoal.server.tls import TlsTransport
    from shoal.server.transport import Transport

_log = logging.getLogger("shoal.server")

_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\n"
_MOST_HELD: Final = 2**16


# Continues on the same transport: with WebSocket for a request to upgrade, with HTTP/2 for None.
SwitchProtocol: TypeAlias = Callable[
    ["Shared", "Transport | TlsTransport", Callable[[], object], bytes, "HeadParser | None"], None
]


class Http1Connection(Receiver):
    def __init__(
        self,
        shared: Shared,
        transport: Transport | TlsTransport,
        released: Callable[[], object],
        switch_protocol: SwitchProtocol,
    ) -> None:
        self.shared = shared
        self.transport = transport
        self._released: Callable[[], object] | None = released
        self._switch_protocol = switch_protocol
        # Data has arrived, the kernel has room, or an end.
        self.bell = Bell(shared.parking)
        self._parser = HeadParser(shared.options)
        self.received = b""  # neither parsed nor taken by a call
        self._call: Http1Call | None = None  # the last call, until the task waits for the next head
        self._tasks = 0
        # The input that the deadline is for, other than the next request of an idle connection.
        self._awaited = ""
        self._began_at = 0.0  # of the last head
        self._is_ending = False  # the server's side is about to end, or has ended
        self._is_closed = False
        self._timeout = Timeout(shared.timeouts, self._expire)
        self._scope: dict[str, Any] = {}  # of the last head; each request gets a copy
        self._peer = host_and_port(transport.peer)
        self._name = host_and_port(transport.name)

    def start(self) -> None:
        self.transport.receiver = self
        self.transport.start()
        self.shared.connections.add(self)
        self._start_task()

    def drain(self) -> None:
        """Closes after the current response, or after a request that arrives very soon."""
        call = self._call
        if call is None and not self._is_ending:
            self._timeout.set(self.shared.late_request_s)
        elif call is not None and call.is_complete:
            self._leave_behind(call)

    def end_early(self) -> None:
        """Asks the application to end its response, or answers 503."""
        if self._call is not None and not self._call.ask_to_end():
            self._answer_with_error(503)

    def abort(self) -> None:
        self.transport.abort()
        self._close()

    # Reports of the transport.

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        if self.received:
            self._awaited = ""
            self.received += data
            if len(self.received) >= _MOST_HELD:
                self.transport.pause()
        else:
            self.received = data
        call = self._call
        if call is not None:
            self._awaited = ""
            if call.is_complete:
                self._leave_behind(call)
        self.bell.ring()

    def client_ended(self) -> None:
        """Treats a client that has ended its side as gone."""
        call = self._call
        if call is None or not (self.transport.is_paused and call.reads_body):
            self._close()

    def all_sent(self) -> None:
        self.bell.ring()

    def connection_lost(self) -> None:
        self._close()

    # Methods for a call.

    def send(self, data: bytes) -> None:
        if not self.transport.send(data):
            self.limit_send()

    def limit_send(self) -> None:
        size = len(self.transport.unsent)
        self._timeout.set(time_to_send_s(size, self.shared.options.send_timeout_s))

    def awaits(self, awaited: str, limit_s: float) -> bool:
        """Waits for "a head" or "a body"; False if input has come at once (over TLS)."""
        self._awaited = awaited
        if not self.transport.unsent:  # else the deadline is that of the send
            self._timeout.set(limit_s)
        if self.transport.is_paused:
            self.transport.resume()
        return bool(self._awaited)

    def refuse(self, error: BadRequest) -> None:
        if self._call is not None and self._call.has_begun:
            self.abort()
        else:
            self._answer_with_error(error.status, error.body)

    async def continue_without(self, call: Http1Call) -> None:
        await self.shared.parking.checkpoint()  # most applications have returned after it
        if call is self._call:
            self._leave_behind(call)

    # The tasks: one, and one for each application that goes on after its response.

    def _start_task(self) -> None:
        self._tasks += 1
        self.shared.start_task(self)

    async def run(self) -> bool:
        shared, parser, transport = self.shared, self._parser, self.transport
        park, bell, set_timeout = shared.parking.park, self.bell, self._timeout.set
        proxies, is_logged = shared.proxies, shared.options.access_log
        before = TaskState(shared.parking)
        await self._end_last()
        while True:
            while not (self.received or self._is_ending):
                set_timeout(shared.idle_s)
                if transport.is_paused:
                    transport.resume()  # over TLS, data may come at once
                else:
                    await park(bell)
            # No variable refers to the received bytes, so that a waiting task does not keep them.
            if not self.received.startswith(parser.last):
                await self._read_head()
                if self._is_ending:
                    break
            self._call = call = Http1Call(self, parser)
            scope = self._scope.copy()
            scope["headers"] = parser.headers.copy()
            scope["state"] = shared.state.copy()
            scope["extensions"] = {SERVER: shared.counts, DISCONNECT: call}
            if proxies is not None:
                proxies.complete(scope)
            if is_logged:
                call.begin_log()
            shared.calls_started += 1
            try:
                await shared.app(scope, call.receive, call.send)
            except Exception as error:
                call.log_failure(error, call.line.raw_path)
            except BaseException:
                self.abort()
                raise
            finally:
                shared.calls_finished += 1
                if not (call.is_complete or call.is_over):
                    if call.has_begun:
                        self.abort()  # the client must not take it for the whole response
                    else:
                        self._answer_with_error(503 if call.is_cut_off() else 500)
                if is_logged:
                    call.write_log(scope)
            if call.is_detached:
                return True  # another task has continued
            if not before.is_unchanged():
                call.is_detached = True
                return False
            if call.keeps_alive and not (self.received or transport.unsent):
                self._call = None
            else:
                await self._end_last()
            del call, scope  # nothing refers to a request while this task waits
        while not self._is_closed:
            await self.bell.change()
        return True

    def ended(self, *, is_reusable: bool) -> None:
        self._tasks -= 1
        if not is_reusable:
            self._start_task()
        elif not self._tasks:
            if not self._is_closed:  # it was cancelled
                self.abort()
            if self._released is not None:
                self._released()

    def _leave_behind(self, call: Http1Call) -> None:
        """Continues without the application, which has sent its response."""
        if not call.is_detached:
            call.is_detached = True
            self._start_task()

    async def _end_last(self) -> None:
        """Waits until the last response is sent; ends the connection if it must."""
        last = self._call
        if last is not None:
            last.is_detached = True  # whether it has returned or not
        while self.transport.unsent and not self._is_ending:
            await self.bell.change()
        self._call = None
        if last is not None and not last.keeps_alive:
            await self._finish(is_client_done=not last.reads_body)
        elif self.received:  # the client did not wait for the last response
            await self.shared.parking.checkpoint()

    async def _read_head(self) -> None:
        """Waits for the rest of a head that differs from the last, and parses it."""
        shared, parser = self.shared, self._parser
        parser.forget()
        self._began_at = shared.timeouts.now()
        searched = 0
        try:
            while not self._is_ending:
                data = self.received
                end = find_end(data, parser.options.max_head_bytes, searched)
                if end >= 0:
                    self._take_head(data, end)
                    return
                searched = len(data)
                left_s = self._began_at + parser.options.head_timeout_s - shared.timeouts.now()
                if self.awaits("a head", left_s):
                    await shared.parking.park(self.bell)
        except BadRequest as error:
            self.refuse(error)

    def _take_head(self, data: bytes, end: int) -> None:
        # A head that equals the last one needs no check and is not passed to this method.
        shared, parser = self.shared, self._parser
        if not self._scope and data.startswith(_HTTP2_PREFACE):
            self._switch(data)
            return
        parser.parse(data[:end])
        is_websocket = parser.is_websocket()
        method = "" if is_websocket else parser.line.method
        shared.guard.check(method, parser.host, parser.origin)
        if is_websocket:
            self._switch(data[end:], parser)
            return
        version = "1.1" if parser.line.is_http_1_1 else "1.0"
        self._scope = scope_of(shared, self._peer, self._name, "http", version, parser)

    def _switch(self, received: bytes, parser: HeadParser | None = None) -> None:
        """Passes the transport to a connection that speaks another protocol."""
        released = self._released
        assert released is not None
        try:
            self._switch_protocol(self.shared, self.transport, released, received, parser)
        except OSError:  # the client is gone
            self._close()
        else:
            self._leave_transport()
            self._released = None  # the other connection keeps the permit

    # Ends.

    def _answer_with_error(self, status: int, body: bytes = b"") -> None:
        call, self._call = self._call, None
        self.send(error_answer(status, body))
        if call is not None:
            call.refuse(status, len(body))
        else:
            took_s = self.shared.timeouts.now() - self._began_at
            scope = scope_of_refused(self._parser, self._peer)
            self.shared.note_refusal(scope, status, len(body), took_s)
        is_client_done = call is not None and not call.reads_body
        if not self._is_ending:
            self._is_ending = True
            self.received = b""
            # The application may go on for a while.
            self.shared.tasks.start_soon(self._finish, is_client_done)
        self.bell.ring()

    async def _finish(self, is_client_done: bool) -> None:
        self._is_ending = True
        self.received = b""
        self.transport.resume()
        while self.transport.unsent and not self._is_closed:
            await self.bell.change()
        # If it closed at once while input is unread, the kernel would discard the response, and a
        # client whose upload is refused would not see why.
        if not self._is_closed and (not is_client_done or self.transport.has_unread()):
            self.transport.end_sending()
            self._timeout.set(self.shared.linger_s)
            while not self._is_closed:
                await self.bell.change()
        self._close()

    def _close(self) -> None:
        if self._is_closed:
            return
        self.transport.close()
        self._leave_transport()
        call, self._call = self._call, None
        if call is not None:
            call.disconnected()
        self.bell.ring()

    def _leave_transport(self) -> None:
        self._is_ending = self._is_closed = True
        self._awaited = ""
        self.received = b""
        self._timeout.close()
        self.shared.remove(self)

    def _expire(self) -> None:
        if self.transport.unsent:
            _log.info("closed a connection by force: its client does not read")
            self.abort()
        elif self._is_ending:
            self._close()
        else:
            if self.transport.has_unread():
                # A busy event loop may not have read data that arrived before the deadline.
                self.transport.read_now()
            if self._call is None and not self.received:  # it is idle
                self._close()
            elif self._awaited:  # else there will be another deadline
                self.refuse(BadRequest(408, f"an incomplete {self._awaited[2:]}"))
