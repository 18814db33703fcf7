"""The application that a front end serves: it forwards each request to the server's process."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from json import dumps as dumps_json
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.asgi.extensions import DISCONNECT, ConnectionTotals
from shoal.asgi.headers import PROBLEM_JSON, length_of
from shoal.front_ends.wire import MOST_TAUGHT, WINDOW, Channel, Head, PassedMessage, size_of
from shoal.http.requests.problem import ENDED, with_retry_after
from shoal.loops.parking import Bell
from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.process.wire.messages import unpickled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from shoal.http.json.decoder import Decoder

_log: Final = logging.getLogger("shoal.server")

_MOST_HEADS: Final = 1024
_LONGEST_KEPT: Final = 4096
_SMALL_BODY: Final = 100_000
# Beyond this sum of incomplete bodies, further ones are forwarded as they arrive: the server's
# process bounds those.
_MOST_INCOMPLETE: Final = 2**25
_ASKED_FOR: Final = frozenset((b"expect", b"transfer-encoding"))
_OF_EACH: Final = ("client", "state", "extensions")  # not of the head
_REPORTED: Final = WINDOW // 2
_MOST_DECODERS: Final = 64
# The keys of the extensions of `RemoteCall` for HTTP, beside those of this process's server.
_OFFERED_FOR_HTTP: Final = ("send", "receive", "decoded", "teach", "lend")


class FrontEnd:
    """An ASGI application that forwards requests. It has no lifespan."""

    def __init__(
        self, channel: Channel, connections: Callable[[], ConnectionTotals], retry_after_s: int
    ) -> None:
        self.may_serve = anyio.Event()
        self.must_drain = anyio.Event()
        self.serving = anyio.CancelScope()  # to be cancelled to end by force
        self.channel = channel
        self.parking = parking_of_this_loop()
        self.refusal = _refusal(retry_after_s)  # for requests that the server can't answer
        self._connections = connections
        self._decoders = Decoders()
        self._incomplete = 0  # the declared bytes of the bodies that are gathered here
        self._requests: dict[int, ForwardedRequest] = {}
        self._ids = itertools.count(1)
        # The numbers of the heads that the server's process keeps, the oldest first.
        self._heads: dict[tuple[object, ...], int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = body = decoded = held_back = None
        if scope["type"] == "http":
            decoder = self._decoders.known(scope)
            headers = dict(scope["headers"])
            first = await self._first(headers, receive, decoder)
            if first is not None and first["type"] == "http.request" and not first.get("more_body"):
                body = bytes(first.get("body", b""))
                if body and decoder is not None:
                    decoded = decoder.pickled_item(headers, body)
                    held_back = first if decoded else None
        id_ = next(self._ids)
        self._requests[id_] = request = ForwardedRequest(self, id_, scope, held_back)
        try:
            sent = (*self._head(scope), scope["client"], None if decoded else body, decoded)
            size = len(decoded[1]) if decoded else len(body or b"")
            self.channel.post("request", id_, sent, size)
            if self.channel.is_closed:
                request.lose()
            await request.run(receive if body is None else None, send, first)
        finally:
            del self._requests[id_]

    def count_refusal(self, status: int, took_s: float) -> None:
        """Reports a request that this process has refused itself."""
        self.channel.post("refused", content=(status, took_s))

    def take(self, messages: Sequence[PassedMessage]) -> None:
        for name, id_, content in messages:
            if id_:
                request = self._requests.get(id_)
                if request is not None:
                    request.take(name, content)
            elif name == "decode":
                self._decoders.learn(*content)
            elif name == "count":
                self.tell_connections()
            elif name == "abort":
                self.serving.cancel()
            else:
                self.may_serve.set()
                if name == "drain":
                    self.must_drain.set()

    def tell_connections(self) -> None:
        self.channel.post("connections", content=tuple(self._connections()))

    def lose(self) -> None:
        """Refuses all requests, since the server's process is gone."""
        for request in tuple(self._requests.values()):
            request.lose()

    async def _first(
        self, headers: Mapping[bytes, bytes], receive: Receive, decoder: Decoder | None
    ) -> Message | None:
        """Waits for the start of a small body, or for a whole one that can be decoded here."""
        if not _ASKED_FOR.isdisjoint(headers):
            return None
        size = int(headers.get(b"content-length", b"0"))
        longest = 0 if decoder is None else decoder.longest_body
        if size > max(longest, _SMALL_BODY):
            return None
        first = await receive()
        if not first.get("more_body", False) or not 0 < size <= longest:
            return first
        if self._incomplete + size > _MOST_INCOMPLETE:
            return first
        self._incomplete += size
        try:
            return await _with_the_rest(first, receive)
        finally:
            self._incomplete -= size

    def _head(self, scope: Scope) -> tuple[int, Head | None]:
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        key = (
            *(scope["type"], scope.get("method"), scope["http_version"], scope["scheme"]),
            *(scope["path"], scope["raw_path"], scope["query_string"], scope["root_path"]),
            *(scope["server"], *headers),
        )
        number = self._heads.get(key)
        if number is not None:
            return number, None
        number, size = 0, len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(map(len, itertools.chain.from_iterable(headers)))
        if scope["type"] == "http" and size <= _LONGEST_KEPT:
            number = len(self._heads) + 1
            if number > _MOST_HEADS:
                number = self._heads.pop(next(iter(self._heads)))
            self._heads[key] = number
        sent = {name: scope[name] for name in scope if name not in _OF_EACH}
        offered = {*scope["extensions"][DISCONNECT]}
        if scope["type"] == "http":
            offered.update(_OFFERED_FOR_HTTP)
        return number, Head(sent, offered)


class ForwardedRequest:
    _is_over = False  # nothing more is expected from the server's process
    waiter: Any = None  # of the task that relays the response
    _wants: Bell | None = None  # rung for the task that forwards the client's messages
    _wanted = 0
    _taken = 0
    _has_begun = False

    def __init__(
        self, front_end: FrontEnd, id_: int, scope: Scope, held_back: Message | None = None
    ) -> None:
        self._front_end = front_end
        self._parking = front_end.parking
        self._id = id_
        self._is_websocket = scope["type"] == "websocket"
        self._offered: Mapping[str, Any] = scope["extensions"][DISCONNECT]
        self._messages: deque[tuple[str, Any]] = deque()
        # The whole body, whose item was sent: for an application that reads the body all the same.
        self._held_back = held_back

    async def run(self, receive: Receive | None, send: Send, first: Message | None = None) -> None:
        # `receive` is None if the request was forwarded whole. If this is cancelled, the server's
        # process is notified that the client is gone.
        watch = self._offered["when_left"]
        try:
            watch(self._on_disconnect)
            if receive is None:
                await self._relay(send)
                return
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pass_messages, receive, first)
                await self._relay(send)
                tasks.cancel_scope.cancel()
        finally:
            watch(None)
            if not self._is_over:
                self._end()

    # Messages from the server's process.

    def take(self, name: str, content: Any) -> None:
        match name:
            case "want":
                self._want(content)
            case "heartbeat":
                self._offered["heartbeat"](*content)
            case "trace":
                self._offered["note_trace"](content)
            case "watch drain":
                self._offered["when_draining"](partial(self._post, "draining"))
            case _:
                if not self._is_over:
                    self._queue(name, content)

    def lose(self) -> None:
        if not self._is_over:
            self._queue("cut off")
            self._is_over = True

    def _queue(self, name: str, content: Any = None) -> None:
        self._messages.append((name, content))
        if self.waiter is not None:
            self._parking.wake(self.waiter)

    # The client's side.

    def _on_disconnect(self) -> None:
        if self._offered["is_cut_off"]():
            self._post("cut off")
        elif self._is_websocket:
            # The remaining messages and the reason of the disconnect are forwarded first.
            self._want(2**31)
        else:
            self._disconnected()

    def _disconnected(self) -> None:
        if not self._is_over:
            self._end()
            self._queue("ended")

    def _end(self) -> None:
        self._is_over = True
        self._post("left", self._offered["refused_with"]())

    def _post(self, name: str, content: object = None, size: int = 0) -> None:
        self._front_end.channel.post(name, self._id, content, size)

    def _want(self, count: int) -> None:
        message, self._held_back = self._held_back, None
        if message is not None:
            self._post("message", message, size_of(message))
        self._wanted += count
        if self._wants is not None:
            self._wants.ring()

    async def _pass_messages(self, receive: Receive, first: Message | None) -> None:
        self._wants = Bell(self._parking)
        while not self._is_over:
            while not self._wanted:
                await self._wants.change()
            self._wanted -= 1
            message, first = first or await receive(), None
            kind = message["type"]
            if kind != "http.disconnect" and not self._is_over:
                self._post("message", message, size_of(message))
            if kind in ("http.disconnect", "websocket.disconnect"):
                self._disconnected()
                return
            if kind == "http.request" and not message.get("more_body", False):
                return

    async def _relay(self, send: Send) -> None:
        messages = self._messages
        while True:
            while not messages:
                await self._parking.park(self)
            name, content = messages.popleft()
            match name:
                case "send":
                    await self._send_some(send, content)
                case "send pickled":
                    await self._send_some(send, [unpickled(content)])
                case "texts":
                    await self._offered["send_texts"](content)
                    self._count(sum(map(len, content)))
                case _:
                    self._is_over = True
                    if name == "whole":
                        await self._send_whole(send, *content)
                    elif name == "array":
                        from shoal.http.json.decoder import json_of  # the decoder has loaded it

                        status, headers, array = content
                        await self._send_whole(send, status, headers, json_of(*array))
                    elif name == "cut off" and not self._has_begun:
                        await self._refuse(send)
                    return

    async def _send_whole(
        self, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        if self._offered["respond"](send, status, headers, body):
            return
        if length_of(headers) is None and status not in (204, 304):
            headers.insert(1, (b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _send_some(self, send: Send, messages: list[Message]) -> None:
        self._has_begun = True
        for message in messages:
            await send(message)
            self._count(size_of(message))

    async def _refuse(self, send: Send) -> None:
        headers, body = self._front_end.refusal
        kind = "websocket.http.response" if self._is_websocket else "http.response"
        await send({"type": f"{kind}.start", "status": 503, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})

    def _count(self, size: int) -> None:
        self._taken += size
        if self._taken >= _REPORTED:
            self._post("taken", self._taken)
            self._taken = 0


class Decoders:
    """The decoders that this front end has been taught by the server's process."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}  # by method and path
        self._decoders: dict[int, Decoder | None] = {}  # None while it is built

    def learn(self, key: tuple[str, str], number: int, description: bytes) -> None:
        self._numbers.pop(key, None)
        if not number:
            return
        if len(self._numbers) >= MOST_TAUGHT:
            del self._numbers[next(iter(self._numbers))]
        self._numbers[key] = number
        if number in self._decoders:
            return
        if len(self._decoders) >= _MOST_DECODERS:
            del self._decoders[next(iter(self._decoders))]
        self._decoders[number] = None
        # In a thread: to load pydantic takes longer than many requests.
        with suppress(RuntimeError):  # there may be too many threads
            Thread(target=self._build, args=(number, description), daemon=True).start()

    def known(self, scope: Scope) -> Decoder | None:
        number = self._numbers.get((scope["method"], scope["path"]), 0)
        return self._decoders.get(number)

    def _build(self, number: int, description: bytes) -> None:
        try:
            from shoal.http.json.decoder import Decoder

            self._decoders[number] = Decoder(number, description)
        except Exception as error:
            _log.warning("a worker can't decode the items of an endpoint", exc_info=error)


async def _with_the_rest(first: Message, receive: Receive) -> Message:
    parts, message = [first["body"]], first
    while message.get("more_body", False):
        message = await receive()
        if message["type"] != "http.request":  # the client is gone
            return message
        parts.append(message.get("body", b""))
    return {**message, "body": b"".join(parts)}


def _refusal(retry_after_s: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    problem = with_retry_after(ENDED, retry_after_s)
    members = problem.members("")
    del members["instance"]  # the request has no id here
    body = dumps_json(members).encode()
    length = (b"content-length", b"%d" % len(body))
    return [(b"content-type", PROBLEM_JSON), *problem.headers, length], body
