"""The application that a front end serves: it forwards each request to the server's process."""

from __future__ import annotations

import itertools
import logging
from contextlib import suppress
from functools import partial
from json import dumps as dumps_json
from operator import itemgetter
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from shoal.asgi.extensions import DISCONNECT, ConnectionTotals
from shoal.asgi.headers import PROBLEM_JSON, length_of, may_be_decoded_early
from shoal.front_ends.wire import MOST_TAUGHT, WINDOW, Channel, Head, PassedMessage, size_of
from shoal.http.requests.problem import ENDED, with_retry_after
from shoal.loops.parking import Bell
from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.process.wire.messages import unpickled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from shoal.http.json.decoder import Decoder
    from shoal.server.served_call import ServedCall

_log: Final = logging.getLogger("shoal.server")

_MOST_HEADS: Final = 1024
_LONGEST_KEPT: Final = 4096
_SMALL_BODY: Final = 100_000
# Beyond this sum of incomplete bodies, further ones are forwarded as they arrive: the server's
# process bounds those.
_MOST_INCOMPLETE: Final = 2**25
_ASKED_FOR: Final = frozenset((b"expect", b"transfer-encoding"))
_OF_EACH: Final = ("client", "state", "extensions")  # not of the head
_shared_parts_of: Final = itemgetter(
    *("type", "http_version", "scheme", "path", "raw_path", "query_string", "root_path", "server")
)
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
        self.requests: dict[int, ForwardedRequest] = {}
        self._connections = connections
        self._decoders = Decoders()
        self._incomplete = 0  # the declared bytes of the bodies that are gathered here
        self._ids = itertools.count(1)
        # The heads that the server's process keeps, the oldest first.
        self._heads: dict[tuple[object, ...], KnownHead] = {}
        self._is_lost = False  # the server's process is gone

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        call: ServedCall = scope["extensions"][DISCONNECT]
        body = call.whole_body(receive)
        if body is None:
            return self._forward_in_parts(scope, call, receive, send)
        return self._forward(scope, call, body).relay(send)

    def count_refusal(self, status: int, took_s: float) -> None:
        """Reports a request that this process has refused itself."""
        self.channel.post("refused", content=(status, took_s))

    def take(self, messages: Sequence[PassedMessage]) -> None:
        for message in messages:
            name, id_, content = message
            if id_:
                request = self.requests.get(id_)
                if request is not None:
                    request.take(message)
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
        self._is_lost = True
        for request in self.requests.values():
            request.lose()

    def _forward(self, scope: Scope, call: ServedCall, body: bytes | None) -> ForwardedRequest:
        """Forwards a request; without a body, the client's messages must follow."""
        key = (scope.get("method"), *_shared_parts_of(scope), *scope["headers"])
        head, new = self._heads.get(key), None
        if head is None:
            head, new = self._new_head(key, scope)
        number, given = 0, body
        if body:
            decoder = self._decoders.known(head.route)
            item = None if decoder is None else decoder.pickled_item(head.headers, body)
            if item is not None:
                number, given = item
        id_ = next(self._ids)
        request = ForwardedRequest(self, id_, scope["type"], call, body if number else None)
        self.requests[id_] = request
        content = (head.number, new, scope["client"], number, given)
        self.channel.post("request", id_, content, len(given or b""))
        if self._is_lost:
            request.lose()
        call.when_left(request.on_disconnect)
        return request

    async def _forward_in_parts(
        self, scope: Scope, call: ServedCall, receive: Receive, send: Send
    ) -> None:
        first = None
        if scope["type"] == "http":
            first = await self._first(scope, receive)
            if first is not None and first["type"] == "http.request" and not first.get("more_body"):
                await self._forward(scope, call, bytes(first.get("body", b""))).relay(send)
                return
        async with anyio.create_task_group() as tasks:
            request = self._forward(scope, call, None)
            tasks.start_soon(request.pass_messages, receive, first)
            await request.relay(send)
            tasks.cancel_scope.cancel()

    async def _first(self, scope: Scope, receive: Receive) -> Message | None:
        """Waits for the start of a small body, or for a whole one that can be decoded here."""
        headers = dict(scope["headers"])
        if not _ASKED_FOR.isdisjoint(headers):
            return None
        decoder = self._decoders.known(_route_of(scope, headers))
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

    def _new_head(self, key: tuple[object, ...], scope: Scope) -> tuple[KnownHead, Head]:
        headers = dict(scope["headers"])
        number, size = 0, len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(map(len, itertools.chain.from_iterable(scope["headers"])))
        offered = {*scope["extensions"][DISCONNECT]}
        is_http = scope["type"] == "http"
        if is_http:
            offered.update(_OFFERED_FOR_HTTP)
        if is_http and size <= _LONGEST_KEPT:
            number = len(self._heads) + 1
            if number > _MOST_HEADS:
                number = self._heads.pop(next(iter(self._heads))).number
        head = KnownHead(number, _route_of(scope, headers) if is_http else None, headers)
        if number:
            self._heads[key] = head
        sent = {name: scope[name] for name in scope if name not in _OF_EACH}
        return head, Head(sent, offered)


class KnownHead(NamedTuple):
    number: int  # 0 if the server's process does not keep it
    route: tuple[str, str] | None  # method and path, if items may be decoded
    headers: Mapping[bytes, bytes]


class ForwardedRequest:
    _is_over = False  # nothing more is expected from the server's process
    waiter: Any = None  # of the task that relays the response
    _wants: Bell | None = None  # rung for the task that forwards the client's messages
    _wanted = 0
    _taken = 0
    _has_begun = False

    def __init__(
        self, front_end: FrontEnd, id_: int, kind: str, call: ServedCall, held_back: bytes | None
    ) -> None:
        self._front_end = front_end
        self._id = id_
        self._kind = kind
        self._call = call
        # The whole body, whose item was sent: for an application that reads the body all the same.
        self._held_back = held_back
        self._messages: list[PassedMessage] = []

    # Messages from the server's process.

    def take(self, message: PassedMessage) -> None:
        name, _, content = message
        match name:
            case "want":
                self._want(content)
            case "heartbeat":
                self._call["heartbeat"](*content)
            case "trace":
                self._call.note_trace(content)
            case "watch drain":
                self._call["when_draining"](partial(self._post, "draining"))
            case _:
                self._relay_soon(message)

    def lose(self) -> None:
        self._relay_soon(("cut off", self._id, None))
        self._is_over = True

    def _relay_soon(self, message: PassedMessage) -> None:
        if not self._is_over:
            self._messages.append(message)
            if self.waiter is not None:
                self._front_end.parking.wake(self.waiter)

    # The client's side.

    def on_disconnect(self) -> None:
        if self._is_over:
            return
        if self._call.is_cut_off():
            self._post("cut off")
        elif self._kind == "websocket":
            # The remaining messages and the reason of the disconnect are forwarded first.
            self._want(2**31)
        else:
            self._disconnected()

    def _disconnected(self) -> None:
        if not self._is_over:
            self._relay_soon(("ended", self._id, None))
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._post("left", self._call.refused_with())

    def _post(self, name: str, content: object = None, size: int = 0) -> None:
        self._front_end.channel.post(name, self._id, content, size)

    def _want(self, count: int) -> None:
        body, self._held_back = self._held_back, None
        if body is not None:
            message = {"type": "http.request", "body": body, "more_body": False}
            self._post("message", message, len(body))
        self._wanted += count
        if self._wants is not None:
            self._wants.ring()

    async def pass_messages(self, receive: Receive, first: Message | None) -> None:
        self._wants = Bell(self._front_end.parking)
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

    async def relay(self, send: Send) -> None:
        """Sends the response; if it is cancelled, the client is reported as gone."""
        try:
            while True:
                while not self._messages:
                    await self._front_end.parking.park(self)
                messages, self._messages = self._messages, []
                for name, _, content in messages:
                    match name:
                        case "whole" | "array":
                            self._is_over = True
                            status, headers, body = content
                            if name == "array":
                                from shoal.http.json.decoder import json_of  # it is loaded

                                body = json_of(*body)
                            if not self._call.respond(send, status, headers, body):
                                await self._send_whole(send, status, headers, body)
                            return
                        case "send":
                            await self._send_some(send, content)
                        case "send pickled":
                            await self._send_some(send, [unpickled(content)])
                        case "texts":
                            await self._call["send_texts"](content)
                            self._count(sum(map(len, content)))
                        case _:
                            self._is_over = True
                            if name == "cut off" and not self._has_begun:
                                await self._refuse(send)
                            return
        finally:
            del self._front_end.requests[self._id]
            if not self._is_over:
                self._end()

    async def _send_whole(
        self, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
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
        kind = "websocket.http" if self._kind == "websocket" else "http"
        await send({"type": f"{kind}.response.start", "status": 503, "headers": headers})
        await send({"type": f"{kind}.response.body", "body": body})

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

    def known(self, route: tuple[str, str] | None) -> Decoder | None:
        number = None if route is None else self._numbers.get(route)
        return None if number is None else self._decoders.get(number)

    def _build(self, number: int, description: bytes) -> None:
        try:
            from shoal.http.json.decoder import Decoder

            self._decoders[number] = Decoder(number, description)
        except Exception as error:
            _log.warning("a worker can't decode the items of an endpoint", exc_info=error)


def _route_of(scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[str, str] | None:
    return (scope["method"], scope["path"]) if may_be_decoded_early(headers) else None


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
