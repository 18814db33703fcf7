"""A WebSocket to one endpoint, on which many calls run at once.

One task sends, and another one receives, so that a caller that is cancelled never leaves half of a
frame behind. Neither raises: when the connection ends, every call on it fails.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from shoal.core.options.checks import seconds, whole
from shoal.http_client.bodies import JSON, body_of
from shoal.http_client.connection import SILENCE_S
from shoal.http_client.problems import Failure, failure_of, failure_of_problem
from shoal.http_client.stream import HttpStream
from shoal.http_client.websocket.frames import Frames, Handshake
from shoal.http_client.websocket.requests import SocketRequests
from shoal.replicas.threads import loop_of_caller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeAlias

    from shoal.http_client.answer import StreamingAnswer
    from shoal.http_client.limits import TimeLimit
    from shoal.http_client.websocket.requests import SocketRequest

    Attempt: TypeAlias = Callable[[TimeLimit], Awaitable[Any]]

_PIECE: Final = 2**16
# A server that was silent for so long is asked whether it is there, and has as long to answer.
_ASKED_AFTER_S: Final = SILENCE_S / 2
_CLOSED_WITHIN_S: Final = 1.0
# The longest limit that a server takes.
_LONGEST_S: Final = 2.0**31


class HttpSocket:
    """Calls one endpoint over one WebSocket; see `HttpClient.websocket`.

    It may be used by many tasks at once. When its connection ends, all of its calls fail with a
    `ConnectionError`, and so do later ones: it is not connected again.

    Args:
        open_: Sends the request for the WebSocket, with these headers; returns the answer.
        made: Makes a call by a function that makes it once, with a limit in seconds.
        timeout_s: How long a call with one result may take, in seconds.
        max_requests: How many calls may run at once; others wait.
        max_message_bytes: The largest message of the server, in bytes.
    """

    def __init__(
        self,
        open_: Callable[[Mapping[str, str]], Awaitable[StreamingAnswer]],
        made: Callable[[Attempt, float], Awaitable[Any]],
        timeout_s: float,
        max_requests: int,
        max_message_bytes: int,
    ) -> None:
        self._open = open_
        self._made = made
        self._timeout_s = timeout_s
        self._max_requests = max_requests
        self._max_message_bytes = max_message_bytes
        self._link: _Link | None = None
        self._was_entered = False

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise RuntimeError("a WebSocket is entered once; make another: client.websocket(...)")
        self._was_entered = True
        handshake = Handshake()

        async def attempt(_: TimeLimit) -> StreamingAnswer | Failure:
            answer = await self._open(handshake.headers)
            if answer.status == 101:
                return answer
            body = await answer.read()
            return failure_of(answer.url, answer.status, answer.header("retry-after"), body)

        answer: StreamingAnswer = await self._made(attempt, self._timeout_s)
        try:
            handshake.check(answer)
        except ConnectionError:
            await answer.aclose()
            raise
        link = _Link(answer, self._max_requests, self._max_message_bytes)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(link.write)
        self._tasks.start_soon(link.read)
        self._link = link
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        link, self._link = self._link, None
        assert link is not None
        try:
            with anyio.CancelScope(shield=True):
                await link.end()
            self._tasks.cancel_scope.cancel()
            # Not the error of the block, of which a group of exceptions would be made.
            await self._tasks.__aexit__(None, None, None)
        finally:
            await link.answer.aclose()

    async def call(
        self, item: Any, *, timeout_s: float | None = None, priority: int | None = None
    ) -> Any:
        """Makes a call with one result.

        Args:
            item: The item: bytes and arrays are sent in a binary message, anything else as JSON.
            timeout_s: As for `HttpClient.call`.
            priority: The priority level; None for the default.

        Returns:
            The result, a JSON value.

        Raises:
            RuntimeError: The WebSocket is not open.
            Exception: See `HttpClient`.

        Cancellation: cancels the call at the server; the WebSocket stays open. Checkpoint: always.
        """
        link, begin = self._prepared(item, priority)

        async def attempt(limit: TimeLimit) -> Any:
            request = await begin(limit)
            try:
                message = await request.next()
            finally:
                link.requests.leave(request)
            if "result" in message:
                return message["result"]
            if "error" in message:
                return failure_of_problem(link.answer.url, 500, message["error"])
            raise TypeError(f"{link.answer.url} answers with a stream; use socket.stream(...)")

        return await self._made(attempt, self._timeout_s if timeout_s is None else timeout_s)

    def stream(
        self, item: Any, *, timeout_s: float | None = None, priority: int | None = None
    ) -> HttpStream:
        """Returns the stream of a call, which is made when the stream is entered.

        Args:
            item: As for `call`.
            timeout_s: How long the whole stream may take, in seconds; None for no limit of its own.
            priority: As for `call`.
        """
        given_s = math.inf if timeout_s is None else seconds("timeout_s", timeout_s)
        link, begin = self._prepared(item, priority)

        async def attempt(limit: TimeLimit) -> Any:
            request = await begin(limit)
            try:
                message = await request.next()  # which says whether it was refused
                request.put_back(message)
            except BaseException:
                link.requests.leave(request)
                raise
            if "error" in message:
                return failure_of_problem(link.answer.url, 500, message["error"])
            if "result" in message:
                raise TypeError(
                    f"{link.answer.url} does not answer with a stream; use socket.call(...)"
                )
            return _Results(link, request), limit.own

        return HttpStream(partial(self._made, attempt, given_s))

    def _prepared(
        self, item: Any, priority: int | None
    ) -> tuple[_Link, Callable[[TimeLimit], Awaitable[SocketRequest]]]:
        """Returns the connection, and a function that sends a request on it once."""
        if self._link is None:
            raise RuntimeError(
                "the WebSocket is not open: async with client.websocket(...) as socket: ..."
            )
        if priority is not None:
            whole("priority", priority, least=1)
        return self._link, partial(self._link.begin, body_of(item), priority)


class _Results:
    """The results of a stream on a WebSocket; see `shoal.http_client.stream.StreamSource`."""

    def __init__(self, link: _Link, request: SocketRequest) -> None:
        self._link = link
        self._request = request

    @property
    def url(self) -> str:
        return self._link.answer.url

    async def next(self) -> Any:
        message = await self._request.next()
        if "next" in message:
            self._link.requests.taken(self._request)
            return message["next"]
        if "error" in message:
            raise failure_of_problem(self.url, 500, message["error"]).error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._link.requests.leave(self._request)

    def drop(self) -> None:
        self._link.soon(self._link.requests.leave, self._request)


class _Link:
    """The connection of a WebSocket, and the requests that run on it.

    Attributes:
        answer: The answer to the handshake.
        requests: The requests.
        soon: Schedules a call of a function in its event loop, from any thread.
    """

    def __init__(self, answer: StreamingAnswer, max_requests: int, max_message_bytes: int) -> None:
        self.answer = answer
        _, self.soon = loop_of_caller()
        self.requests = SocketRequests(self._send, max_requests)
        self._frames = Frames(max_message_bytes)
        self._outbox: deque[bytes] = deque()
        # To the latest ping, which answers those before it (RFC 6455, 5.5.3). So a server that
        # sends pings and does not read has no more than one kept.
        self._pong = b""
        self._to_send = anyio.Event()
        self._has_ended = anyio.Event()

    async def begin(
        self, body: tuple[bytes, str], priority: int | None, limit: TimeLimit
    ) -> SocketRequest:
        """Sends a request, once there is a place for it."""
        options: dict[str, Any] = {} if priority is None else {"priority": priority}
        content, media_type = body

        def with_limit() -> dict[str, Any]:
            left_s = limit.left_s
            if left_s < _LONGEST_S:
                options["timeout_s"] = max(left_s, 0.001)
            return options

        return await self.requests.begin(content, media_type != JSON, with_limit)

    async def write(self) -> None:
        """Sends what there is to send, until the end."""
        try:
            while True:
                while frame := self._next_frame():
                    await self.answer.network.write(frame, timeout=SILENCE_S)
                self._to_send = anyio.Event()
                await self._to_send.wait()
        except Exception as error:
            await self._fail(error)

    async def read(self) -> None:
        """Handles what the server sends, until the end."""
        was_asked = False
        try:
            while True:
                data: bytes | None = None
                with anyio.move_on_after(_ASKED_AFTER_S):
                    data = await self.answer.network.read(_PIECE)
                if data is None:
                    if was_asked:
                        raise TimeoutError(f"it was silent for {SILENCE_S} s")
                    was_asked = True
                    self._put(self._frames.ping())
                    continue
                if not data:
                    raise ConnectionError("it was closed")
                was_asked = False
                for each in self._frames.received(data):
                    if isinstance(each, bytes):
                        self._pong = each
                        self._to_send.set()
                    else:
                        self.requests.handle(each)
        except Exception as error:
            await self._fail(error)
        finally:
            # Cancelled with the block of the WebSocket, while tasks elsewhere may wait for calls.
            self.requests.fail(self._broken_by("its block was cancelled"))
            self._has_ended.set()

    async def end(self) -> None:
        """Closes the WebSocket, if that is quickly done."""
        self.requests.fail(f"the WebSocket to {self.answer.url} is closed")
        self._put(self._frames.close())  # which the server answers
        with anyio.move_on_after(_CLOSED_WITHIN_S):
            await self._has_ended.wait()

    def _send(self, message: bytes, is_binary: bool) -> None:
        self._put(self._frames.binary(message) if is_binary else self._frames.text(message))

    def _next_frame(self) -> bytes:
        """Takes the next frame to send; empty if there is none."""
        if self._pong:
            frame, self._pong = self._pong, b""
            return frame
        return self._outbox.popleft() if self._outbox else b""

    def _put(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self._to_send.set()

    async def _fail(self, error: Exception) -> None:
        self.requests.fail(self._broken_by(str(error) or type(error).__name__))
        await self.answer.aclose()

    def _broken_by(self, cause: str) -> str:
        return f"the WebSocket to {self.answer.url} broke ({cause}); its calls may have run"
