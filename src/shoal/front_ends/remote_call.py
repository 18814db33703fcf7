"""The requests that a front end has forwarded, in the server's process.

The application gets each as the three arguments of ASGI. Its response goes to the front end as
messages. At most a window is sent ahead of the client, so that a client that does not read holds up
only its own call.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pickle import dumps
from typing import TYPE_CHECKING, Any, Final

import anyio.lowlevel

from shoal.asgi.extensions import DECODED, DISCONNECT, SERVER
from shoal.front_ends.wire import MESSAGES_AHEAD, MOST_TAUGHT, WINDOW, Channel, Head, size_of
from shoal.loops.parking import Bell
from shoal.replicas.process.wire.messages import unpickled
from shoal.server.log_errors import contained
from shoal.server.served_call import SENDS_WITHOUT_CHECKPOINT, ServedCall, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import Message, Receive, Scope, Send

    from shoal.asgi.extensions import BeginCall, BegunCall
    from shoal.server.shared import Shared


_MOST_IDLE: Final = 256  # tasks
_LONGEST_TAUGHT: Final = 256  # characters
_FAILED: Final = "a callback of the application failed"
_GONE: Final = 1006  # WebSocket's code for a connection that was lost
# Posted messages have these values, not equal values of other types from the application.
_START: Final = "http.response.start"
_BODY: Final = "http.response.body"
# The extension that ASGI requires for refusing a WebSocket with a response.
_DENIAL: Final = "websocket.http.response"


class RemoteCalls:
    """The requests that a front end has forwarded, and the tasks that answer them."""

    def __init__(self, shared: Shared, channel: Channel) -> None:
        self.shared = shared
        self.channel = channel
        # A task answers one request after another, as a connection's task does. Starting a task for
        # each request would cost a fourth of this process's work for it.
        self.running: dict[int, RemoteCall] = {}
        self._new: deque[RemoteCall] = deque()
        self._idle: list[TaskState] = []  # of tasks that wait for a request
        self._is_over = False
        self.to_answer: list[RemoteCall] = []  # requests without a task, whose calls have ended
        self.waiter: Any = None  # of the task that answers these
        # The number of the decoder that the front end has for a method and a path.
        self._taught: dict[tuple[str, str], int] = {}

    def teach(self, key: tuple[str, str], number: int, description: bytes) -> None:
        """Has the front end decode the requests with a method and a path; not if it is 0."""
        if len(key[1]) > _LONGEST_TAUGHT or self._taught.get(key, 0) == number:
            return
        self._taught.pop(key, None)
        if number:
            if len(self._taught) >= MOST_TAUGHT:  # clients may choose the paths
                del self._taught[next(iter(self._taught))]
            self._taught[key] = number
        self.channel.post("decode", 0, (key, number, description), len(description))

    def begin(self, id_: int, call: RemoteCall) -> None:
        self.running[id_] = call
        self.shared.calls_started += 1
        if not call.has_begun_item():
            self._start(call)

    async def answer(self) -> None:
        """Answers the requests without a task, those of a batch together."""
        while True:
            if not self.to_answer:
                await self.shared.parking.park(self)
            self._answer_ended()
            self.channel.flush()

    def _answer_ended(self) -> None:
        ended, self.to_answer = self.to_answer, []
        for call in ended:
            if not call.has_answered_item():
                self._start(call)

    def _start(self, call: RemoteCall) -> None:
        self._new.append(call)
        if self._idle:
            self.shared.wake(self._idle.pop().waiter)
        else:
            self.shared.start_task(self)

    def disconnected(self) -> None:
        self._is_over = True
        for call in tuple(self.running.values()):
            call.disconnected()
        self._answer_ended()
        for task in self._idle:
            self.shared.wake(task.waiter)

    async def run(self) -> bool:
        task = TaskState(self.shared.parking)
        while True:
            while self._new:
                # No variable refers to it, so that an idle task does not keep it.
                await self._new.popleft().run()
                if not task.is_unchanged():
                    return False
            if self._is_over or len(self._idle) >= _MOST_IDLE:
                return True
            self._idle.append(task)
            try:
                await self.shared.parking.park(task)
            except BaseException:
                if task in self._idle:
                    self._idle.remove(task)
                raise

    def ended(self, *, is_reusable: bool) -> None:
        del is_reusable  # waiting requests get a new task in either case
        if self._new:
            self.shared.start_task(self)


class RemoteCall(ServedCall):
    _decoded: tuple[int, Any] | None = None
    _start: Message | None = None  # the first message of the response, until it is sent
    _bell: Bell | None = None  # created by the first wait
    _on_drain: Callable[[], object] | None = None
    _is_draining = False
    _item_call: BegunCall | None = None  # of a request without a task, or whose task finishes it
    _unread = 0  # bytes of the response that the client has not taken
    _wanted = 0  # messages of the client that the front end may send
    _has_more = True  # the client may send messages
    _messages: deque[Message] | None = None  # of the client

    def __init__(
        self,
        calls: RemoteCalls,
        id_: int,
        head: Head,
        client: tuple[str, int] | None,
        decoder: int,
        given: bytes | None,
    ) -> None:
        self._calls = calls
        self._shared = calls.shared
        self._id = id_
        self.offered = head.offered
        self._head = head
        self._client = client
        self._decoder = decoder
        # The item of the decoder, pickled; for 0 the body, or None if it arrives in messages.
        self._given = given

    # Without a task. A second way, for speed: a task, a scope and an exchange of the application
    # are more than half of what a small request costs this process.

    def has_begun_item(self) -> bool:
        """Begins the call of an item or a body, if the application has lent what does that."""
        begin = self._head.begin
        if begin is None:
            return False
        call = begin(self, self._shared.app, self._decoder, self._given)
        if call is None:
            return False
        self._item_call = call
        self._on_left = call.leave
        return True

    def wake(self) -> None:
        calls = self._calls
        calls.to_answer.append(self)
        if calls.waiter is not None:
            self._shared.wake(calls.waiter)
            calls.waiter = None

    def done(self) -> bool:
        return False  # no task waits, which could be cancelled

    def has_answered_item(self) -> bool:
        """Answers a request whose call has ended; returns False if a task must do so."""
        call, self._on_left = self._item_call, None
        if call is not None and self.is_over:  # the client is gone
            call.count_left(self.refusal)
        elif call is not None:
            answer = call.answer()
            if answer is None:
                return False
            self._respond(200, *answer)
        self._end()
        return True

    # The application's side: ASGI.

    async def run(self) -> None:
        call = self._item_call
        app = self._shared.app if call is None else call.finish
        try:
            await app(self.scope(), self.receive, self.send)
        except Exception as error:
            self.log_failure(error, self._head.scope["raw_path"])
        finally:
            self._end()

    def _end(self) -> None:
        self._item_call = None  # the call refers to this request
        self._shared.calls_finished += 1
        if not (self.is_complete or self.is_over):
            self._post("cut off" if self._is_cut_off and not self.has_begun else "ended")
        self.is_over = True
        self._calls.running.pop(self._id, None)

    def scope(self) -> Scope:
        shared, head = self._shared, self._head.scope
        own: dict[str, Any] = {DECODED: self} if head["type"] == "http" else {_DENIAL: {}}
        return {
            **head,
            "client": self._client,
            "headers": list(head["headers"]),
            "state": shared.state.copy(),
            "extensions": {DISCONNECT: self, SERVER: shared.counts, **own},
        }

    async def receive(self) -> Message:
        body = self.whole_body(self.receive)
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        while not self._messages and not (self.is_over or self.is_complete):
            if self._has_more and not self._wanted:
                self._want(MESSAGES_AHEAD)
            await self._change()
        if self._messages:
            message = self._messages.popleft()
            self._taken(message)
            return message
        if self._head.scope["type"] == "websocket":
            return await self._disconnect({"type": "websocket.disconnect", "code": _GONE})
        return await self._disconnect({"type": "http.disconnect"})

    async def send(self, message: Message) -> None:
        """Sends a message of ASGI, whole or (if it is cancelled) not at all."""
        if self.is_over:
            await anyio.lowlevel.checkpoint()
            return
        kind = message["type"]
        if self._head.scope["type"] == "websocket":
            await self._room()
            # Pickled now, so that an error is raised here.
            self._post("send pickled", dumps(message, 5), size_of(message))
        elif self.is_complete:
            raise RuntimeError("the response is complete already")
        elif kind == _START:
            if self._start is not None or self.has_begun:
                raise RuntimeError("the response has begun already")
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            self._start = {"type": _START, "status": int(message["status"]), "headers": headers}
        elif kind != _BODY or (self._start is None and not self.has_begun):
            raise RuntimeError(f"{kind!r} is not a message that is allowed here")
        else:
            data, has_more = message.get("body", b""), message.get("more_body", False)
            if type(data) is not bytes:
                data = bytes(memoryview(data))  # raises before anything has changed
            if self.has_begun and not await self._room():
                return
            start, self._start = self._start, None
            self.has_begun = True
            # The response to HEAD has no body that would tell the front end its length.
            if start is not None and not has_more and self._head.scope["method"] != "HEAD":
                self._respond(start["status"], start["headers"], data)
                return
            part = {"type": _BODY, "body": data, "more_body": bool(has_more)}
            self._post("send", [part] if start is None else [start, part], len(data))
            if not has_more:
                self._complete("ended", None, 0)

    # Extensions of ASGI.

    def note_trace(self, ids: tuple[str, str]) -> None:
        self._post("trace", tuple(map(str, ids)))

    def heartbeat(self, after_s: float, data: bytes) -> None:
        self._post("heartbeat", (float(after_s), bytes(data)))

    def has_room(self) -> bool:
        return self._unread < WINDOW

    def put(self, data: bytes) -> None:
        if not self.is_over:
            part = {"type": _BODY, "body": bytes(data), "more_body": True}
            self._post("send", (part,), len(data))

    @property
    def decoded(self) -> tuple[int, Any] | None:
        """The number of a decoder of the front end, and the item that it made of the body."""
        if self._decoder and self._given is not None:
            pickled, self._given = self._given, None
            with suppress(Exception):  # the body is read
                self._decoded = self._decoder, unpickled(pickled)
        return self._decoded

    def teach(self, number: int, description: bytes) -> None:
        key = self._head.scope["method"], self._head.scope["path"]
        self._calls.teach(key, int(number), bytes(description))

    def lend(self, begin: BeginCall) -> None:
        """Takes what begins the calls of further requests with this head."""
        self._head.begin = begin

    def whole_body(self, receive: Receive) -> bytes | None:
        if self._decoder or receive != self.receive:
            return None
        body, self._given = self._given, None
        self._has_more = self._has_more and body is None
        return body

    def respond(
        self, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: Any
    ) -> bool:
        # The front end writes a body that is an array as JSON.
        if send != self.send or self._start is not None or self.has_begun:
            return False
        if self._head.scope["method"] == "HEAD":  # or the front end would log the size of a body
            return False
        if self.is_over:
            return True
        headers = [(bytes(name), bytes(value)) for name, value in headers]
        self._respond(int(status), headers, body)
        return True

    def _respond(self, status: int, headers: list[tuple[bytes, bytes]], body: Any) -> None:
        kind, size = "whole", len(body)
        if type(body) is not bytes:
            # Copied now: the application may change it afterwards. Pickled, it would cost more than
            # the rest of the response.
            view = memoryview(body)
            kind, size, body = "array", view.nbytes, (view.format, view.shape, view.tobytes())
        self.has_begun = True
        self._complete(kind, (status, headers, body), size)

    # Extensions for WebSockets.

    def when_draining(self, callback: Callable[[], object] | None) -> None:
        self._on_drain = callback
        if callback is None:
            return
        if self._is_draining:
            callback()
        else:
            self._post("watch drain")

    async def send_texts(self, texts: Iterable[bytes]) -> None:
        if self.is_over:
            await anyio.lowlevel.checkpoint()
            return
        await self._room()
        texts = [bytes(text) for text in texts]
        self._post("texts", texts, sum(map(len, texts)))

    # Reports of the front end.

    def take(self, name: str, content: Any) -> None:
        match name:
            case "left":
                self.disconnected(content)
            case "message":
                self._message_arrived(content)
            case "taken":
                self._unread -= content
                self._signal()
            case "cut off":
                self.end_early()
            case "draining":
                self._drained()
            case _:
                raise ValueError(f"a message {name!r} can't come here")

    def _message_arrived(self, message: Message) -> None:
        self._wanted -= 1
        if message["type"] == "http.request":
            self._has_more = message.get("more_body", False)
        elif message["type"] == "websocket.disconnect":
            self._has_more = False
        self._messages = self._messages or deque()
        self._messages.append(message)
        self._signal()

    def _drained(self) -> None:
        self._is_draining = True
        callback, self._on_drain = self._on_drain, None
        if callback is not None:
            with contained(_FAILED):
                callback()

    def disconnected(self, status: int = 0) -> None:
        self.refusal = status or self.refusal
        self.is_over = True
        self._call_back()
        self._signal()

    def end_early(self) -> None:
        if not self.ask_to_end():
            self._post("cut off")
            self.disconnected(503)

    # All sides.

    def _want(self, count: int) -> None:
        self._wanted += count
        self._post("want", count)

    def _taken(self, message: Message) -> None:
        """Asks for more of the client's messages, once half of the requested have arrived."""
        if self._has_more and self._wanted + len(self._messages or ()) <= MESSAGES_AHEAD // 2:
            self._want(MESSAGES_AHEAD // 2)

    def _post(self, name: str, content: object = None, size: int = 0) -> None:
        self._unread += size
        self._calls.channel.post(name, self._id, content, size)

    def _complete(self, name: str, content: object, size: int) -> None:
        self._calls.channel.post(name, self._id, content, size)
        self.is_complete = True
        self._on_left = None
        self._signal()

    async def _room(self) -> bool:
        """Waits until the client has taken enough; returns False if it is gone."""
        self._sends += 1
        if self._sends % SENDS_WITHOUT_CHECKPOINT == 0:
            await anyio.lowlevel.checkpoint()
        while not (self.has_room() or self.is_over):
            await self._change()
        return not self.is_over

    def _signal(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    async def _change(self) -> None:
        if self._bell is None:
            self._bell = Bell(self._shared.parking)
        await self._bell.change()
