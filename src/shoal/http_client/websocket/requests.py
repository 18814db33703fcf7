"""The requests that run on one WebSocket: what is sent for them, and what comes for each."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CREDIT: Final = 64
"""How many items of a stream the server may send that its reader has not taken."""


class SocketRequest:
    """One request, which has begun and may have ended.

    Args:
        id_: Its id.

    Attributes:
        id: Its id.
        is_left: Whether nobody waits for it any more.
    """

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.is_left = False
        self._messages: deque[Mapping[str, Any]] = deque()
        self._is_there = anyio.Event()
        self._broken: str | None = None
        self._credit = CREDIT
        self._taken = 0

    def put(self, message: Mapping[str, Any]) -> None:
        """Takes a message of the server.

        Raises:
            ConnectionError: The server sent more items than it may.
        """
        if "next" in message:
            self._credit -= 1
            if self._credit < 0:
                raise ConnectionError("the server sent more of a stream than it may")
        if not self.is_left:
            self._messages.append(message)
            self._is_there.set()

    def put_back(self, message: Mapping[str, Any]) -> None:
        """Makes a message that was taken the next one again."""
        self._messages.appendleft(message)

    def fail(self, reason: str) -> None:
        """Ends the request, as the connection has ended."""
        self._broken = reason
        self._is_there.set()

    async def next(self) -> Mapping[str, Any]:
        """Returns the next message of the server.

        Raises:
            ConnectionError: The connection has ended.
        """
        while not self._messages:
            if self._broken is not None:
                raise ConnectionError(self._broken)
            self._is_there = anyio.Event()
            await self._is_there.wait()
        return self._messages.popleft()

    def taken(self) -> int:
        """Counts an item that its reader has taken; returns how much credit to give for it."""
        self._taken += 1
        if self._taken < CREDIT // 2:
            return 0
        given, self._taken = self._taken, 0
        self._credit += given
        return given


class SocketRequests:
    """The requests of one WebSocket.

    Args:
        send: Takes a message for the server, text and whether it is binary; does not wait.
        most: How many may run at once.
    """

    def __init__(self, send: Callable[[bytes, bool], None], most: int) -> None:
        self._send = send
        self._places = anyio.Semaphore(most)
        self._running: dict[int, SocketRequest] = {}
        self._last_id = 0
        self._broken: str | None = None

    async def begin(
        self, item: bytes, is_binary: bool, options: Callable[[], Mapping[str, Any]]
    ) -> SocketRequest:
        """Sends a request, once there is a place for it.

        Args:
            item: The item: JSON, or bytes.
            is_binary: Whether it is bytes.
            options: Returns the further members of the message, when it is sent.

        Raises:
            ConnectionError: The connection has ended.

        Cancellation: nothing was sent.
        """
        await self._places.acquire()
        if self._broken is not None:
            self._places.release()
            raise ConnectionError(self._broken)
        self._last_id += 1
        request = self._running[self._last_id] = SocketRequest(self._last_id)
        head = json.dumps({"id": request.id, **options()}).encode()
        if is_binary:
            self._send(head + b"\n" + item, True)
        else:
            self._send(b'{"id":%d,"item":%b%b' % (request.id, item, _rest_of(head)), False)
        return request

    def leave(self, request: SocketRequest) -> None:
        """Cancels a request, unless it has ended; the server may still send messages of it."""
        if request.id in self._running and not request.is_left:
            request.is_left = True
            self._send(b'{"id":%d,"cancel":true}' % request.id, False)

    def taken(self, request: SocketRequest) -> None:
        """Handles that the reader of a stream has taken an item."""
        credit = request.taken()
        if credit and request.id in self._running:
            self._send(b'{"id":%d,"credit":%d}' % (request.id, credit), False)

    def handle(self, text: str) -> None:
        """Handles a message of the server.

        Raises:
            ConnectionError: It is none of the sub-protocol.
        """
        try:
            message: object = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        members = cast("Mapping[str, Any]", message if isinstance(message, dict) else {})
        request = self._running.get(cast("Any", members.get("id"))) if _has_id(members) else None
        if request is None or members.keys().isdisjoint(_KINDS):
            raise ConnectionError("the server sent a message that is not of shoal.v1")
        request.put(members)
        if "next" not in members:
            del self._running[request.id]
            self._places.release()

    def fail(self, reason: str) -> None:
        """Ends all requests, as the connection has ended."""
        self._broken = self._broken or reason
        while self._running:
            _, request = self._running.popitem()
            request.fail(self._broken)
            self._places.release()


_KINDS: Final = ("next", "result", "end", "error")


def _has_id(members: Mapping[str, Any]) -> bool:
    return type(members.get("id")) is int


def _rest_of(head: bytes) -> bytes:
    """Returns the members of an object that follow its first one, and its end."""
    _, comma, rest = head.partition(b",")
    return b"," + rest if comma else b"}"
