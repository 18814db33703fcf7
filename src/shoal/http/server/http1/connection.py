"""A connection that speaks HTTP/1.1: a state machine between its transport and the application.

The problem: what a server makes for each request (tasks, channels, events, cancel scopes) costs ten
times as much as parsing the request. Here nothing of the kind is made. The transport calls the
connection with what arrives; when a head is complete, a worker calls the application (see
`workers`). An idle connection has no task. A send goes to the kernel at once.

One request is answered at a time. What the client sends beyond it stays unparsed until the answer
is complete, and at most `_MOST_HELD` bytes of it leave the kernel.

Every state has a deadline: a head, a body, an idle connection, a send that the client does not
read, and the end, when the server has ended its side and waits for the client's.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from shoal.http.server.http1.answer import error_answer
from shoal.http.server.http1.bad_request import BadRequest
from shoal.http.server.http1.body import BodyReader, reader_of
from shoal.http.server.http1.call import Call
from shoal.http.server.http1.head import END, HeadParser, find_end
from shoal.http.server.http1.logged_call import LoggedCall
from shoal.http.server.http1.scope import scope_of_refused
from shoal.http.server.listeners import host_and_port
from shoal.http.server.sockets.timeouts import Timeout, time_to_receive_s, time_to_send_s
from shoal.http.server.sockets.transport import Receiver

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.http.server.http1.switch import Switch
    from shoal.http.server.shared import Shared
    from shoal.http.server.sockets.tls import TlsTransport
    from shoal.http.server.sockets.transport import Transport

_log = logging.getLogger("shoal.server")

_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\n"
_MOST_HELD: Final = 2**16

# The states of a connection.
_IDLE: Final = 0  # no byte of the next request has come
_HEAD: Final = 1  # a head is incomplete
_BODY: Final = 2  # a request is being answered, and its body is incomplete
_ANSWER: Final = 3  # a request that was received whole is being answered
_ENDING: Final = 4  # the server's side is about to end, or has ended; input is dropped
_CLOSED: Final = 5


class Http1Connection(Receiver):
    """Serves one client until either side closes the connection.

    Invariant: in the states BODY and ANSWER, and in no other, `_call` is the request that is being
    answered.

    Args:
        shared: The state of the address.
        transport: The client's socket.
        released: Called once, when the connection is closed and no call of it is running.
        client: Continues with another protocol.

    Attributes:
        shared: As above.
        peer: The client's host and port.
        name: The server's host and port.

    Raises:
        OSError: The client is gone.
    """

    __slots__ = (
        *("_body", "_began_at", "_call", "_client", "_has_enough", "_held", "_is_new"),
        *("_known_host", "_new_call", "_parser", "_received", "_released", "_running", "_state"),
        *("_timeout", "_transport", "name", "peer", "shared"),
    )

    def __init__(
        self,
        shared: Shared,
        transport: Transport | TlsTransport,
        released: Callable[[], object],
        client: Switch,
    ) -> None:
        self.shared = shared
        self._transport = transport
        self._released: Callable[[], object] | None = released
        self._state = _IDLE
        self._parser = HeadParser(shared.options)
        # Of the next head; or what is behind the request that is being answered.
        self._held: bytes | bytearray = b""
        self._has_enough = False
        self._is_new = True  # no request has come
        self._known_host: bytes | None = None  # of a request that the guard has allowed
        self._body: BodyReader | None = None
        self._began_at = 0.0  # when the incomplete head or body did
        self._received = 0
        self._call: Call | None = None
        self._running = 0  # calls of the application
        self._timeout = Timeout(shared.timeouts, self._expire)
        self._client = client
        self._new_call = LoggedCall if shared.options.access_log else Call
        self.peer = host_and_port(transport.peer)
        self.name = host_and_port(transport.name)

    def start(self) -> None:
        """Begins to serve."""
        self.shared.connections.add(self)
        self._transport.receiver = self
        self._timeout.set(self.shared.idle_s)
        self._transport.start()

    def drain(self) -> None:
        """Closes after the current answer, or after a request that arrives very soon."""
        if self._state <= _HEAD:
            self._timeout.set(self.shared.late_request_s)

    def end_early(self) -> None:
        """Asks for the end of the answer; answers 503 where the application can't be asked."""
        call = self._call
        if call is not None and not call.end_early():
            self._answer_with_error(503)

    def abort(self) -> None:
        """Closes by force; data that the client has not received is discarded."""
        self._transport.abort()
        self._close()

    # What the transport reports.

    def data_received(self, data: bytes) -> None:
        """Handles bytes from the client."""
        state = self._state
        if state <= _HEAD:
            last = self._parser.last
            try:
                if state == _HEAD:
                    self._take_head(data)
                elif last and data.startswith(last):
                    self._answer(data, len(last))
                elif 0 <= (end := data.find(END)) < self._parser.options.max_head_bytes:
                    self._begin(data, end + 4)
                else:
                    self._take_head(data)
            except BadRequest as error:
                self._refuse(error)
        elif state == _BODY:
            self._take_body(data)
        elif state == _ANSWER:
            self._hold(data)

    def client_ended(self) -> None:
        """Handles that the client has ended its side: it counts as gone."""
        if self._state != _BODY or not self._transport.is_paused:
            self._close()

    def all_sent(self) -> None:
        """Handles that the kernel has taken all that was sent."""
        call = self._call
        if self._state == _ENDING:
            self._end_sending()
        elif call is None or not call.is_answered:
            self._set_timeout()
        else:
            call.is_sent = True
            self.answered(call)
        if call is not None:
            call.wake()

    def connection_lost(self) -> None:
        """Handles that the connection broke."""
        self._close()

    @property
    def is_sending(self) -> bool:
        """Whether the kernel has not taken all that was sent."""
        return bool(self._transport.unsent)

    def send(self, data: bytes) -> bool:
        """Sends bytes; returns whether the kernel has taken all of them."""
        if self._transport.send(data):
            return True
        unsent = len(self._transport.unsent)
        self._timeout.set(time_to_send_s(unsent, self.shared.send_timeout_s))
        return False

    def read_more(self) -> None:
        """Reads more of the body, since the application has taken what came."""
        if self._transport.is_paused:
            # The client could not send meanwhile.
            self._began_at = self.shared.timeouts.now()
            self._received = 0
            self._transport.resume()
            self._set_timeout()

    def answered(self, call: Call, now: float | None = None) -> None:
        """Handles that the whole answer was passed to the kernel; just now on the loop's clock."""
        if call is not self._call:
            return
        self._call = None
        if call.keeps_alive:
            self._state = _IDLE
            self._timeout.set(self.shared.idle_s, now)
            if self._held:
                data, self._held = bytes(self._held), b""
                self._has_enough = False
                self.data_received(data)
                if not self._has_enough:
                    self._transport.resume()
        else:
            self._finish(is_client_done=self._body is None)

    def _take_head(self, data: bytes | bytearray) -> None:
        """Takes a part of a head; raises `BadRequest`."""
        self._parser.forget()
        searched = len(self._held)
        if searched:
            self._held += data
            data = self._held
        end = find_end(data, self._parser.options.max_head_bytes, searched)
        if end >= 0:
            self._held = b""
            self._begin(bytes(data), end)
        elif self._state == _IDLE:
            self._state = _HEAD
            self._held = bytearray(data)
            self._began_at = self.shared.timeouts.now()
            self._timeout.set(self.shared.head_timeout_s)

    def _begin(self, data: bytes, end: int) -> None:
        """Checks the head that is the data up to `end`, and begins to answer its request.

        A head that is the same as the last one passes again, so it is not given to this method.
        """
        shared = self.shared
        parser = self._parser
        if self._is_new and data.startswith(_HTTP2_PREFACE):
            self._switch(partial(self._client.switch_to_http2, data))
            return
        self._is_new = False
        parser.parse(data if len(data) == end else data[:end])
        host, origin = parser.host, parser.origin
        is_websocket = parser.is_websocket()
        if shared.guard is not None and (origin is not None or host != self._known_host):
            shared.guard.check("" if is_websocket else parser.line.method, host, origin)
            if origin is None:
                self._known_host = host
        if is_websocket:
            self._switch(partial(self._client.switch_to_websocket, parser, data[end:]))
            return
        self._answer(data, end)

    def _answer(self, data: bytes, end: int) -> None:
        """Begins to answer the request whose head, the data up to `end`, was parsed last."""
        shared = self.shared
        parser = self._parser
        length = parser.length
        self._running += 1
        # The deadline of the idle connection stays, and counts for nothing in the state ANSWER.
        if length == len(data) - end:
            self._state = _ANSWER
            self._call = call = self._new_call(self, parser, data[end:])
        elif length == 0:
            self._state = _ANSWER
            self._call = call = self._new_call(self, parser)
            self._hold(data[end:])
        else:
            self._state = _BODY
            self._call = call = self._new_call(self, parser)
            call.expect_body(is_asked_for=parser.expects)
            self._body = reader_of(length)
            self._began_at = shared.timeouts.now()
            self._received = 0
            if len(data) != end:
                self._take_body(data[end:])
            if self._state == _BODY:
                self._set_timeout()
        shared.workers.start(call)  # also one that was refused, which must be counted

    def _switch(self, switch: Callable[[], None]) -> None:
        """Hands the transport over to a connection that speaks another protocol."""
        try:
            switch()
        except OSError:  # the client is gone
            self._close()
        else:
            self._released = None
            self._leave_transport()

    def _take_body(self, data: bytes) -> None:
        call = self._call
        assert self._body is not None
        assert call is not None
        try:
            body, rest = self._body.feed(data)
        except BadRequest as error:
            self._refuse(error)
            return
        self._received += len(body)
        if self._body.is_complete:
            self._body = None
            self._state = _ANSWER
            call.body_arrived(body, is_complete=True)
            self._set_timeout()
            if rest:
                self._hold(rest)
        elif body and call.body_arrived(body, is_complete=False):
            self._pause()
            self._set_timeout()

    def _hold(self, data: bytes) -> None:
        if not self._held:
            self._held = bytearray()
        self._held += data
        if len(self._held) >= _MOST_HELD:
            self._pause()

    def _pause(self) -> None:
        """Stops reading until what has come is dealt with."""
        self._has_enough = True
        self._transport.pause()

    # Ends.

    def call_ended(self, call: Call) -> None:
        """Handles that the application has returned."""
        self._running -= 1
        if call is self._call and not call.is_answered:
            if call.has_begun:
                self.abort()  # the client must not take it for the whole answer
            else:
                self._answer_with_error(503 if call.is_cut_off() else 500)
        if self._state == _CLOSED:
            self._release()

    def _refuse(self, error: BadRequest) -> None:
        """Ends the connection of a client that sends what is no request."""
        call = self._call
        if call is not None and call.has_begun:
            self.abort()
            return
        self._answer_with_error(error.status, str(error))

    def _answer_with_error(self, status: int, text: str = "") -> None:
        call, self._call = self._call, None
        is_client_done = self._state == _ANSWER
        self.send(error_answer(status, text, self.shared.date_now()))
        size = len(text) + 1 if text else 0
        if call is not None:
            call.refuse(status, size)
        else:
            took_s = self.shared.timeouts.now() - self._began_at if self._state == _HEAD else 0.0
            scope = scope_of_refused(self._parser, self.peer)
            self.shared.refusals.note(scope, status, size, took_s)
        if self._state != _CLOSED:
            self._finish(is_client_done=is_client_done)

    def _finish(self, *, is_client_done: bool) -> None:
        """Ends the connection once all was sent."""
        self._state = _ENDING
        self._held = b""
        self._body = None
        if self._transport.unsent:
            self._transport.resume()
        elif is_client_done and not self._transport.has_unread():
            self._close()
        else:
            self._transport.resume()
            self._end_sending()

    def _end_sending(self) -> None:
        """Shuts down the server's side, and reads on for a moment."""
        # Closing at once while there is unread input would make the kernel discard the answer, so
        # that a client whose upload is refused would not see why.
        self._transport.end_sending()
        self._timeout.set(self.shared.linger_s)

    def _close(self) -> None:
        """Closes the socket, and tells the call that is being answered that the client is gone."""
        if self._state == _CLOSED:
            return
        self._transport.close()
        self._leave_transport()
        self._body = None
        call, self._call = self._call, None
        if call is not None:
            call.leave()
        self._release()

    def _leave_transport(self) -> None:
        """Ends what refers to the transport."""
        self._state = _CLOSED
        self._timeout.close()
        self.shared.remove(self)
        self._held = b""

    def _release(self) -> None:
        if self._state == _CLOSED and not self._running:
            released, self._released = self._released, None
            if released is not None:
                released()

    def _set_timeout(self) -> None:
        """Sets the deadline of the current state, unless a send has one."""
        if self._transport.unsent:
            return
        shared = self.shared
        state = self._state
        if state == _IDLE:
            self._timeout.set(shared.idle_s)
        elif state == _BODY and not self._transport.is_paused:
            self._timeout.set(self._body_left_s())
        elif state <= _ANSWER:
            self._timeout.stop()

    def _body_left_s(self) -> float:
        """Returns how long the client may take to send more of its body."""
        allowed_s = time_to_receive_s(self._received, self.shared.body_timeout_s)
        return self._began_at + allowed_s - self.shared.timeouts.now()

    def _expire(self) -> None:
        if self._transport.unsent:
            _log.info("closed a connection by force: its client does not read")
            self.abort()
            return
        if self._state == _ENDING:
            self._close()
            return
        if self._state == _ANSWER:
            return
        # A busy event loop may not yet have read what arrived before the deadline.
        if self._transport.has_unread():
            state, received = self._state, self._received
            self._transport.read_now()
            if self._state != state or self._received != received:
                if self._state == _BODY:
                    self._set_timeout()
                return
        if self._state == _IDLE:
            self._close()
        elif self._state == _HEAD:
            self._refuse(BadRequest(408, "an incomplete head"))
        elif self._state == _BODY:
            if self._body_left_s() > 0:
                self._set_timeout()
            else:
                self._refuse(BadRequest(408, "an incomplete body"))
